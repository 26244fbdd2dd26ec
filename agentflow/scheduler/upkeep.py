"""Upkeep: what is done to the engines beside work: memory is watched, given back, and had afresh.

    prefixes          what idle runs hold, forgotten in time (keeper.py)
    pools             the watermark of the KV pools (poolwatch.py)
    limit_prompts     no long prompts, while the device's memory runs short (promptlimit.py)
    free_memory       everything cached that nobody uses, and what engines keep aside
    restart_engines   one engine after the other: it gets no more work, what runs there may end within `drain_s`, and a fresh
                      one takes its place, without back-off. Who waits goes on waiting. What still runs then ends as under
                      an engine that died, with the reason; runs that are stored go on from their log.

When to do so is decided by whoever watches the device.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from agentflow.config import SchedulerConfig
from agentflow.errors import EngineDied, EngineFailure
from agentflow.scheduler.keeper import PrefixKeeper
from agentflow.scheduler.pool import Slot
from agentflow.scheduler.poolwatch import PoolWatch
from agentflow.scheduler.promptlimit import PromptLimit
from agentflow.scheduler.scheduler import Scheduler

POLL_S: Final = 0.05
ON_THE_HOST: Final = "encoder"  # EngineInfo.name of what computes in the daemon itself

_log = logging.getLogger(__name__)


class Upkeep:
    """For the event loop."""

    def __init__(self, config: SchedulerConfig, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.prefixes = PrefixKeeper(config, scheduler)
        self.pools = PoolWatch(config, scheduler, self.prefixes)
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Watch what idle runs hold, in `tasks`."""
        self.prefixes.start(tasks)
        self._task = tasks.create_task(self.pools.run(), name="KV pools")

    def stop(self) -> None:
        """Watch no more: the engines end."""
        self.prefixes.stop()
        if self._task is not None:
            self._task.cancel()

    def limit_prompts(self, tokens: int | None, why: str = "", retry_after_s: float = 30.0) -> None:
        """Take no prompts of more than `tokens`, and tell `why` in a sentence; None: take any that fits its model."""
        self._scheduler.prompt_limit = None if tokens is None else PromptLimit(tokens, why, retry_after_s)

    @property
    def prompt_limit(self) -> int | None:
        """The longest prompt that is taken now, in tokens; None: no limit is set."""
        limit = self._scheduler.prompt_limit
        return None if limit is None else limit.tokens

    async def free_memory(self) -> int:
        """As Engine.free_memory, of every engine. Idle runs hold nothing afterwards. Returns how many tokens were cached."""
        freed = 0
        for model, pool in self._scheduler.pools.items():
            for slot in pool.slots:
                engine = slot.supervisor.engine
                if engine is not None and slot.ready:
                    try:
                        freed += await engine.free_memory()
                    except EngineFailure as error:
                        _log.warning("an engine of %s gave no memory back: %s", model, error)
            self._let_go(model)
        return freed

    async def restart_engines(self, why: str, drain_s: float) -> None:
        """Replace every engine that computes outside of this process, one after the other; returns when all have been."""
        for model, pool in self._scheduler.pools.items():
            for slot in pool.slots:
                info = slot.supervisor.info
                if info is None or info.name == ON_THE_HOST or not slot.ready or self._scheduler.draining:
                    continue
                slot.held_back = True
                try:
                    await _emptied(slot, drain_s)
                    await slot.supervisor.renew(EngineDied(why))
                finally:
                    slot.held_back = False
                    self._scheduler.pump(pool)
            self._let_go(model)

    def _let_go(self, model: str) -> None:
        """The engines know nothing any more of what idle runs left."""
        self.prefixes.release(model, len(self.prefixes))


async def _emptied(slot: Slot, timeout_s: float) -> None:
    """Return when nothing runs on it any more, or after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not (slot.taken and slot.ready):
            return
        await asyncio.sleep(POLL_S)

"""PrefixKeeper: has the engines forget what idle runs keep there, when its time is over or there is too much of it.

Which that is, is decided in idle.py. Here is its clock: one task, which sleeps until the oldest has to go, and sleeps without an
end while nothing is idle. What an engine fails to forget is lost with its process, or goes when it needs the room.

Each model is asked by a task of its own, for one prompt after the other: a model whose engines are stuck delays no other. Behind
it at most so many prompts wait as may be idle, and BACKLOG more; beyond those the oldest are not asked for.

Runs of agents and answers of the Responses API pass here (see speaker.py). Plain chat completions do not: an engine sees to what
they leave by itself, and drops what was used the longest ago when it needs the room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from agentflow.config import SchedulerConfig
from agentflow.scheduler.idle import Forgotten, Idle, IdlePrefixes, Place, Reading, held
from agentflow.scheduler.scheduler import Scheduler

BACKLOG: Final = 128  # prompts
FEW: Final = 16  # prompts that are counted in a fraction of a millisecond

_log = logging.getLogger(__name__)


class PrefixKeeper:
    """For the event loop. `start` it, or nothing is ever forgotten."""

    def __init__(self, config: SchedulerConfig, scheduler: Scheduler) -> None:
        self._idle = IdlePrefixes(config.idle_prefixes, config.idle_prefix_s)
        self._scheduler = scheduler
        self._most = config.idle_prefixes + BACKLOG
        self._backlogs: dict[str, deque[Forgotten]] = {}  # by model, while its task goes on
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many prompts are idle."""
        return len(self._idle)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to forget, in `tasks`."""
        self._task = tasks.create_task(self._run(), name="idle prefixes")

    def stop(self) -> None:
        """Forget no more: the engines end."""
        if self._task is not None:
            self._task.cancel()

    def begin(self, model: str, tenant: str, prompt: Sequence[int]) -> Reading:
        """A run's prompt goes to the engine, or into its queue. `end` it."""
        return self._idle.begin(Place(model, tenant), prompt)

    def end(self, reading: Reading, said: Sequence[int] | None) -> None:
        """As IdlePrefixes.end, now."""
        before = self._idle.next_at
        self._idle.end(reading, said, asyncio.get_running_loop().time())
        after = self._idle.next_at
        sooner = after is not None and (before is None or after < before)
        if self._idle.too_many or sooner:  # else it wakes early enough by itself
            self._changed.set()

    def forget(self, tenant: str) -> None:
        """Forget all that a tenant's runs left, now."""
        self._idle.expire(tenant)
        self._changed.set()

    def release(self, model: str, count: int) -> int:
        """Forget those `count` of a model's idle prompts that were left the longest ago, now. Returns how many there were."""
        released = self._idle.expire_oldest(model, count)
        if released:
            self._changed.set()
        return released

    async def held(self, model: str, block: int) -> Idle:
        """What idle runs hold of a model's engines, whose blocks have so many tokens."""
        orders = self._idle.orders(model)
        if sum(len(order.prompts) for order in orders) <= FEW:
            return held(orders, block)
        return await asyncio.to_thread(held, orders, block)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                while (gone := self._idle.next_over(loop.time())) is not None:
                    self._ask(gone, tasks)
                    await asyncio.sleep(0)  # there may be many
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._idle.next_at):
                        await self._changed.wait()

    def _ask(self, gone: Forgotten, tasks: asyncio.TaskGroup) -> None:
        """Have it forgotten behind what the model's engines were asked to forget before."""
        model = gone.place.model
        if model not in self._backlogs:
            self._backlogs[model] = deque(maxlen=self._most)
            tasks.create_task(self._forget_all(model), name=f"idle prefixes of {model}")
        self._backlogs[model].append(gone)

    async def _forget_all(self, model: str) -> None:
        while self._backlogs[model]:
            await self._forget(self._backlogs[model].popleft())
        del self._backlogs[model]

    async def _forget(self, gone: Forgotten) -> None:
        try:
            token_ids = gone.token_ids.tolist()  # only now: that is some ten times as much memory
            await self._scheduler.forget(gone.place.model, token_ids, gone.keep, gone.place.tenant)
        except Exception:  # noqa: BLE001 - an engine is foreign code, and what it does not forget ends no daemon
            _log.exception("an engine did not forget the prompt of an idle run")

"""PoolWatch: the watermark of the KV pools at work. Looks at each model every `kv_watch_s`, and has idle runs let go.

What is decided is in watermark.py, what idle runs hold is counted in idle.py, and the engines are asked to forget by the keeper.
A model whose engines are not ready, or have no pool, is not looked at.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from agentflow.config import SchedulerConfig
from agentflow.scheduler.keeper import PrefixKeeper
from agentflow.scheduler.pool import Pool
from agentflow.scheduler.scheduler import Scheduler
from agentflow.scheduler.watermark import PoolUse, PoolWatermark
from agentflow.status import HeldStatus

_log = logging.getLogger(__name__)


class PoolWatch:
    """For the event loop. `look` once, or `run` for ever."""

    def __init__(self, config: SchedulerConfig, scheduler: Scheduler, keeper: PrefixKeeper) -> None:
        self._config = config
        self._scheduler = scheduler
        self._keeper = keeper
        self._marks: dict[str, PoolWatermark] = {}
        self._uses: dict[str, PoolUse] = {}  # as last read
        self._released: dict[str, int] = {}

    async def run(self) -> None:
        """Look at every model, again and again."""
        while True:
            await asyncio.sleep(self._config.kv_watch_s)
            for pool in self._scheduler.pools.values():
                try:
                    await self.look(pool)
                except Exception:  # noqa: BLE001 - an engine is foreign code, and its figures are too
                    _log.exception("the KV pool of %s cannot be looked at", pool.name)

    async def look(self, pool: Pool[Any]) -> None:
        """Read one model's pools, and let go what is too much."""
        use = await self._read(pool)
        if use is None:
            self._uses.pop(pool.name, None)
            return
        mark = self._marks.setdefault(pool.name, PoolWatermark(self._config.kv_watermark, self._config.kv_release))
        self._uses[pool.name] = use
        passed = mark.passed
        count = self._keeper.release(pool.name, mark.observe(use))
        self._released[pool.name] = self._released.get(pool.name, 0) + count
        if mark.passed > passed:
            _log.warning(
                "the KV pool of %s is taken to %.0f %%: %d tokens by what runs, %d by %d idle runs, of which %d let go",
                *(pool.name, 100 * use.share, use.running_tokens, use.held_tokens, use.held_runs, count),
            )

    def status(self, model: str) -> HeldStatus | None:
        """As last read; None for a model that has no pool, or was not looked at yet."""
        use, mark = self._uses.get(model), self._marks.get(model)
        if use is None or mark is None:
            return None
        return HeldStatus(
            runs=use.held_runs,
            tokens=use.held_tokens,
            share=round(use.share, 4),
            above=mark.above,
            passed=mark.passed,
            released=self._released.get(model, 0),
        )

    async def _read(self, pool: Pool[Any]) -> PoolUse | None:
        tokens = running = 0.0
        block = 1
        for slot in pool.slots:
            info, engine = slot.supervisor.info, slot.supervisor.engine
            if info is not None and engine is not None and slot.ready and info.kv_cache_tokens:
                tokens += info.kv_cache_tokens
                running += info.kv_cache_tokens * engine.stats().kv_cache_usage
                block = info.kv_block_tokens
        if not tokens:
            return None
        held = await self._keeper.held(pool.name, block)
        return PoolUse(int(tokens), int(running), held.prompts, held.tokens)

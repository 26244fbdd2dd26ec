"""The watermark of the KV pools, over the scripted engine."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agentflow.config import SchedulerConfig
from agentflow.engine.protocol import GenerateRequest
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.messages import Sampling
from agentflow.scheduler.pool import Pool
from agentflow.scheduler.poolwatch import PoolWatch
from agentflow.scheduler.upkeep import Upkeep
from agentflow.status import HeldStatus
from tests.agentflow.scheduler.test_scheduler import Bench, bench

SLOW = Script(rules=(Rule(answer="x" * 10_000, tokens_per_s=200.0),))
POOL = {"max_model_len": 200, "max_running": 5}  # 1000 tokens


def prompt(number: int) -> list[int]:
    """Six blocks that no other prompt has."""
    return [number + 1, *[97] * 95]


async def cached(it: Bench, ids: list[int]) -> int:
    engine = it.supervisors[0].engine
    assert engine is not None
    deltas = [delta async for delta in engine.generate(GenerateRequest("r", [*ids, 5], Sampling(), 1, 0, "acme"))]
    return int(deltas[0].cached_tokens)


async def leave(it: Bench, upkeep: Upkeep, ids: list[int]) -> None:
    """A run that reads `ids`, and is idle then."""
    await cached(it, ids)
    upkeep.prefixes.end(upkeep.prefixes.begin("m", "acme", ids), [])


async def until_kept(upkeep: Upkeep, count: int) -> None:
    async with asyncio.timeout(5):
        while len(upkeep.prefixes) != count:
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.01)  # and the engine has been asked


async def test_above_the_mark_the_runs_left_the_longest_ago_lose_their_kv(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(lambda: ScriptedEngine(**POOL)) as it, asyncio.TaskGroup() as tasks:
        upkeep = Upkeep(SchedulerConfig(), it.scheduler)
        upkeep.prefixes.start(tasks)
        for number in range(9):
            await leave(it, upkeep, prompt(number))
        await upkeep.pools.look(it.pool)
        assert upkeep.pools.status("m") == HeldStatus(9, 864, 0.864, above=False, passed=0, released=0)
        await leave(it, upkeep, prompt(9))
        with caplog.at_level(logging.WARNING):
            await upkeep.pools.look(it.pool)
        assert upkeep.pools.status("m") == HeldStatus(10, 960, 0.96, above=True, passed=1, released=3)
        assert "taken to 96 %: 0 tokens by what runs, 960 by 10 idle runs, of which 3 let go" in caplog.text
        await until_kept(upkeep, 7)
        assert [await cached(it, prompt(number)) for number in (0, 1, 2)] == [0, 0, 0]
        assert [await cached(it, prompt(number)) for number in (3, 9)] == [96, 96]
        await upkeep.pools.look(it.pool)
        assert upkeep.pools.status("m") == HeldStatus(7, 672, 0.672, above=False, passed=1, released=3)
        upkeep.prefixes.stop()


async def test_what_runs_counts_with_what_is_held() -> None:
    async with bench(lambda: ScriptedEngine(SLOW, **POOL)) as it, asyncio.TaskGroup() as tasks:
        upkeep = Upkeep(SchedulerConfig(kv_watermark=0.5, kv_release=1.0), it.scheduler)
        upkeep.prefixes.start(tasks)
        for number in range(4):
            await leave(it, upkeep, prompt(number))
        await upkeep.pools.look(it.pool)
        status = upkeep.pools.status("m")
        assert status is not None
        assert (status.share, status.released) == (0.384, 0)
        engine = it.supervisors[0].engine
        assert engine is not None
        running = engine.generate(GenerateRequest("r", [98] * 150, Sampling(), 40, 0, "acme"))
        await anext(running)
        await upkeep.pools.look(it.pool)
        status = upkeep.pools.status("m")
        assert status is not None
        assert status.share > 0.53
        assert status.released == 4
        await until_kept(upkeep, 0)
        await running.aclose()
        upkeep.prefixes.stop()


async def test_it_looks_by_itself_and_a_defect_does_not_end_it() -> None:
    class Odd(PoolWatch):
        looks = 0

        async def look(self, pool: Pool[Any]) -> None:
            self.looks += 1
            if self.looks == 1:
                raise ZeroDivisionError
            await super().look(pool)

    async with bench(lambda: ScriptedEngine(**POOL)) as it, asyncio.TaskGroup() as tasks:
        config = SchedulerConfig(kv_watch_s=0.01)
        upkeep = Upkeep(config, it.scheduler)
        upkeep.pools = Odd(config, it.scheduler, upkeep.prefixes)
        upkeep.start(tasks)
        for number in range(11):
            upkeep.prefixes.end(upkeep.prefixes.begin("m", "acme", prompt(number)), [])
        await until_kept(upkeep, 7)
        upkeep.stop()


async def test_a_model_that_is_not_ready_is_not_told_of() -> None:
    async with bench(lambda: ScriptedEngine(Script(start_s=60), **POOL), wait=False) as it:
        upkeep = Upkeep(SchedulerConfig(), it.scheduler)
        await upkeep.pools.look(it.pool)
        assert upkeep.pools.status("m") is None


async def test_many_are_counted_in_a_thread_and_alike() -> None:
    async with bench(lambda: ScriptedEngine(**POOL)) as it:
        upkeep = Upkeep(SchedulerConfig(), it.scheduler)
        for number in range(40):
            upkeep.prefixes.end(upkeep.prefixes.begin("m", "acme", prompt(number)), [])
        assert await upkeep.prefixes.held("m", 16) == (40, 40 * 96)

"""The keeper over the scripted engine: when it has it forget, and when it does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from agentflow.config import SchedulerConfig
from agentflow.engine.protocol import GenerateRequest
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.errors import SequenceFailed
from agentflow.messages import Sampling
from agentflow.scheduler import PrefixKeeper, Scheduler

ONE, TWO = [[number, *range(64)] for number in (1, 2)]


class Unwilling(ScriptedEngine):
    """Fails to forget what `willing` does not hold for."""

    error: Exception | None = None

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        if self.error is not None:
            raise self.error
        return await super().forget(token_ids, keep, cache_salt)


@asynccontextmanager
async def keeping(engine: ScriptedEngine, count: int, seconds: float) -> AsyncIterator[PrefixKeeper]:
    config = SchedulerConfig(idle_prefixes=count, idle_prefix_s=seconds)
    scheduler = Scheduler(config, lambda _: None)
    supervisor = Supervisor("m/0", lambda: engine, SupervisorLimits())
    scheduler.add_pool("m", (supervisor,))
    keeper = PrefixKeeper(config, scheduler)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        keeper.start(tasks)
        await until(lambda: supervisor.engine is not None)
        yield keeper
        keeper.stop()
        await supervisor.stop(1)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():
            await asyncio.sleep(0.002)


async def read(engine: ScriptedEngine, ids: list[int]) -> int:
    """Have the engine read a prompt; returns how much of it was cached."""
    deltas = [delta async for delta in engine.generate(GenerateRequest("r", ids, Sampling(), 1, 0, "acme"))]
    return deltas[0].cached_tokens


async def test_an_idle_prompt_is_forgotten_after_its_time_and_one_that_comes_again_is_not() -> None:
    engine = ScriptedEngine()
    async with keeping(engine, 10, 0.05) as keeper:
        keeper.end(keeper.begin("m", "acme", ONE), [])
        coming = keeper.begin("m", "acme", TWO)
        await read(engine, ONE)
        await read(engine, TWO)
        assert len(keeper) == 1
        await until(lambda: len(keeper) == 0)
        await asyncio.sleep(0)
        assert await read(engine, [*TWO, 5]) == 64
        assert await read(engine, [*ONE, 5]) == 0
        keeper.end(coming, [])
        await until(lambda: len(keeper) == 0)
        await asyncio.sleep(0)
        assert await read(engine, [*TWO, 5]) == 0


async def test_one_too_many_is_forgotten_at_once() -> None:
    engine = ScriptedEngine()
    async with keeping(engine, 1, 3600) as keeper:
        for ids in (ONE, TWO):
            await read(engine, ids)
            keeper.end(keeper.begin("m", "acme", ids), [])
        await until(lambda: len(keeper) == 1)
        await asyncio.sleep(0)
        assert await read(engine, ONE) == 0
        assert await read(engine, [*TWO, 5]) == 64


@pytest.mark.parametrize("error", [SequenceFailed("stuck"), RuntimeError("a defect")])
async def test_an_engine_that_does_not_forget_ends_nothing(error: Exception) -> None:
    engine = Unwilling()
    async with keeping(engine, 0, 3600) as keeper:
        engine.error = error
        keeper.end(keeper.begin("m", "acme", ONE), [])
        await until(lambda: len(keeper) == 0)
        await read(engine, TWO)
        engine.error = None
        keeper.end(keeper.begin("m", "acme", TWO), [])
        await until(lambda: len(keeper) == 0)
        await asyncio.sleep(0)
        assert await read(engine, TWO) == 0

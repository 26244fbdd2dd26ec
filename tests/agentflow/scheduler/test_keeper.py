"""The keeper over the scripted engine: when it has it forget, and when it does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest

from agentflow.config import SchedulerConfig
from agentflow.engine.protocol import GenerateRequest
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.errors import SequenceFailed
from agentflow.messages import Sampling
from agentflow.scheduler import PrefixKeeper, Scheduler
from agentflow.scheduler.keeper import BACKLOG

ONE, TWO = [[number, *range(64)] for number in (1, 2)]


class Unwilling(ScriptedEngine):
    """Fails to forget what `willing` does not hold for."""

    error: Exception | None = None

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        if self.error is not None:
            raise self.error
        return await super().forget(token_ids, keep, cache_salt)


class Stuck(ScriptedEngine):
    """Forgets nothing before it is `free`. `asked`: the first tokens of what it was to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.asked: list[int] = []

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        self.asked.append(token_ids[0])
        await self.free.wait()
        return await super().forget(token_ids, keep, cache_salt)


@asynccontextmanager
async def keeping(
    engine: ScriptedEngine, count: int, seconds: float, others: Mapping[str, ScriptedEngine] | None = None
) -> AsyncIterator[PrefixKeeper]:
    """`engine` serves the model `m`; `others` are other models'."""
    config = SchedulerConfig(idle_prefixes=count, idle_prefix_s=seconds)
    scheduler = Scheduler(config, lambda _: None)
    supervisors = []
    for model, each in {"m": engine, **(others or {})}.items():
        supervisor = Supervisor(f"{model}/0", partial(_same, each), SupervisorLimits())
        scheduler.add_pool(model, (supervisor,))
        supervisors.append(supervisor)
    keeper = PrefixKeeper(config, scheduler)
    async with asyncio.TaskGroup() as tasks:
        for supervisor in supervisors:
            tasks.create_task(supervisor.run())
        keeper.start(tasks)
        await until(lambda: all(each.engine is not None for each in supervisors))
        yield keeper
        keeper.stop()
        for supervisor in supervisors:
            await supervisor.stop(1)


def _same(engine: ScriptedEngine) -> ScriptedEngine:
    return engine


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


async def test_several_that_become_idle_at_one_moment_wake_who_sleeps_while_nothing_is() -> None:
    async with keeping(ScriptedEngine(), 10, 0.05) as keeper:
        second = keeper.begin("m", "acme", [1, 2])
        keeper.end(keeper.begin("m", "acme", [1]), [])
        keeper.end(second, [])
        waiting = keeper.begin("m", "acme", [1, 2, 3])
        assert len(keeper) == 0
        await asyncio.sleep(0.2)  # by now it has woken to nothing, and sleeps without an end
        keeper.end(waiting, None)
        assert len(keeper) == 2
        await until(lambda: len(keeper) == 0)


async def test_one_that_is_idle_again_as_long_as_before_goes_before_the_one_that_was_waited_for() -> None:
    async with keeping(ScriptedEngine(), 10, 3600) as keeper:
        keeper.end(keeper.begin("m", "acme", ONE), [])
        keeper.forget("acme")
        waiting = keeper.begin("m", "acme", [*ONE, 5])
        keeper.end(keeper.begin("m", "other", TWO), [])
        await asyncio.sleep(0.02)  # by now it sleeps until the second has to go
        keeper.end(waiting, None)
        assert len(keeper) == 2
        await until(lambda: len(keeper) == 1)


async def test_a_model_that_is_stuck_keeps_no_other_from_forgetting_and_the_idle_prompts_bounded() -> None:
    stuck, other = Stuck(), ScriptedEngine()
    async with keeping(stuck, 1, 3600, {"n": other}) as keeper:
        count = 2 * BACKLOG
        for number in range(count):
            keeper.end(keeper.begin("m", "acme", [number]), [])
        await until(lambda: len(keeper) == 1)
        await read(other, ONE)
        for ids in (ONE, TWO):
            keeper.end(keeper.begin("n", "acme", ids), [])
        await until(lambda: len(keeper) == 1)
        await asyncio.sleep(0)
        assert await read(other, [*ONE, 5]) == 0
        assert stuck.asked == [0]
        stuck.free.set()
        await until(lambda: len(stuck.asked) == 1 + 1 + BACKLOG)
        assert stuck.asked[-1] == count - 1  # the newest of those that waited
        stuck.asked.clear()
        for ids in (ONE, TWO):  # and it is asked again
            keeper.end(keeper.begin("m", "acme", ids), [])
        await until(lambda: stuck.asked == [ONE[0]])

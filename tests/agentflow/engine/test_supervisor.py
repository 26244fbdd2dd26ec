"""The life of an engine slot, with the scripted engine and with engines that fail on purpose."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentflow.engine.protocol import EngineInfo, EngineStats, GenerateRequest, StartProgress
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.errors import EngineDied, EngineFailure, EngineStalled, EngineStartFailed
from agentflow.messages import Sampling

FAST = SupervisorLimits(start_timeout_s=5, stall_timeout_s=0.3, backoff_s=0.02, backoff_max_s=0.08, kill_timeout_s=1)


class BareEngine:
    """An engine whose start, failure and progress the test decides; counts what is done to it and how often it is looked at."""

    def __init__(self, start: Callable[[], Any] = lambda: asyncio.sleep(0)) -> None:
        self._start = start
        self.failure: EngineFailure | None = None
        self.now = EngineStats()
        self.looks = 0
        self.killed: list[EngineFailure | None] = []
        self.stopped: list[float] = []

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        progress(StartProgress("loading", 0.5))
        await self._start()
        return EngineInfo("bare", 100, 1)

    def stats(self) -> EngineStats:
        self.looks += 1
        return self.now

    def kill(self, reason: EngineFailure | None = None) -> None:
        self.killed.append(reason)
        self.failure = self.failure or reason or EngineDied("killed")

    async def stop(self, timeout_s: float) -> None:
        self.stopped.append(timeout_s)


async def failing_start() -> None:
    raise EngineStartFailed("the weights do not fit")


@asynccontextmanager
async def supervised(
    factory: Callable[[], Any], limits: SupervisorLimits = FAST, **kwargs: Any
) -> AsyncIterator[Supervisor[Any]]:
    supervisor = Supervisor("chat/0", factory, limits, **kwargs)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            await supervisor.stop(1)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def ready(supervisor: Supervisor[Any]) -> Any:
    """Its engine, once that takes work."""
    await until(lambda: supervisor.engine is not None)
    return supervisor.engine


def request(prompt: str = "hello", max_tokens: int = 100) -> GenerateRequest:
    return GenerateRequest("r", list(prompt.encode()), Sampling(), max_tokens)


async def test_an_engine_becomes_ready_and_serves() -> None:
    async with supervised(lambda: ScriptedEngine(Script(start_s=0.05))) as supervisor:
        assert supervisor.engine is None
        assert supervisor.status().state == "starting"
        engine = await ready(supervisor)
        text = "".join([delta.text async for delta in engine.generate(request())])
        assert text
        status = supervisor.status()
        assert (status.state, status.restarts, status.last_error) == ("ready", 0, None)
        assert status.info is not None
        assert status.info.name == "scripted"
    assert supervisor.status().state == "stopped"
    assert supervisor.engine is None


async def test_a_dead_engine_is_replaced_by_a_fresh_one_and_its_streams_raise() -> None:
    built: list[ScriptedEngine] = []

    def factory() -> ScriptedEngine:
        rules = (Rule(match=".*", answer="x" * 50, die_after_tokens=3),) if not built else ()
        built.append(ScriptedEngine(Script(rules=rules)))
        return built[-1]

    async with supervised(factory) as supervisor:
        engine = await ready(supervisor)
        with pytest.raises(EngineDied):
            async for _ in engine.generate(request()):
                pass
        await until(lambda: supervisor.engine is not None and supervisor.engine is not engine)
        assert supervisor.status().restarts == 1
        assert len(built) == 2


async def test_a_stalled_engine_is_killed_and_its_streams_raise_engine_stalled() -> None:
    rules = (Rule(match=".*", answer="x" * 50, hang_after_tokens=3),)
    async with supervised(lambda: ScriptedEngine(Script(rules=rules))) as supervisor:
        engine = await ready(supervisor)
        with pytest.raises(EngineStalled, match="1 sequences"):
            async for _ in engine.generate(request()):
                pass
        await until(lambda: supervisor.status().restarts == 1)


async def test_an_idle_engine_never_counts_as_stalled() -> None:
    limits = SupervisorLimits(stall_timeout_s=1e-9)
    async with supervised(BareEngine, limits) as supervisor:
        engine = await ready(supervisor)
        await until(lambda: engine.looks >= 3)
        assert not engine.killed
        engine.now = EngineStats(outstanding=1)
        await until(lambda: engine.killed)
        assert isinstance(engine.killed[0], EngineStalled)


async def test_work_that_begins_long_after_the_last_progress_gets_its_full_time() -> None:
    limits = SupervisorLimits(stall_timeout_s=60)
    async with supervised(BareEngine, limits) as supervisor:
        engine = await ready(supervisor)
        await until(lambda: engine.looks >= 2)
        engine.now = EngineStats(outstanding=1, last_progress_at=time.monotonic() - 1000)
        await until(lambda: engine.looks >= 5)
        assert not engine.killed


async def test_a_failed_start_keeps_its_reason_and_backs_off_twice_as_long_each_time() -> None:
    engines: list[BareEngine] = []
    waits: list[str] = []

    def factory() -> BareEngine:
        engines.append(BareEngine(failing_start))
        return engines[-1]

    def note(supervisor: Supervisor[Any]) -> None:
        if supervisor.status().state == "backing_off":
            waits.append(supervisor.status().stage)

    async with supervised(factory, on_change=note) as supervisor:
        await until(lambda: len(waits) >= 5)
        assert supervisor.status().last_error == "the weights do not fit"
        assert supervisor.engine is None
    assert waits[:5] == [f"retry in {seconds} s" for seconds in ("0.02", "0.04", "0.08", "0.08", "0.08")]
    assert all(engine.killed and engine.stopped for engine in engines[:4])


async def test_a_start_that_takes_too_long_is_given_up_naming_the_setting() -> None:
    limits = SupervisorLimits(start_timeout_s=0.05, backoff_s=60)
    async with supervised(lambda: BareEngine(lambda: asyncio.sleep(60)), limits) as supervisor:
        await until(lambda: supervisor.status().state == "backing_off")
        assert "scheduler.start_timeout_s" in (supervisor.status().last_error or "")


async def test_stop_during_a_start_ends_the_engine() -> None:
    engine = BareEngine(lambda: asyncio.sleep(60))
    async with supervised(lambda: engine) as supervisor:
        await until(lambda: supervisor.status().stage == "loading")
        assert supervisor.status().fraction == 0.5
        await supervisor.stop(7)
        assert engine.stopped == [7]
        assert supervisor.status().state == "stopped"


async def test_stop_during_back_off_is_immediate() -> None:
    limits = SupervisorLimits(backoff_s=3600)
    async with supervised(lambda: BareEngine(failing_start), limits) as supervisor:
        await until(lambda: supervisor.status().state == "backing_off")
        async with asyncio.timeout(2):
            await supervisor.stop(1)


async def test_an_orderly_stop_does_not_kill_first() -> None:
    engine = BareEngine()
    async with supervised(lambda: engine) as supervisor:
        await ready(supervisor)
        await supervisor.stop(3)
        await supervisor.stop(3)
    assert (engine.killed, engine.stopped) == ([], [3])


async def test_cancelling_run_ends_the_engine_before_it_returns() -> None:
    engine = BareEngine()
    supervisor = Supervisor("chat/0", lambda: engine, FAST)
    task = asyncio.ensure_future(supervisor.run())
    await ready(supervisor)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.killed
    assert engine.stopped


async def test_a_fault_in_the_engine_itself_costs_that_start_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def bug() -> None:
        raise ZeroDivisionError("by nothing")

    engines: list[BareEngine] = []

    def factory() -> BareEngine:
        engines.append(BareEngine(bug))
        return engines[-1]

    async with supervised(factory) as supervisor:
        await until(lambda: len(engines) >= 2)
        assert supervisor.status().last_error == "ZeroDivisionError: by nothing"
        assert engines[0].stopped
    assert "ZeroDivisionError" in caplog.text


async def test_the_info_outlives_the_engine_while_a_new_one_starts() -> None:
    starts = iter([lambda: asyncio.sleep(0), lambda: asyncio.sleep(60)])
    async with supervised(lambda: BareEngine(next(starts))) as supervisor:
        (await ready(supervisor)).failure = EngineDied("gone")
        await until(lambda: supervisor.status().state == "starting")
        assert supervisor.info is not None
        assert supervisor.status().last_error == "gone"


async def test_a_renewed_engine_is_replaced_at_once_and_its_streams_raise_the_reason() -> None:
    limits = SupervisorLimits(backoff_s=3600)
    states: list[str] = []
    rules = (Rule(match=".*", answer="x" * 500, tokens_per_s=20),)
    async with supervised(
        lambda: ScriptedEngine(Script(rules=rules)), limits, on_change=lambda it: states.append(it.state)
    ) as supervisor:
        engine = await ready(supervisor)
        stream = engine.generate(request())
        await anext(stream)
        await supervisor.renew(EngineDied("its memory is wanted"))
        with pytest.raises(EngineDied, match="its memory is wanted"):
            async for _ in stream:
                pass
        assert await ready(supervisor) is not engine
        assert (supervisor.status().restarts, supervisor.status().last_error) == (1, None)
        assert "backing_off" not in states


async def test_a_renewal_that_is_cancelled_before_it_has_begun_leaves_the_engine_be() -> None:
    async with supervised(BareEngine) as supervisor:
        engine = await ready(supervisor)
        renewal = asyncio.create_task(supervisor.renew(EngineDied("again")))
        await asyncio.sleep(0)
        renewal.cancel()
        await asyncio.wait({renewal})
        looks = engine.looks
        await until(lambda: engine.looks >= looks + 2 or engine.killed)
        assert (supervisor.engine, engine.killed) == (engine, [])
        await supervisor.renew(EngineDied("again"))
        assert await ready(supervisor) is not engine


async def test_renewing_ends_with_a_start_that_fails_and_with_a_stop() -> None:
    starts = iter([lambda: asyncio.sleep(0), failing_start])
    async with supervised(lambda: BareEngine(next(starts)), SupervisorLimits(backoff_s=3600)) as supervisor:
        await ready(supervisor)
        await supervisor.renew(EngineDied("again"))
        assert (supervisor.state, supervisor.status().last_error) == ("backing_off", "the weights do not fit")
        await supervisor.renew(EngineDied("a fresh one is on its way"))
    starts = iter([lambda: asyncio.sleep(0), lambda: asyncio.sleep(60)])
    async with supervised(lambda: BareEngine(next(starts))) as supervisor:
        await ready(supervisor)
        renewal = asyncio.create_task(supervisor.renew(EngineDied("again")))
        await until(lambda: supervisor.status().stage == "loading" and supervisor.status().restarts == 1)
        await supervisor.stop(1)
        await renewal


async def test_what_each_stage_of_a_start_took_is_told_and_begins_anew_with_the_next_start() -> None:
    starts = 0

    async def start() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(0.05 if starts == 1 else 0)

    async with supervised(lambda: BareEngine(start)) as supervisor:
        first = await ready(supervisor)
        took = supervisor.status().start_s
        assert list(took) == ["loading"]
        assert took["loading"] >= 0.05
        first.failure = EngineDied("it died")
        await until(lambda: starts == 2 and supervisor.engine is not None)
        assert supervisor.status().start_s["loading"] < 0.05

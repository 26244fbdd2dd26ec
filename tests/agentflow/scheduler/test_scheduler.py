"""The scheduler against the scripted engine: admission, refusal, departure, death and drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentflow.config import SchedulerConfig
from agentflow.engine.protocol import GenerateRequest
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.errors import DeadlineExceeded, Draining, EngineDied, EngineUnavailable, QueueFull
from agentflow.messages import Caller, Sampling
from agentflow.run import Run, RunStatus
from agentflow.scheduler import Scheduler, Ticket
from agentflow.scheduler.pool import Pool

SLOW = Script(rules=(Rule(answer="x" * 100_000, tokens_per_s=200.0),))


def make_run(name: str, *, max_tokens: int = 5, priority: int = 0, deadline_s: float = 30.0, prompt: int = 4) -> Run:
    return Run(
        id=name,
        request_id=name,
        model="m",
        prompt_token_ids=[97] * prompt,
        sampling=Sampling(max_tokens=max_tokens),
        max_tokens=max_tokens,
        caller=Caller(),
        priority=priority,
        deadline_at=time.monotonic() + deadline_s,
    )


class Bench:
    """A scheduler with one pool, and every run that ended."""

    def __init__(self, scheduler: Scheduler, pool: Pool[Ticket], supervisors: tuple[Supervisor[Any], ...]) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.supervisors = supervisors
        self.ended: list[Run] = []

    async def answer(self, run: Run) -> str:
        (ticket,) = self.scheduler.submit(self.pool, [run])
        seat = await ticket.seat()
        return "".join([delta.text async for delta in seat.deltas()])


@asynccontextmanager
async def bench(*factories: Callable[[], ScriptedEngine], wait: bool = True, **config: Any) -> AsyncIterator[Bench]:
    ended: list[Run] = []
    scheduler = Scheduler(SchedulerConfig(**config), ended.append)
    supervisors = tuple(
        Supervisor(
            f"m/{number}",
            factory,
            SupervisorLimits(backoff_s=0.02, backoff_max_s=0.04),
            lambda _: scheduler.pump(scheduler.pools["m"]),
        )
        for number, factory in enumerate(factories)
    )
    it = Bench(scheduler, scheduler.add_pool("m", supervisors), supervisors)
    it.ended = ended
    async with asyncio.TaskGroup() as tasks:
        for supervisor in supervisors:
            tasks.create_task(supervisor.run())
            if wait:
                await ready(supervisor)
        try:
            yield it
        finally:
            scheduler.interrupt_all()
            for supervisor in supervisors:
                await supervisor.stop(1)


async def ready(supervisor: Supervisor[Any]) -> Any:
    """Its engine, once that takes work."""
    async with asyncio.timeout(5):
        while supervisor.engine is None:
            await asyncio.sleep(0.002)
    return supervisor.engine


def engine(max_running: int = 1, script: Script | None = None) -> Callable[[], ScriptedEngine]:
    return lambda: ScriptedEngine(script, max_running=max_running)


async def test_a_run_goes_through_and_its_record_tells_how() -> None:
    async with bench(engine()) as it:
        run = make_run("r", max_tokens=5)
        assert len(await it.answer(run)) == 5
        assert it.ended == [run]
        assert (run.status, run.reason, run.completion_tokens) == (RunStatus.FINISHED, "length", 5)
        assert run.engine_id == "m/0"
        assert run.arrived_at <= run.admitted_at <= run.first_token_at <= run.finished_at  # type: ignore[operator]
        assert (it.scheduler.running, it.scheduler.queued, it.scheduler.queued_tokens) == (0, 0, 0)


async def test_runs_wait_for_a_seat_and_the_more_urgent_goes_first() -> None:
    async with bench(engine(1, SLOW)) as it:
        order: list[str] = []

        async def go(name: str, priority: int) -> None:
            await it.answer(make_run(name, max_tokens=3, priority=priority))
            order.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name, priority in (("first", 0), ("late", 5), ("urgent", -5)):
                tasks.create_task(go(name, priority))
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (it.pool.running, it.scheduler.queued, it.scheduler.queued_tokens) == (1, 2, 8)
        assert order == ["first", "urgent", "late"]


async def test_two_engines_of_a_model_share_the_work() -> None:
    async with bench(engine(2, SLOW), engine(2, SLOW)) as it:
        runs = [make_run(str(number)) for number in range(4)]
        await asyncio.gather(*(it.answer(run) for run in runs))
        assert sorted(run.engine_id or "" for run in runs) == ["m/0", "m/0", "m/1", "m/1"]


async def test_all_engines_of_a_model_forget_a_prompt_and_one_that_is_dead_stops_none() -> None:
    engines: list[ScriptedEngine] = []

    def made() -> ScriptedEngine:
        engines.append(ScriptedEngine())
        return engines[-1]

    async with bench(made, made, made) as it:
        ids = list(range(64))
        for each in engines:
            async for _ in each.generate(GenerateRequest("r", [*ids, 1], Sampling(), 1, 0, "acme")):
                pass
        engines[1].kill()
        assert await it.scheduler.forget("m", ids, 20, "acme") == 2 * 48
        assert await it.scheduler.forget("m", ids, 0, "acme") == 2 * 16
        assert await it.scheduler.forget("m", ids, 0, "acme") == 0


async def test_a_full_queue_refuses_with_a_time_to_come_again_and_takes_all_or_nothing() -> None:
    async with bench(engine(1, SLOW), queue_limit=2) as it:
        it.scheduler.submit(it.pool, [make_run("seated"), make_run("waits")])
        with pytest.raises(QueueFull) as refusal:
            it.scheduler.submit(it.pool, [make_run("a"), make_run("b")])
        assert refusal.value.retry_after_s >= 1.0
        assert "1 requests wait, 2 may" in str(refusal.value)
        assert it.scheduler.queued == 1
        assert [(run.id, run.status, run.reason) for run in it.ended] == [
            ("a", RunStatus.REJECTED, "queue_full"),
            ("b", RunStatus.REJECTED, "queue_full"),
        ]
        it.scheduler.submit(it.pool, [make_run("fits")])
        assert it.scheduler.queued == 2


async def test_the_queue_is_bounded_in_tokens_too() -> None:
    async with bench(engine(1, SLOW), queue_tokens=100) as it:
        it.scheduler.submit(it.pool, [make_run("seated", prompt=1000)])
        it.scheduler.submit(it.pool, [make_run("waits", prompt=60)])
        with pytest.raises(QueueFull, match="120 prompt tokens would wait, 100 may"):
            it.scheduler.submit(it.pool, [make_run("too many", prompt=60)])


async def test_a_wait_that_would_pass_the_deadline_is_refused_at_once() -> None:
    async with bench(engine(1, SLOW)) as it:
        it.pool.estimate.observe(20.0)
        it.scheduler.submit(it.pool, [make_run("seated", max_tokens=10_000)])
        with pytest.raises(QueueFull, match="longer than this request's deadline"):
            it.scheduler.submit(it.pool, [make_run("hurried", deadline_s=5.0)])


async def test_a_deadline_that_passes_in_the_queue_ends_the_run() -> None:
    async with bench(engine(1, SLOW)) as it:
        it.scheduler.submit(it.pool, [make_run("seated", max_tokens=10_000)])
        with pytest.raises(DeadlineExceeded, match="which was its deadline"):
            await it.answer(make_run("late", deadline_s=0.05))
        assert [(run.id, run.reason) for run in it.ended] == [("late", "deadline_exceeded")]
        assert it.scheduler.queued_tokens == 0


async def test_a_run_that_comes_while_the_engine_loads_waits_for_it() -> None:
    async with bench(engine(1, Script(start_s=0.2)), wait=False) as it:
        run = make_run("early")
        assert len(await it.answer(run)) == 5
        assert run.status is RunStatus.FINISHED


async def test_a_deadline_that_passes_while_the_engine_loads_says_so() -> None:
    async with bench(engine(1, Script(start_s=5.0)), wait=False) as it:
        with pytest.raises(EngineUnavailable, match="still loading"):
            await it.answer(make_run("early", deadline_s=0.05))


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    async with bench(engine(1, SLOW)) as it:
        it.scheduler.submit(it.pool, [make_run("seated", max_tokens=10_000)])
        waiting = asyncio.create_task(it.answer(make_run("leaves")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (it.scheduler.queued, it.scheduler.queued_tokens) == (0, 0)
        assert [(run.id, run.status, run.reason) for run in it.ended] == [("leaves", RunStatus.ABORTED, "client_gone")]


async def test_a_client_that_leaves_in_the_instant_of_being_seated_gives_the_seat_back() -> None:
    async with bench(engine(1, SLOW)) as it:
        (first,) = it.scheduler.submit(it.pool, [make_run("first")])
        second = asyncio.create_task(it.answer(make_run("second")))
        await asyncio.sleep(0)
        first.cancel("client_gone")  # seats `second`, whose task has not run since
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert it.scheduler.running == 0
        assert await it.answer(make_run("third", max_tokens=2)) == "xx"


async def test_closing_the_deltas_aborts_the_engine_and_seats_the_next() -> None:
    async with bench(engine(1, SLOW)) as it:
        (ticket,) = it.scheduler.submit(it.pool, [make_run("leaves", max_tokens=10_000)])
        deltas = (await ticket.seat()).deltas()
        assert (await anext(deltas)).text == "x"
        await deltas.aclose()
        assert (await ready(it.supervisors[0])).stats().outstanding == 0
        assert it.ended[0].status is RunStatus.ABORTED
        assert await it.answer(make_run("next", max_tokens=2)) == "xx"


async def test_a_reader_that_has_not_read_the_end_holds_no_seat() -> None:
    async with bench(engine(1)) as it:
        (ticket,) = it.scheduler.submit(it.pool, [make_run("slow reader", max_tokens=1)])
        deltas = (await ticket.seat()).deltas()
        last = await anext(deltas)
        assert last.finish_reason == "length"
        assert it.scheduler.running == 0
        await deltas.aclose()
        assert [run.status for run in it.ended] == [RunStatus.FINISHED]


async def test_when_the_engine_dies_its_runs_fail_and_the_next_engine_takes_over() -> None:
    async with bench(engine(4, SLOW)) as it:
        runs = [make_run(str(number), max_tokens=10_000) for number in range(3)]
        answers = [asyncio.create_task(it.answer(run)) for run in runs]
        await asyncio.sleep(0.05)
        (await ready(it.supervisors[0])).kill()
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(result) for result in results] == [EngineDied] * 3
        assert {(run.status, run.reason) for run in runs} == {(RunStatus.FAILED, "engine_died")}
        assert it.pool.running == 0
        assert await it.answer(make_run("after", max_tokens=2)) == "xx"


async def test_an_engine_that_does_not_come_back_trips_the_pool() -> None:
    async with bench(engine(1, Script(fail_start="no such device")), wait=False) as it:
        with pytest.raises(EngineUnavailable, match="no such device"):
            await it.answer(make_run("waits", deadline_s=20))
        with pytest.raises(EngineUnavailable, match="no such device"):
            it.scheduler.submit(it.pool, [make_run("refused at once")])


async def test_the_capacity_is_what_submit_would_take() -> None:
    async with bench(engine(2, SLOW), queue_limit=3, queue_tokens=100) as it:
        free = it.scheduler.capacity(it.pool)
        assert (free.requests, free.requests_free, free.tokens, free.tokens_free) == (5, 5, 100, 100)
        for left in range(4, -1, -1):
            it.scheduler.submit(it.pool, [make_run(str(left), max_tokens=10_000)])
            for told in (it.scheduler.capacity(it.pool), it.scheduler.capacity(None)):
                assert (told.requests, told.requests_free) == (5, left)
        with pytest.raises(QueueFull):
            it.scheduler.submit(it.pool, [make_run("one too many")])
        assert it.scheduler.capacity(it.pool).tokens_free == 100 - 3 * 4


async def test_while_no_engine_is_ready_only_the_queue_has_capacity() -> None:
    async with bench(engine(2, Script(start_s=60)), wait=False, queue_limit=3) as it:
        assert it.scheduler.capacity(it.pool).requests_free == 3
    async with bench(engine(2, SLOW), queue_limit=3) as it:
        (await ready(it.supervisors[0])).kill()
        told = it.scheduler.capacity(it.pool)
        assert (told.requests, told.requests_free) == (5, 3)


async def test_a_tripped_pool_has_no_capacity_and_says_when_to_come_again() -> None:
    async with bench(engine(1, Script(fail_start="no such device")), wait=False) as it:
        with pytest.raises(EngineUnavailable) as refusal:
            await it.answer(make_run("waits", deadline_s=20))
        for told in (it.scheduler.capacity(it.pool), it.scheduler.capacity(None)):
            assert (told.requests_free, told.tokens_free) == (0, 0)
            assert told.requests_reset_s == told.tokens_reset_s == refusal.value.retry_after_s


async def test_while_it_drains_there_is_no_capacity_for_any_model() -> None:
    async with bench(engine(8, SLOW)) as it:
        await it.scheduler.drain(1)
        with pytest.raises(Draining) as refusal:
            it.scheduler.submit(it.pool, [make_run("new")])
        for told in (it.scheduler.capacity(it.pool), it.scheduler.capacity(None)):
            assert (told.requests_free, told.tokens_free) == (0, 0)
            assert told.requests_reset_s == told.tokens_reset_s == refusal.value.retry_after_s


async def test_a_drain_lets_what_was_accepted_finish_and_takes_nothing_new() -> None:
    async with bench(engine(1, SLOW)) as it:
        answers = [asyncio.create_task(it.answer(make_run(str(number), max_tokens=5))) for number in range(3)]
        await asyncio.sleep(0.01)
        drain = asyncio.create_task(it.scheduler.drain(10))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            it.scheduler.submit(it.pool, [make_run("new")])
        assert await asyncio.gather(*answers) == ["xxxxx"] * 3
        await drain


async def test_a_drain_that_runs_out_of_time_interrupts_what_is_left() -> None:
    async with bench(engine(1, SLOW)) as it:
        answers = [asyncio.create_task(it.answer(make_run(str(number), max_tokens=10_000))) for number in range(2)]
        await asyncio.sleep(0.01)
        await it.scheduler.drain(0.05)
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(result) for result in results] == [Draining, Draining]
        assert [(run.id, run.status) for run in it.ended] == [("1", RunStatus.REJECTED), ("0", RunStatus.ABORTED)]
        assert (it.scheduler.running, it.scheduler.queued) == (0, 0)

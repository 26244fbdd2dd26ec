"""What is done to engines beside work: long prompts kept out, memory given back, engines had afresh."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agentflow.config import SchedulerConfig
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.scripted_embedder import ScriptedEmbedder
from agentflow.errors import EngineDied, LongPromptRefused
from agentflow.run import Run, RunStatus
from agentflow.scheduler.upkeep import Upkeep
from tests.agentflow.scheduler.test_poolwatch import cached, leave, prompt, until_kept
from tests.agentflow.scheduler.test_scheduler import Bench, bench, engine, make_run, ready

WHY = "The GPU's memory runs short."
SLOW = Script(rules=(Rule(answer="x" * 10_000, tokens_per_s=100.0),))


def upkeep_of(it: Bench) -> Upkeep:
    return Upkeep(SchedulerConfig(), it.scheduler)


async def test_a_long_prompt_is_refused_while_there_is_a_limit_and_a_short_one_passes() -> None:
    async with bench(engine()) as it:
        upkeep = upkeep_of(it)
        upkeep.limit_prompts(100, WHY)
        assert upkeep.prompt_limit == 100
        with pytest.raises(LongPromptRefused) as caught:
            it.scheduler.submit(it.pool, [make_run("short", prompt=100), make_run("long", prompt=101)])
        assert str(caught.value) == (
            "The GPU's memory runs short. Until it has room again, prompts of more than 100 tokens are not taken, and this one "
            "has 101. Send a shorter one, or try again in 30 s."
        )
        assert caught.value.retry_after_s == 30.0
        assert [(run.status, run.reason) for run in it.ended] == [(RunStatus.REJECTED, "long_prompt_refused")] * 2
        assert await it.answer(make_run("short", prompt=100))
        upkeep.limit_prompts(None)
        assert upkeep.prompt_limit is None
        assert await it.answer(make_run("long", prompt=101))


async def test_what_was_begun_goes_on_and_texts_are_embedded_under_a_limit() -> None:
    async with bench(engine()) as it:
        upkeep_of(it).limit_prompts(100, WHY)
        later = make_run("later step", prompt=5000)
        later.continues = True
        texts = make_run("texts", prompt=5000)
        texts.kind = "embed"
        for run in (later, texts):
            (ticket,) = it.scheduler.submit(it.pool, [run])
            (await ticket.seat()).release(RunStatus.FINISHED, "stop")


async def test_memory_is_given_back_but_for_what_is_in_use() -> None:
    async with bench(lambda: ScriptedEngine(SLOW), ScriptedEmbedder) as it, asyncio.TaskGroup() as tasks:  # type: ignore[arg-type, return-value]
        upkeep = upkeep_of(it)
        upkeep.prefixes.start(tasks)
        for number in range(3):
            await leave(it, upkeep, prompt(number))
        working = make_run("r", prompt=64, max_tokens=1000)
        (ticket,) = it.scheduler.submit(it.pool, [working])
        deltas = (await ticket.seat()).deltas()
        await anext(deltas)
        assert await upkeep.free_memory() == 3 * 96
        await until_kept(upkeep, 0)
        assert [await cached(it, prompt(number)) for number in range(3)] == [0, 0, 0]
        await deltas.aclose()
        upkeep.prefixes.stop()


async def test_one_engine_that_fails_to_give_back_keeps_no_other_from_it() -> None:
    class Unwilling(ScriptedEngine):
        async def free_memory(self) -> int:
            raise EngineDied("gone")

    async with bench(Unwilling, ScriptedEngine) as it:
        second = it.supervisors[1].engine
        assert second is not None
        assert [delta async for delta in second.generate(_request(prompt(1)))]
        assert await upkeep_of(it).free_memory() == 96


def _request(ids: list[int]) -> Any:
    from agentflow.engine.protocol import GenerateRequest
    from agentflow.messages import Sampling

    return GenerateRequest("r", [*ids, 5], Sampling(), 1, 0, "acme")


async def test_a_restart_lets_what_runs_end_and_who_waits_goes_on_waiting() -> None:
    async with bench(engine(1, SLOW)) as it:
        upkeep, before = upkeep_of(it), it.supervisors[0].engine
        running = asyncio.create_task(it.answer(first := make_run("running", max_tokens=30)))
        await _begun(first)
        restart = asyncio.create_task(upkeep.restart_engines("its memory is to be had again", 30))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(it.answer(second := make_run("waiting", max_tokens=2)))
        assert len(await running) == 30
        assert len(await waiting) == 2
        await restart
        assert [(run.status, run.reason) for run in (first, second)] == [(RunStatus.FINISHED, "length")] * 2
        assert second.admitted_at > first.finished_at  # type: ignore[operator]
        assert it.supervisors[0].engine is not before
        status = it.supervisors[0].status()
        assert (status.state, status.restarts, status.last_error) == ("ready", 1, None)


async def test_what_runs_longer_than_the_drain_ends_with_the_reason() -> None:
    async with bench(engine(1, SLOW)) as it:
        running = asyncio.create_task(it.answer(run := make_run("running", max_tokens=5000)))
        await _begun(run)
        began = time.monotonic()
        await upkeep_of(it).restart_engines("the GPU's memory ran out", 0.1)
        assert time.monotonic() - began > 0.1
        with pytest.raises(EngineDied, match="the GPU's memory ran out"):
            await running
        assert (run.status, run.reason) == (RunStatus.FAILED, "engine_died")
        assert await it.answer(make_run("next", max_tokens=2))


async def test_several_engines_of_a_model_are_replaced_one_after_the_other() -> None:
    built: list[ScriptedEngine] = []

    def factory() -> ScriptedEngine:
        assert sum(each.failure is None for each in built) < 2
        built.append(ScriptedEngine())
        return built[-1]

    async with bench(factory, factory) as it:
        before = [each.engine for each in it.supervisors]
        restart = asyncio.create_task(upkeep_of(it).restart_engines("memory", 1))
        while not restart.done():
            assert it.pool.ready
            await asyncio.sleep(0.002)
        after = [await ready(each) for each in it.supervisors]
        assert not set(map(id, before)) & set(map(id, after))
        assert len(built) == 4


async def test_one_that_is_cancelled_lets_the_engine_work_on() -> None:
    async with bench(engine(2, SLOW)) as it:
        running = asyncio.create_task(it.answer(run := make_run("running", max_tokens=40)))
        await _begun(run)
        restart = asyncio.create_task(upkeep_of(it).restart_engines("memory", 30))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(it.answer(make_run("waiting", max_tokens=2)))
        await asyncio.sleep(0)
        assert it.scheduler.queued == 1
        restart.cancel()
        assert len(await waiting) == 2
        assert len(await running) == 40
        assert it.supervisors[0].status().restarts == 0


async def test_an_engine_in_the_daemon_itself_and_one_that_is_not_ready_are_left_alone() -> None:
    class InTheDaemon(ScriptedEngine):
        async def start(self, progress: Any) -> Any:
            from msgspec.structs import replace

            return replace(await super().start(progress), name="encoder")

    async with bench(InTheDaemon) as it:
        before = it.supervisors[0].engine
        await upkeep_of(it).restart_engines("memory", 1)
        assert it.supervisors[0].engine is before
    async with bench(lambda: ScriptedEngine(Script(start_s=60)), wait=False) as it:
        await upkeep_of(it).restart_engines("memory", 1)
        assert it.supervisors[0].status().restarts == 0


async def _begun(run: Run) -> None:
    async with asyncio.timeout(5):
        while run.first_token_at is None:
            await asyncio.sleep(0.002)

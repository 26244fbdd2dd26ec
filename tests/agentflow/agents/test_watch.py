"""What a watcher hears of a run: each part once, when it is over, with the log's times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.agents.journal import MemoryJournal
from agentflow.agents.live import LiveRun
from agentflow.agents.record import (
    Began,
    CallEnded,
    CallStarted,
    Ended,
    Event,
    Routed,
    Said,
    StepBegan,
    StepEnded,
)
from agentflow.agents.watch import CallOver, RunLeft, RunOver, RunSeen, StepOver, Watched
from agentflow.errors import Draining
from agentflow.messages import Caller, Tool
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import BodyTool, benched, call, request

BEGAN = Began(agent="a", model="m", messages=(), tools=(Tool("add"),), tool_format="hermes", prompt=[1], trace="t")
STEP = StepBegan(step=0, model="m", routed=Routed(route="reason", reasons=("no tool fits",)))
STEPPED = StepEnded(reason="stop", prompt_tokens=7, cached_tokens=3, completion_tokens=2, ttft_s=0.5)
END = Ended(end="completed", why="stop")


def said(text: str) -> Said:
    return Said(ids=[1], text=text)


def kinds(heard: list[Watched]) -> list[str]:
    return [type(part).__name__ for part in heard]


def calls(heard: list[Watched]) -> list[CallOver]:
    return [part for part in heard if isinstance(part, CallOver)]


async def watched(*events: Event, before: tuple[Event, ...] = ()) -> list[Watched]:
    """What is heard of `events`, after `before`, which the log had."""
    live = LiveRun("run_1", "t", MemoryJournal(), [BEGAN, *before])
    heard: list[Watched] = []
    live.watched(heard.append)
    for event in events:
        await live.tell(event)
    return heard


async def test_a_step_is_told_with_what_was_measured_and_said() -> None:
    seen, step, run = await watched(STEP, said("Hi"), said(" you."), STEPPED, END)
    assert isinstance(seen, RunSeen)
    assert isinstance(step, StepOver)
    assert (step.number, step.model, step.text) == (0, "m", "Hi you.")
    assert step.routed == STEP.routed
    assert step.measured is not None
    assert (step.measured.prompt_tokens, step.measured.ttft_s) == (7, 0.5)
    assert 0 < step.began_ms <= step.ended_ms
    assert isinstance(run, RunOver)
    assert (run.run_id, run.run, run.end, run.why, run.steps, run.calls) == ("run_1", BEGAN, "completed", "stop", 1, 0)


async def test_a_call_lasts_from_its_start_to_its_result() -> None:
    text = call("add", '{"a": 1}')
    started = CallStarted(call_id="call_10000", name="add", arguments='{"a": 1}', idempotent=True)
    heard = await watched(STEP, said(text), STEPPED, started, CallEnded(call_id="call_10000", text="2", seconds=0.25))
    (over,) = calls(heard)
    assert (over.name, over.known, over.outcome, over.seconds) == ("add", True, "ok", 0.25)
    assert (over.arguments, over.result) == ('{"a": 1}', "2")


async def test_a_call_that_is_not_made_is_refused_and_one_that_fails_is_an_error() -> None:
    text = call("made-up") + call("add")
    started = CallStarted(call_id="call_10001", name="add", arguments="{}", idempotent=True)
    heard = await watched(
        STEP,
        said(text),
        STEPPED,
        CallEnded(call_id="call_10000", text="There is no tool.", is_error=True),
        started,
        CallEnded(call_id="call_10001", text="It is broken.", is_error=True),
    )
    assert [(over.name, over.known, over.outcome) for over in calls(heard)] == [
        ("made-up", False, "refused"),
        ("add", True, "error"),
    ]


async def test_a_call_that_nobody_understands_is_malformed() -> None:
    (over,) = calls(await watched(STEP, said("<tool_call>{nonsense</tool_call>"), STEPPED))
    assert (over.known, over.outcome) == (False, "malformed")


@pytest.mark.parametrize("before", [0, 5])
async def test_a_result_that_is_fetched_again_or_marked_as_old_is_no_other_call(before: int) -> None:
    started = CallStarted(call_id="call_10000", name="add", arguments="{}", idempotent=True)
    log = (
        *(STEP, said(call("add")), started, CallEnded(call_id="call_10000", text="2"), STEPPED),
        *(CallEnded(call_id="call_10000", text="(old) 2"), replace(started, attempt=2)),
        *(CallEnded(call_id="call_10000", text="3"), replace(started, attempt=3), END),
    )
    heard = await watched(*log[before:], before=log[:before])
    assert [(over.outcome, over.result) for over in calls(heard)] == ([] if before else [("ok", "2")])
    assert kinds(heard)[-1] == "RunOver"


async def test_what_is_under_way_at_the_end_is_cut() -> None:
    started = CallStarted(call_id="call_10000", name="add", arguments="{}", idempotent=True)
    heard = await watched(STEP, said(call("add")), started, Ended(end="cancelled", why="cancelled"))
    assert kinds(heard) == ["RunSeen", "StepOver", "CallOver", "RunOver"]
    step, over = heard[1], heard[2]
    assert isinstance(step, StepOver)
    assert step.measured is None
    assert isinstance(over, CallOver)
    assert (over.outcome, over.name) == ("cut", "add")


async def test_a_run_that_is_taken_up_tells_what_was_not_over_from_its_beginning() -> None:
    started = CallStarted(call_id="call_10000", name="add", arguments="{}", idempotent=True, at=20)
    before = (replace(STEP, at=10), said(call("add")), replace(STEPPED, at=15), started)
    again = replace(started, attempt=2)
    heard = await watched(again, CallEnded(call_id="call_10000", text="2"), before=before)
    assert kinds(heard) == ["RunSeen", "CallOver"]  # the step was told by whoever saw it end
    assert heard[1].began_ms == 20
    heard = await watched(STEPPED, before=before[:2])
    assert kinds(heard) == ["RunSeen", "StepOver"]
    assert heard[1].began_ms == 10


async def test_a_run_that_is_left_is_told_once_and_one_that_ended_is_not_left() -> None:
    live = LiveRun("run_1", "t", MemoryJournal(), [BEGAN])
    heard: list[Watched] = []
    live.watched(heard.append)
    live.leave(Draining("Bye.", retry_after_s=1.0))
    live.leave(Draining("Bye.", retry_after_s=1.0))
    assert [type(part) for part in heard] == [RunSeen, RunLeft]
    live = LiveRun("run_1", "t", MemoryJournal(), [BEGAN])
    heard.clear()
    live.watched(heard.append)
    await live.tell(END)
    live.leave(Draining("Bye.", retry_after_s=1.0))
    assert kinds(heard) == ["RunSeen", "RunOver"]


async def test_a_service_tells_of_its_runs(tmp_path: Path) -> None:
    async def add(arguments: dict[str, Any], _: CallContext) -> str:
        return str(arguments["a"] + 20)

    heard: list[Watched] = []
    rules = {"21": "So it is 21.", "sum": "Let me see." + call("add", '{"a": 1}')}
    agent = AgentConfig(tools=("*",), limits=AgentLimits(steps=5))
    async with benched(tmp_path, rules, [BodyTool("add", add)], agent, watcher=heard.append) as it:
        await it.ask("the sum, please")
    assert kinds(heard) == ["RunSeen", "StepOver", "CallOver", "StepOver", "RunOver"] or kinds(heard) == [
        "RunSeen",
        "CallOver",
        "StepOver",
        "StepOver",
        "RunOver",
    ]  # the tool may be done before the model is
    assert [part.text for part in heard if isinstance(part, StepOver)] == ["Let me see.", "So it is 21."]
    run = heard[-1]
    assert isinstance(run, RunOver)
    assert (run.end, run.steps, run.calls) == ("completed", 2, 1)


async def test_a_run_that_is_taken_up_is_a_part_of_the_same_trace(tmp_path: Path) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    async def wait(_: dict[str, Any], __: CallContext) -> str:
        begun.set()
        await free.wait()
        return "over"

    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    rules = {"over": "Done.", "go": call("wait")}
    tools = [BodyTool("wait", wait, idempotent=True)]
    before: list[Watched] = []
    async with benched(tmp_path, rules, tools, plane=plane, watcher=before.append) as it:
        await it.service.chat(request("go", caller=Caller(trace="a trace")))
        await begun.wait()
    assert kinds(before) == ["RunSeen", "StepOver", "RunLeft"] or kinds(before) == ["RunSeen", "RunLeft"]
    free.set()
    after: list[Watched] = []
    async with benched(tmp_path, rules, tools, plane=plane, watcher=after.append) as it:
        assert await it.service.agents.resume() == 1
        await it.service.agents.drain()
    await plane.close()
    (over,) = calls(after)
    assert over.outcome == "ok"
    assert isinstance(after[-1], RunOver)
    assert {(part.run_id, part.run.trace) for part in before + after} == {(before[0].run_id, "a trace")}
    assert after[-1].end == "completed"

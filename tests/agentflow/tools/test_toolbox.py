"""The toolbox: whatever a tool does, its own call alone has to do with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentflow import messages
from agentflow.tools.errors import (
    InvalidArguments,
    InvalidTool,
    ToolDied,
    ToolFailed,
    ToolUnavailable,
    UnknownHandle,
    UnknownTool,
)
from agentflow.tools.handles import HandleLimits, HandleStore
from agentflow.tools.tool import CallContext, ToolOutput
from agentflow.tools.toolbox import CallId, Toolbox
from tests.agentflow.tools.doing import Doing, call, files, giving, hangs, raising, says
from tests.agentflow.tools.shelves import found

# What there is


def test_two_tools_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTool, match="Two tools are called tool"):
        Toolbox([Doing(says), Doing(says)], HandleStore(tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "no spaces"},
        {"name": ""},
        {"concurrency": 0},
        {"timeout_s": 0.0},
        {"retries": -1},
        {"result_bytes": 0},
        {"parameters": {"type": "array"}},
        {"parameters": {"properties": {"a": {"type": "number of days"}}}},
    ],
)
def test_a_tool_that_cannot_be_called_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidTool, match=wrong.get("name") or "tool"):
        Toolbox([Doing(says, **wrong)], HandleStore(tmp_path))


def test_tools_are_offered_by_name_and_by_how_their_names_begin(tmp_path: Path) -> None:
    names = ("files_read", "files_write", "web")
    box = Toolbox([Doing(says, name, description=name.upper()) for name in names], HandleStore(tmp_path))
    empty = {"type": "object", "properties": {}}
    assert tuple(spec.offered for spec in box.specs(["web", "files_*", "web", "x*"])) == (
        messages.Tool("web", "WEB", empty),
        messages.Tool("files_read", "FILES_READ", empty),
        messages.Tool("files_write", "FILES_WRITE", empty),
    )
    assert [spec.name for spec in box.specs()] == list(names)
    with pytest.raises(UnknownTool, match=r"no tool 'files_red'. Did you mean 'files_read'"):
        box.specs(["files_red"])


def test_a_call_of_an_unknown_tool_names_the_nearest(tmp_path: Path) -> None:
    box = Toolbox([Doing(says, "weather")], HandleStore(tmp_path))
    with pytest.raises(UnknownTool, match="Did you mean 'weather'"):
        box.prepare("ann", "get_weather", "{}")
    with pytest.raises(UnknownTool, match="^There is no tool 'zzz'.$"):
        box.prepare("ann", "zzz", "{}")


# Arguments


async def test_arguments_are_checked_coerced_and_given(tmp_path: Path) -> None:
    box = Toolbox([Doing(says, parameters={"properties": {"days": {"type": "integer"}}})], HandleStore(tmp_path))
    prepared = box.prepare("ann", "tool", '"{\\"days\\": \\"3\\"}"')
    assert (prepared.spec.name, prepared.arguments, prepared.coerced) == ("tool", {"days": 3}, ('days: "3" read as 3',))
    with pytest.raises(InvalidArguments, match="days must be integer"):
        box.prepare("ann", "tool", '{"days": "x"}')
    with pytest.raises(InvalidArguments, match=r"no JSON: .*Give one JSON object. Fields: days \(integer\)."):
        box.prepare("ann", "tool", '{"days": 3')
    assert (await call(box)).text == "{}"


async def test_a_handle_as_an_argument_arrives_as_content_at_any_depth(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await handles.keep("ann", "run-0", b"megabytes", "text/plain")
    parameters = {"properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x"]}}}}
    box = Toolbox([Doing(says, parameters=parameters)], handles)
    outcome = await call(box, json.dumps({"a": handle, "b": ["x", handle], "c": {"d": handle}, "e": f"see {handle}"}))
    assert json.loads(outcome.text) == {
        "a": "megabytes",
        "b": ["x", "megabytes"],
        "c": {"d": "megabytes"},
        "e": f"see {handle}",
    }


async def test_handles_in_a_list_that_was_written_as_a_text_arrive_as_content(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await handles.keep("ann", "run-0", b"megabytes", "text/plain")
    parameters = {"properties": {"b": {"type": "array", "items": {"type": "string"}}}}
    box = Toolbox([Doing(says, parameters=parameters)], handles)
    outcome = await call(box, json.dumps({"b": json.dumps(["x", handle])}))
    assert json.loads(outcome.text) == {"b": ["x", "megabytes"]}


async def test_a_handle_of_another_tenant_is_unknown(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await handles.keep("bob", "run-0", b"bob's", "text/plain")
    box = Toolbox([Doing(says)], handles)
    with pytest.raises(UnknownHandle, match="nothing under the handle"):
        box.prepare("ann", "tool", json.dumps({"a": handle}))


async def test_contents_are_held_until_the_call_is_over_or_dropped(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path, HandleLimits(tenant_results=1))
    handle = await handles.keep("ann", "run-0", b"kept", "text/plain")
    box = Toolbox([Doing(says, parameters={"properties": {"b": {"type": "integer"}}})], handles)

    async def is_held() -> bool:
        try:
            await handles.keep("ann", "run-0", b"next", "text/plain")
        except ToolFailed:
            return True
        return False

    prepared = box.prepare("ann", "tool", json.dumps({"a": [handle, handle]}))
    assert await is_held()
    await box.run(prepared, CallId("ann", "run-1", "call-1"), 10)
    box.drop(prepared)
    with pytest.raises(InvalidArguments):
        box.prepare("ann", "tool", json.dumps({"a": handle, "b": "x"}))
    dropped = box.prepare("ann", "tool", json.dumps({"a": handle}))
    assert await is_held()
    box.drop(dropped)
    assert not await is_held()


# Failures


@pytest.mark.parametrize("garbage", [None, "text", {"content": "x"}, ToolOutput(b"bytes"), ToolOutput(None)])  # type: ignore[arg-type]
async def test_garbage_is_an_error_of_the_call(tmp_path: Path, garbage: object) -> None:
    outcome = await call(Toolbox([Doing(giving(garbage))], HandleStore(tmp_path)))
    assert (outcome.text, outcome.is_error) == ("tool gave a result that cannot be used.", True)


@pytest.mark.parametrize("error", [ValueError("password"), SystemExit(3), TimeoutError("password"), BaseException()])
async def test_what_a_tool_raises_is_logged_and_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    outcome = await call(Toolbox([Doing(raising(error), idempotent=True)], HandleStore(tmp_path)))
    assert (outcome.text, outcome.is_error, outcome.attempts) == ("tool failed.", True, 1)
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is error


async def test_a_tool_that_cancels_itself_fails_alone(tmp_path: Path) -> None:
    async def cancels(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)
        raise AssertionError

    for does in (raising(asyncio.CancelledError()), cancels):
        outcome = await call(Toolbox([Doing(does)], HandleStore(tmp_path)))
        assert (outcome.text, outcome.is_error) == ("tool gave up.", True)


async def test_what_a_tool_says_in_an_error_is_told_and_bounded(tmp_path: Path) -> None:
    outcome = await call(Toolbox([Doing(raising(ToolFailed("no such city")))], HandleStore(tmp_path)))
    assert (outcome.text, outcome.is_error) == ("no such city", True)
    outcome = await call(Toolbox([Doing(raising(ToolFailed("é" * 9000)), result_bytes=10)], HandleStore(tmp_path)))
    assert outcome.text == "ééééé..."


async def test_a_tool_that_takes_too_long_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = await call(Toolbox([Doing(hangs, timeout_s=0.05)], HandleStore(tmp_path)))
    assert (outcome.is_error, outcome.attempts, files(tmp_path)) == (True, 1, [])
    assert outcome.text == "tool took longer than 0.05 s and was ended."
    outcome = await call(Toolbox([Doing(hangs, timeout_s=30)], HandleStore(tmp_path)), within_s=0.05)
    assert outcome.text == "tool took longer than 0.05 s and was ended."


async def test_a_cancellation_in_mid_call_ends_the_tool_and_leaves_nothing(tmp_path: Path) -> None:
    tool = Doing(hangs, concurrency=1)
    handles = HandleStore(tmp_path)
    box = Toolbox([tool], handles)
    handle = await handles.keep("ann", "run-0", b"given", "text/plain")
    calling = asyncio.ensure_future(call(box, json.dumps({"a": handle})))
    while not tool.contexts:
        await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert files(tmp_path) == [found(handles, "ann", handle).path]
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("tool ")] == []
    await handles.forget("ann", "run-0")
    assert files(tmp_path) == []


async def test_a_tool_that_is_done_again_is_called_with_the_same_key_until_it_succeeds(tmp_path: Path) -> None:
    async def second(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        arguments["seen"] = True
        if len(tool.contexts) < 3:
            context.result_path.write_bytes(b"half")
            raise ToolDied("its process ended")
        return ToolOutput(str(arguments["n"]))

    tool = Doing(second, idempotent=True, retries=2)
    outcome = await call(Toolbox([tool], HandleStore(tmp_path)), '{"n": 7}')
    assert (outcome.text, outcome.is_error, outcome.attempts, files(tmp_path)) == ("7", False, 3, [])
    assert {context.key for context in tool.contexts} == {"run-1/call-1"}
    assert len({context.result_path for context in tool.contexts}) == 3


async def test_what_took_too_long_is_tried_again_where_it_does_no_harm(tmp_path: Path) -> None:
    async def once(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        return await (hangs if len(tool.contexts) == 1 else says)(arguments, context)

    tool = Doing(once, idempotent=True, timeout_s=0.05)
    outcome = await call(Toolbox([tool], HandleStore(tmp_path)))
    assert (outcome.text, outcome.attempts, files(tmp_path)) == ("{}", 2, [])


async def test_a_run_that_is_out_of_time_calls_no_tool(tmp_path: Path) -> None:
    tool = Doing(says)
    outcome = await call(Toolbox([tool], HandleStore(tmp_path)), within_s=-1.0)
    assert (outcome.text, outcome.is_error, tool.contexts) == ("The run has no time left to call tool.", True, [])


@pytest.mark.parametrize(
    ("error", "spec", "attempts"),
    [
        (ToolUnavailable("gone"), {"idempotent": True, "retries": 1}, 2),
        (ToolFailed("busy", again=True), {"idempotent": True, "retries": 0}, 1),
        (ToolFailed("busy", again=True), {"idempotent": False, "retries": 5}, 1),
        (ToolFailed("no", again=False), {"idempotent": True, "retries": 5}, 1),
    ],
)
async def test_only_what_may_and_can_succeed_is_tried_again(
    tmp_path: Path, error: Exception, spec: dict[str, Any], attempts: int
) -> None:
    tool = Doing(raising(error), **spec)
    outcome = await call(Toolbox([tool], HandleStore(tmp_path)))
    assert (outcome.text, outcome.attempts, len(tool.contexts)) == (str(error), attempts, attempts)


async def test_no_pause_goes_beyond_the_runs_bound(tmp_path: Path) -> None:
    tool = Doing(raising(ToolUnavailable("gone")), idempotent=True, retries=50)
    outcome = await call(Toolbox([tool], HandleStore(tmp_path)), within_s=0.05)
    assert (outcome.attempts, outcome.text) == (1, "gone")


async def test_waiting_for_a_place_counts_and_says_so(tmp_path: Path) -> None:
    box = Toolbox([Doing(hangs, concurrency=1, timeout_s=0.1)], HandleStore(tmp_path))
    first = asyncio.ensure_future(call(box))
    await asyncio.sleep(0)
    second = await call(box, within_s=0.05)
    assert second.is_error
    assert second.text.startswith("tool is busy: none of its 1 places came free in")
    assert "took longer" in (await first).text


async def test_calls_that_are_under_way_count_still_when_the_same_tool_is_there_anew(tmp_path: Path) -> None:
    box = Toolbox([Doing(hangs, concurrency=1, timeout_s=0.1)], HandleStore(tmp_path))
    first = asyncio.ensure_future(call(box))
    await asyncio.sleep(0)
    box.renew([Doing(says, concurrency=1, timeout_s=0.1)])
    assert "is busy" in (await call(box, within_s=0.05)).text
    box.renew([Doing(says, concurrency=2, timeout_s=0.1)])  # another tool, whose calls are its own
    assert (await call(box, within_s=0.05)).text == "{}"
    assert "took longer" in (await first).text


async def test_a_call_whose_result_could_not_be_kept_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "handles").write_text("in the way")
    box = Toolbox([Doing(says, concurrency=1)], HandleStore(tmp_path / "handles"))
    outcome = await call(box)
    assert (outcome.text, outcome.is_error) == ("Results cannot be kept on this machine now.", True)
    (tmp_path / "handles").unlink()
    assert (await call(box, within_s=1.0)).text == "{}"


async def test_a_tool_never_runs_more_often_at_once_than_it_may(tmp_path: Path) -> None:
    running, most = 0, 0

    async def counts(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ToolOutput("done")

    box = Toolbox([Doing(counts, concurrency=3)], HandleStore(tmp_path))
    outcomes = await asyncio.gather(*(call(box) for _ in range(30)))
    assert ({outcome.text for outcome in outcomes}, most) == ({"done"}, 3)


async def test_a_tool_that_will_not_be_cancelled_is_left_behind_and_keeps_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = asyncio.Event()

    async def stubborn(arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError

    box = Toolbox([Doing(stubborn, concurrency=1, timeout_s=0.02)], HandleStore(tmp_path), grace_s=0.02)
    assert "took longer" in (await call(box)).text
    assert "goes on although" in caplog.text
    assert "is busy" in (await call(box)).text
    let_go.set()
    await asyncio.sleep(0.01)
    assert (await call(box)).text == "tool failed."


async def test_of_200_calls_at_once_each_has_its_own_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tools = [
        Doing(hangs, "hangs", timeout_s=0.2, concurrency=50),
        Doing(raising(ValueError()), "raises"),
        Doing(giving(["garbage"]), "garbage"),
        Doing(giving(ToolOutput("x" * 9000)), "long"),
    ]
    handles = HandleStore(tmp_path, HandleLimits(tenant_results=10))
    box = Toolbox(tools, handles)
    outcomes = await asyncio.gather(*(call(box, name=tool.spec.name) for _ in range(50) for tool in tools))
    told = {tool.spec.name: {outcome.text[:22] for outcome in outcomes[place::4]} for place, tool in enumerate(tools)}
    assert told == {
        "hangs": {"hangs took longer than"},
        "raises": {"raises failed."},
        "garbage": {"garbage gave a result "},
        "long": {"x" * 22},
    }
    assert handles.total_bytes == 90_000
    assert {path.stat().st_size for path in files(tmp_path)} == {9000}
    assert len(files(tmp_path)) == 10


async def test_results_that_cannot_be_kept_are_told_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handles = HandleStore(tmp_path / "handles")
    box = Toolbox([Doing(giving(ToolOutput("x" * 9000)))], handles)
    await call(box)
    shelf = files(tmp_path)[0].parent
    await handles.erase("ann")
    shelf.write_bytes(b"")  # where the tenant's folder should be
    outcome = await call(box)
    assert (outcome.text, outcome.is_error) == ("The result could not be kept on this machine; it is lost.", True)
    (tmp_path / "file").write_bytes(b"")
    outcome = await call(Toolbox([Doing(says)], HandleStore(tmp_path / "file" / "handles")))
    assert (outcome.text, outcome.is_error) == ("Results cannot be kept on this machine now.", True)

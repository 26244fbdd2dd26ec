"""Each event goes out as the real client's types have it, with its type in a line of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from acu.http.wire.response_events import error_bytes, event_bytes
from agentflow.events import Usage
from agentflow.messages import Tool, ToolChoice
from agentflow.responses import events as told
from agentflow.responses.items import CallItem, MessageItem, ToolItem
from agentflow.responses.records import ResponseRecord, Settings, TextFormat

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SETTINGS = Settings(
    instructions="Be brief.",
    metadata={"a": "b"},
    conversation="conv_1",
    tools=(Tool("f", parameters={"type": "object"}),),
    tool_choice=ToolChoice("named", "f"),
    text=TextFormat(kind="json_schema", name="n", schema={"type": "object"}, strict=True),
    reasoning={"effort": "low"},
)
RECORD = ResponseRecord(id="resp_1", model="m", input=(), settings=SETTINGS)
MESSAGE = MessageItem(id="msg_1", role="assistant", texts=("x",))
STATE = told.ResponseState(record=RECORD, created_ms=5000, status="in_progress")
WHOLE = told.ResponseState(
    record=RECORD,
    created_ms=5000,
    status="completed",
    output=(
        MESSAGE,
        CallItem(id="fc_1", call_id="c", name="f", arguments="{}"),
        ToolItem(id="mcp_1", name="t", arguments="{}", output="It broke.", status="failed"),
        ToolItem(id="fs_1", name="file_search", arguments='{"query": "q"}', output="found"),
    ),
    usage=Usage(3, 2, 1),
    completed_ms=9000,
)
FAILED = told.ResponseState(
    record=RECORD, created_ms=5000, status="failed", failure=told.Failure("server_error", "It died."), usage=Usage()
)
CUT = told.ResponseState(
    record=RECORD, created_ms=5000, status="incomplete", incomplete="max_output_tokens", usage=Usage()
)
CASES: list[tuple[told.ResponseEvent, str]] = [
    (told.StateTold(7, "created", STATE), "created"),
    (told.StateTold(7, "in_progress", STATE), "in_progress"),
    (told.StateTold(7, "completed", WHOLE), "completed"),
    (told.StateTold(7, "failed", FAILED), "failed"),
    (told.StateTold(7, "incomplete", CUT), "incomplete"),
    (told.ItemAdded(7, 1, MESSAGE), "output_item.added"),
    (told.ItemDone(7, 1, MESSAGE), "output_item.done"),
    (told.PartAdded(7, 1, "msg_1"), "content_part.added"),
    (told.PartDone(7, 1, "msg_1", "x"), "content_part.done"),
    (told.TextAdded(7, 1, "msg_1", "x"), "output_text.delta"),
    (told.TextDone(7, 1, "msg_1", "x"), "output_text.done"),
    (told.ArgumentsAdded(7, 1, "fc_1", "{", own=False), "function_call_arguments.delta"),
    (told.ArgumentsDone(7, 1, "fc_1", "{}", own=False), "function_call_arguments.done"),
    (told.ArgumentsAdded(7, 1, "mcp_1", "{", own=True), "mcp_call_arguments.delta"),
    (told.ArgumentsDone(7, 1, "mcp_1", "{}", own=True), "mcp_call_arguments.done"),
    (told.ToolTold(7, 1, "mcp_1", "in_progress", search=False), "mcp_call.in_progress"),
    (told.ToolTold(7, 1, "mcp_1", "completed", search=False), "mcp_call.completed"),
    (told.ToolTold(7, 1, "mcp_1", "failed", search=False), "mcp_call.failed"),
    (told.ToolTold(7, 1, "fs_1", "in_progress", search=True), "file_search_call.in_progress"),
    (told.ToolTold(7, 1, "fs_1", "searching", search=True), "file_search_call.searching"),
    (told.ToolTold(7, 1, "fs_1", "failed", search=True), "file_search_call.completed"),
]


def parsed(data: bytes) -> tuple[str, dict[str, Any]]:
    """The type and the value of one event's bytes."""
    first, second, *rest = data.decode().split("\n")
    assert rest == ["", ""]
    value = msgspec.json.decode(second.removeprefix("data: "))
    assert value["type"] == first.removeprefix("event: ")
    EVENT.validate_python(value)
    return value["type"], value


@pytest.mark.parametrize(("event", "kind"), CASES)
def test_every_event_is_the_clients(event: told.ResponseEvent, kind: str) -> None:
    found, value = parsed(event_bytes(event))
    assert (found, value["sequence_number"]) == (f"response.{kind}", 7)
    if not isinstance(event, told.StateTold):
        assert value["output_index"] == 1


def test_the_error_is_flat() -> None:
    kind, value = parsed(error_bytes(9, "draining", "The daemon is shutting down.", None))
    assert kind == "error"
    assert value == {
        "type": "error",
        "sequence_number": 9,
        "code": "draining",
        "message": "The daemon is shutting down.",
        "param": None,
    }

"""The events of a response's stream, and their bytes: `event: TYPE`, `data: {...}` with a sequence number. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from acu.http.wire.response_objects import ItemObject, OutputText, ResponseObject, item_object, response_object
from agentflow.responses import events as told

_encode = msgspec.json.Encoder().encode


class StreamEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Root of the events."""

    sequence_number: int


class ResponseCreated(StreamEvent, frozen=True, kw_only=True, tag="response.created"):
    """The response was accepted."""

    response: ResponseObject


class ResponseInProgress(StreamEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The response is being made."""

    response: ResponseObject


class ResponseCompleted(StreamEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The response is whole."""

    response: ResponseObject


class ResponseIncomplete(StreamEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response ended before it was whole."""

    response: ResponseObject


class ResponseFailed(StreamEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The response failed."""

    response: ResponseObject


class OutputItemAdded(StreamEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: ItemObject


class OutputItemDone(StreamEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: ItemObject


class _OfPart(StreamEvent, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0


class ContentPartAdded(_OfPart, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part of a message begins."""

    part: OutputText


class ContentPartDone(_OfPart, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part of a message is whole."""

    part: OutputText


class OutputTextDelta(_OfPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[Any] = []


class OutputTextDone(_OfPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """A text is whole."""

    text: str
    logprobs: list[Any] = []


class _OfItem(StreamEvent, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class FunctionArgumentsDelta(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a function call's arguments."""

    delta: str


class FunctionArgumentsDone(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """A function call's arguments are whole."""

    arguments: str


class McpArgumentsDelta(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """More of a tool call's arguments."""

    delta: str


class McpArgumentsDone(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"):
    """A tool call's arguments are whole."""

    arguments: str


class McpInProgress(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call.in_progress"):
    """A tool is called."""


class McpCompleted(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call.completed"):
    """A tool has answered."""


class McpFailed(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call.failed"):
    """A tool has failed."""


class SearchInProgress(_OfItem, frozen=True, kw_only=True, tag="response.file_search_call.in_progress"):
    """A search is called for."""


class SearchSearching(_OfItem, frozen=True, kw_only=True, tag="response.file_search_call.searching"):
    """A search is made."""


class SearchCompleted(_OfItem, frozen=True, kw_only=True, tag="response.file_search_call.completed"):
    """A search is over."""


class StreamError(StreamEvent, frozen=True, kw_only=True, tag="error"):
    """The stream ends here; the response may go on without it."""

    code: str | None
    message: str
    param: str | None


ResponseStreamEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | FunctionArgumentsDelta
    | FunctionArgumentsDone
    | McpArgumentsDelta
    | McpArgumentsDone
    | McpInProgress
    | McpCompleted
    | McpFailed
    | SearchInProgress
    | SearchSearching
    | SearchCompleted
    | StreamError
)

_MOMENTS = {
    "created": ResponseCreated,
    "in_progress": ResponseInProgress,
    "completed": ResponseCompleted,
    "incomplete": ResponseIncomplete,
    "failed": ResponseFailed,
}
_STAGES = {"in_progress": McpInProgress, "completed": McpCompleted, "failed": McpFailed}
_SEARCHES = {
    "in_progress": SearchInProgress,
    "searching": SearchSearching,
    "completed": SearchCompleted,
    "failed": SearchCompleted,  # the API has no word for it; the item says that it failed
}


def event_bytes(event: told.ResponseEvent) -> bytes:
    """The event as it goes out."""
    return _framed(stream_event(event))


def error_bytes(number: int, code: str | None, message: str, param: str | None) -> bytes:
    """The event that ends a stream which cannot go on."""
    return _framed(StreamError(sequence_number=number, code=code, message=message, param=param))


def stream_event(event: told.ResponseEvent) -> StreamEvent:
    """The API's shape of an event."""
    match event:
        case told.TextAdded(number=n, place=place, item_id=item, text=text):
            return OutputTextDelta(sequence_number=n, output_index=place, item_id=item, delta=text)
        case told.StateTold(number=n, moment=moment, response=response):
            return _MOMENTS[moment](sequence_number=n, response=response_object(response))
        case told.ItemAdded(number=n, place=place, item=added):
            return OutputItemAdded(sequence_number=n, output_index=place, item=item_object(added))
        case told.ItemDone(number=n, place=place, item=done):
            return OutputItemDone(sequence_number=n, output_index=place, item=item_object(done))
        case told.ArgumentsAdded() | told.ArgumentsDone() | told.ToolTold():
            return _of_call(event)
        case told.PartAdded() | told.PartDone() | told.TextDone():
            return _of_part(event)


def _of_part(event: told.PartAdded | told.PartDone | told.TextDone) -> StreamEvent:
    n, place, item = event.number, event.place, event.item_id
    if isinstance(event, told.PartAdded):
        return ContentPartAdded(sequence_number=n, output_index=place, item_id=item, part=OutputText(""))
    if isinstance(event, told.PartDone):
        return ContentPartDone(sequence_number=n, output_index=place, item_id=item, part=OutputText(event.text))
    return OutputTextDone(sequence_number=n, output_index=place, item_id=item, text=event.text)


def _of_call(event: told.ArgumentsAdded | told.ArgumentsDone | told.ToolTold) -> StreamEvent:
    n, place, item = event.number, event.place, event.item_id
    if isinstance(event, told.ToolTold):
        kinds: Mapping[str, type[_OfItem]] = _SEARCHES if event.search else _STAGES
        return kinds[event.stage](sequence_number=n, output_index=place, item_id=item)
    if isinstance(event, told.ArgumentsAdded):
        delta = McpArgumentsDelta if event.own else FunctionArgumentsDelta
        return delta(sequence_number=n, output_index=place, item_id=item, delta=event.text)
    whole = McpArgumentsDone if event.own else FunctionArgumentsDone
    return whole(sequence_number=n, output_index=place, item_id=item, arguments=event.text)


def _framed(event: StreamEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.__struct_config__.tag).encode(), _encode(event))

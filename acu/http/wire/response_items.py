"""Items as bodies bring them: of a response's input, and of a conversation."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from acu.http.errors import BadRequest
from acu.http.wire.decode import MAX_ECHO, clean_text
from agentflow.responses.items import CallItem, Item, MessageItem, ResultItem, ToolItem, WordItem

Id = Annotated[str, Meta(min_length=1, max_length=256)]
_HINTS = "They may come back from an answer, and are not read."
Hint = Annotated[Any, Meta(description=_HINTS)]

_WORD = "mcp_approval_response"
_REFUSED = {
    "item_reference": "Send the item itself, or use `previous_response_id` or `conversation`.",
    "mcp_approval_response": "It belongs into the input of a response, with `previous_response_id`.",
}


class InputPart(Struct, forbid_unknown_fields=True):
    """A piece of a message or of a result. Only texts can be read here: `input_text`, `output_text`, `text`, `refusal`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Hint = None
    logprobs: Hint = None
    image_url: Hint = None
    file_id: Hint = None
    file_data: Hint = None
    file_url: Hint = None
    filename: Hint = None
    detail: Hint = None
    prompt_cache_breakpoint: Hint = None


class InputToolError(Struct, forbid_unknown_fields=True):
    """A tool's error: its content, or a message."""

    type: str
    content: list[InputPart] | None = None
    message: str | None = None
    code: Hint = None


class InputItem(Struct, forbid_unknown_fields=True, rename={"async_": "async"}):
    """An item: `message` (the default), `function_call`, `function_call_output`, `mcp_approval_response` (in the input of a
    response), or one that an answer had.
    """

    type: str = "message"
    id: Id | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    status: str | None = None
    call_id: Id | None = None
    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    queries: list[str] | None = None
    error: InputToolError | None = None
    results: Hint = None
    server_label: Hint = None
    approval_request_id: Id | None = None
    approve: bool | None = None
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    summary: Hint = None
    encrypted_content: Hint = None
    phase: Hint = None
    namespace: Hint = None
    caller: Hint = None
    created_by: Hint = None
    async_: Hint = None


def read_items(items: list[InputItem], param: str, *, words: bool = False) -> tuple[Item, ...]:
    """The orchestrator's values; `words`: answers to approval requests may be among them.

    Raises BadRequest for what the types could not say, and for what cannot be read here.
    """
    found = [
        _word(item, f"{param}[{i}]") if words and item.type == _WORD else _item(item, f"{param}[{i}]")
        for i, item in enumerate(items)
    ]
    return tuple(item for item in found if item is not None)


def text_item(text: str, param: str) -> MessageItem:
    """A text is what the user says."""
    return MessageItem(id=new_item_id("msg"), role="user", texts=(clean_text(text, param),))


def new_item_id(prefix: str) -> str:
    """An id of an item that comes from outside."""
    return f"{prefix}_{secrets.token_hex(14)}"


def _item(item: InputItem, param: str) -> Item | None:
    match item.type:
        case "message":
            return _message(item, param)
        case "function_call":
            return CallItem(
                id=new_item_id("fc"),
                call_id=_needed(item.call_id, f"{param}.call_id"),
                name=_needed(item.name, f"{param}.name"),
                arguments=clean_text(_needed(item.arguments, f"{param}.arguments"), f"{param}.arguments"),
            )
        case "function_call_output":
            return ResultItem(
                id=new_item_id("fco"),
                call_id=_needed(item.call_id, f"{param}.call_id"),
                output="".join(_texts(item.output, f"{param}.output")),
            )
        case "mcp_call":
            return ToolItem(
                id=new_item_id("mcp"),
                name=_needed(item.name, f"{param}.name"),
                arguments=clean_text(_needed(item.arguments, f"{param}.arguments"), f"{param}.arguments"),
                output=_tools_output(item, param),
                status="failed" if item.error is not None else "completed",
            )
        case "reasoning" | "file_search_call" | "mcp_approval_request":
            return None  # nothing that a model here could read: its own thoughts it does not get again
    why = _REFUSED.get(item.type, "Items are messages, function calls and their outputs.")
    raise BadRequest(
        f"Unsupported item at '{param}': its type is '{item.type[:MAX_ECHO]}'. {why}",
        param=f"{param}.type",
        code="unsupported_item",
    )


def _word(item: InputItem, param: str) -> WordItem:
    if item.approve is None:
        raise _missing(f"{param}.approve")
    return WordItem(
        id=new_item_id("mcprr"),
        request=_needed(item.approval_request_id, f"{param}.approval_request_id"),
        approve=item.approve,
        reason=None if item.reason is None else clean_text(item.reason, f"{param}.reason"),
    )


def _tools_output(item: InputItem, param: str) -> str | None:
    """What the model read of a tool's result, or of its error."""
    if item.error is not None:
        error = item.error
        return "".join(_texts(error.content or error.message or error.type, f"{param}.error"))
    return None if item.output is None else "".join(_texts(item.output, f"{param}.output"))


def _message(item: InputItem, param: str) -> MessageItem:
    role = item.role
    if role is None:
        raise _missing(f"{param}.role")
    return MessageItem(id=new_item_id("msg"), role=role, texts=_texts(item.content, f"{param}.content"))


def _texts(content: str | list[InputPart] | None, param: str) -> tuple[str, ...]:
    if content is None:
        raise _missing(param)
    if isinstance(content, str):
        return (clean_text(content, param),)
    if not content:
        raise BadRequest(f"Invalid value for '{param}': the array is empty.", param=param)
    return tuple(_part(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part(part: InputPart, param: str) -> str:
    if part.type in ("input_text", "output_text", "text"):
        return clean_text(_needed(part.text, f"{param}.text"), f"{param}.text")
    if part.type == "refusal":
        return clean_text(_needed(part.refusal, f"{param}.refusal"), f"{param}.refusal")
    raise BadRequest(
        f"Unsupported content at '{param}': a part of type '{part.type[:MAX_ECHO]}'. Only texts can be read.",
        param=param,
        code="unsupported_content",
    )


def _needed(value: str | None, param: str) -> str:
    if value is None:
        raise _missing(param)
    return value


def _missing(param: str) -> BadRequest:
    return BadRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")

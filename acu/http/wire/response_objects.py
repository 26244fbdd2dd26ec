"""Responses and their items as answers tell them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from agentflow.messages import Tool, ToolChoice
from agentflow.responses.events import ResponseState
from agentflow.responses.items import ApprovalItem, CallItem, Item, MessageItem, ResultItem, ToolItem, WordItem
from agentflow.responses.projection import FILE_SEARCH
from agentflow.responses.records import Settings

SERVER = "acu"
"""The label of the server whose tools an agent calls."""


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text that the model said."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    """Text that the model reads."""

    text: str


class Message(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Somebody's turn."""

    id: str
    role: Literal["system", "developer", "user", "assistant"]
    status: str
    content: list[OutputText | InputText]


class FunctionCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call for the caller to carry out; `arguments` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


class FunctionCallOutput(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """What came of a function call."""

    id: str
    call_id: str
    output: str
    status: str = "completed"


class ToolExecutionError(Struct, frozen=True, tag_field="type", tag="mcp_tool_execution_error"):
    """A tool's error, as the model reads it."""

    content: list[InputText]


class McpCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_call"):
    """A call of a tool of the agent's, which the server made. `output` is what the model read."""

    id: str
    server_label: str = SERVER
    name: str
    arguments: str
    output: str | None
    error: ToolExecutionError | None
    status: str
    approval_request_id: str | None = None


class McpApprovalRequest(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_request"):
    """A call of a tool of the agent's that waits for a person: with the id `mcpr_X` for the call `call_X` of the run."""

    id: str
    server_label: str = SERVER
    name: str
    arguments: str


class McpApprovalResponse(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_response"):
    """A person's word about a call."""

    id: str
    approval_request_id: str
    approve: bool
    reason: str | None


class FileSearchCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="file_search_call"):
    """A search of the agent's in the caller's files."""

    id: str
    queries: list[str]
    status: str
    results: None = None


ItemObject = (
    Message | FunctionCall | FunctionCallOutput | McpCall | McpApprovalRequest | McpApprovalResponse | FileSearchCall
)


class InputTokensDetails(Struct, frozen=True):
    """Tokens that were found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    """Tokens of thoughts: they are not told apart."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Token counts, over all of a response's steps."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class ResponseErrorObject(Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    """Why a response is incomplete."""

    reason: str


class ConversationReference(Struct, frozen=True):
    """The conversation that a response belongs to."""

    id: str


class FunctionObject(Struct, frozen=True, kw_only=True):
    """A function that the request brought."""

    type: Literal["function"] = "function"
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class NamedFunctionChoice(Struct, frozen=True, kw_only=True):
    """The function that had to be called."""

    type: Literal["function"] = "function"
    name: str


class FormatObject(Struct, frozen=True, kw_only=True):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class TextObject(Struct, frozen=True):
    """How the text was asked for."""

    format: FormatObject
    verbosity: str = "medium"


class ReasoningObject(Struct, frozen=True):
    """What was asked for of thoughts."""

    effort: Any = None
    summary: Any = None


class ResponseObject(Struct, frozen=True, kw_only=True):
    """A response, as it stands or as it ended."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool = False
    completed_at: int | None
    error: ResponseErrorObject | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[ItemObject]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ConversationReference | None
    prompt_cache_key: str | None
    reasoning: ReasoningObject
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: TextObject
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionChoice
    tools: list[FunctionObject]
    top_logprobs: int = 0
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]


class ResponseDeleted(Struct, frozen=True, kw_only=True):
    """A response is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: list[ItemObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def response_object(state: ResponseState) -> ResponseObject:
    """The API's shape of a response."""
    record, settings = state.record, state.record.settings
    return ResponseObject(
        id=record.id,
        created_at=state.created_ms // 1000,
        status=state.status,
        completed_at=None if state.completed_ms is None else state.completed_ms // 1000,
        error=None if state.failure is None else ResponseErrorObject(state.failure.code, state.failure.message),
        incomplete_details=None if state.incomplete is None else IncompleteDetails(state.incomplete),
        instructions=settings.instructions,
        max_output_tokens=settings.max_output_tokens,
        max_tool_calls=settings.max_tool_calls,
        model=record.model,
        output=[item_object(item) for item in state.output],
        parallel_tool_calls=settings.parallel_tool_calls,
        previous_response_id=settings.previous_response_id,
        conversation=None if settings.conversation is None else ConversationReference(settings.conversation),
        prompt_cache_key=settings.prompt_cache_key,
        reasoning=_reasoning(settings),
        safety_identifier=settings.safety_identifier,
        service_tier=settings.service_tier or "default",
        store=record.store,
        temperature=settings.temperature,
        text=_text(settings),
        tool_choice=_choice(settings.tool_choice),
        tools=[_tool(tool) for tool in settings.tools],
        top_p=settings.top_p,
        truncation=settings.truncation,
        usage=_usage(state),
        user=settings.user,
        metadata=settings.metadata,
    )


def item_object(item: Item) -> ItemObject:
    """The API's shape of an item."""
    match item:
        case MessageItem(role="assistant"):
            said = [OutputText(text) for text in item.texts]
            return Message(id=item.id, role=item.role, status=item.status, content=[*said])
        case MessageItem():
            read = [InputText(text) for text in item.texts]
            return Message(id=item.id, role=item.role, status=item.status, content=[*read])
        case CallItem():
            return FunctionCall(
                id=item.id, call_id=item.call_id, name=item.name, arguments=item.arguments, status=item.status
            )
        case ResultItem():
            return FunctionCallOutput(id=item.id, call_id=item.call_id, output=item.output)
        case ToolItem(name=name) if name == FILE_SEARCH:
            return FileSearchCall(id=item.id, queries=_queries(item.arguments), status=item.status)
        case ToolItem():
            failed = item.status == "failed"
            return McpCall(
                id=item.id,
                name=item.name,
                arguments=item.arguments,
                output=None if failed else item.output,
                error=ToolExecutionError([InputText(item.output or "")]) if failed else None,
                status=item.status,
                approval_request_id=item.approval,
            )
        case ApprovalItem():
            return McpApprovalRequest(id=item.id, name=item.name, arguments=item.arguments)
        case WordItem():
            return McpApprovalResponse(
                id=item.id, approval_request_id=item.request, approve=item.approve, reason=item.reason
            )


def _queries(arguments: str) -> list[str]:
    """What a search was for, as far as its arguments say."""
    try:
        found = msgspec.json.decode(arguments, type=dict[str, Any]) if arguments else {}
    except msgspec.DecodeError:
        return []
    query = found.get("query", found.get("queries"))
    return [query] if isinstance(query, str) else [str(each) for each in query] if isinstance(query, list) else []


def _usage(state: ResponseState) -> ResponseUsage | None:
    usage = state.usage
    if usage is None:
        return None
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _tool(tool: Tool) -> FunctionObject:
    return FunctionObject(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)


def _choice(choice: ToolChoice) -> Literal["none", "auto", "required"] | NamedFunctionChoice:
    return NamedFunctionChoice(name=choice.name or "") if choice.mode == "named" else choice.mode


def _text(settings: Settings) -> TextObject:
    text = settings.text
    if text.kind != "json_schema":
        return TextObject(FormatObject(type=text.kind), settings.verbosity or "medium")
    form = FormatObject(
        type="json_schema",
        name=text.name or "",
        schema=text.schema or {},
        description=text.description,
        strict=text.strict,
    )
    return TextObject(form, settings.verbosity or "medium")


def _reasoning(settings: Settings) -> ReasoningObject:
    asked = settings.reasoning or {}
    return ReasoningObject(asked.get("effort"), asked.get("summary"))

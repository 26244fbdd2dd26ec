"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from acu.http.errors import BadRequest
from acu.http.wire.chat import FunctionName, check_parameters
from acu.http.wire.decode import MAX_ECHO, BodyDecoder, clean_json, clean_text
from acu.http.wire.response_items import Id, InputItem, read_items, text_item
from acu.http.wire.sampling import Envelope, Short
from agentflow.messages import ChatRequest, Structured, Tool, ToolChoice
from agentflow.responses.records import Settings, TextFormat
from agentflow.responses.values import NewResponse

MAX_ITEMS = 4096
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Short], Meta(max_length=16)]


class ResponseTool(Struct, forbid_unknown_fields=True, rename={"async_": "async"}):
    """A function that the caller runs. `parameters` is a JSON schema. Tools of other types are not run here."""

    type: str
    name: FunctionName | None = None
    description: Annotated[str, Meta(max_length=65_536)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    async_: bool | None = None
    allowed_callers: Any = None
    defer_loading: bool | None = None
    output_schema: Any = None


class NamedTool(Struct, forbid_unknown_fields=True):
    """One particular function must be called."""

    type: str
    name: str | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True):
    """The form of the answer; all but the type with `json_schema` only."""

    type: Literal["text", "json_object", "json_schema"]
    name: FunctionName | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct, forbid_unknown_fields=True):
    """How the answer's text is to be. `verbosity` is a hint."""

    format: ResponseFormat | None = None
    verbosity: Short | None = None


class ConversationName(Struct, forbid_unknown_fields=True):
    """A conversation, by its id."""

    id: Id


class ResponseStreamOptions(Struct, forbid_unknown_fields=True):
    """Options of a stream: a hint."""

    include_obfuscation: bool | None = None


class ResponseBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A response to make. The last fields are hints, which change nothing, and what is refused."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: Id | None = None
    conversation: Id | ConversationName | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[Short], Meta(max_length=32)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    background: bool | None = None
    reasoning: dict[str, Any] | None = None
    user: Short | None = None
    safety_identifier: Short | None = None
    prompt_cache_key: Short | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Short | None = None
    service_tier: Short | None = None
    prompt: Any = None
    moderation: Any = None
    context_management: Any = None


RESPONSE_DECODER = BodyDecoder(ResponseBody)

_UNSUPPORTED = {
    "background": "A response is made while its request waits; use `stream`.",
    "prompt": "Send the prompt's text as `instructions` and `input`.",
    "moderation": "Moderate with a request of your own.",
    "context_management": "Nothing is cut or compacted here.",
}
_LOGPROBS = "message.output_text.logprobs"


def new_response(body: ResponseBody, envelope: Envelope) -> NewResponse:
    """The orchestrator's value of `body`. Raises BadRequest for what the types could not say."""
    _refuse(body)
    tools = _tools(body.tools or [])
    choice = _tool_choice(body.tool_choice, tools)
    text = _text_format(body.text)
    store = body.store is not False
    conversation = body.conversation.id if isinstance(body.conversation, ConversationName) else body.conversation
    if conversation is not None and not store:
        raise BadRequest("'conversation' needs 'store' to be true.", param="store")
    given = {"temperature": body.temperature, "top_p": body.top_p}
    sampling = replace(
        envelope.defaults,
        **{name: value for name, value in given.items() if value is not None},
        max_tokens=body.max_output_tokens,
        structured=_structured(text),
    )
    request = ChatRequest(
        id=envelope.id,
        model=clean_text(body.model, "model"),
        messages=(),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        sampling=sampling,
        store=store,
        deadline_s=envelope.deadline_s,
        caller=envelope.caller,
    )
    settings = Settings(
        instructions=None if body.instructions is None else clean_text(body.instructions, "instructions"),
        metadata=clean_metadata(body.metadata),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        parallel_tool_calls=request.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        conversation=conversation,
        tools=tools,
        tool_choice=choice,
        text=text,
        verbosity=None if body.text is None else body.text.verbosity,
        truncation=body.truncation or "disabled",
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        service_tier=body.service_tier,
        reasoning=body.reasoning,
    )
    given_input = [] if body.input is None else body.input
    items = (
        (text_item(given_input, "input"),)
        if isinstance(given_input, str)
        else read_items(given_input, "input", words=True)
    )
    asked = frozenset(name for name in Settings.__struct_fields__ if getattr(body, name, None) is not None)
    return NewResponse(request=request, input=items, settings=settings, given=asked)


def clean_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Metadata without NUL characters."""
    for key, value in (metadata or {}).items():
        clean_text(key, "metadata")
        clean_text(value, f"metadata.{key}")
    return metadata or {}


def _refuse(body: ResponseBody) -> None:
    """What is not done here, and what excludes each other."""
    if body.previous_response_id is not None and body.conversation is not None:
        raise BadRequest(
            "'previous_response_id' and 'conversation' exclude each other.",
            param="previous_response_id",
            code="mutually_exclusive_parameters",
        )
    for name, why in _UNSUPPORTED.items():
        if getattr(body, name):
            raise _unsupported(name, why)
    if body.top_logprobs:
        raise _unsupported("top_logprobs", "Ask /v1/chat/completions for log probabilities.")
    if _LOGPROBS in (body.include or ()):
        raise _unsupported("include", "Ask /v1/chat/completions for log probabilities.")
    if body.stream_options is not None and not body.stream:
        raise BadRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if body.reasoning is not None:
        clean_json(body.reasoning, "reasoning")


def _unsupported(param: str, why: str) -> BadRequest:
    return BadRequest(f"Unsupported parameter: '{param}'. {why}", param=param, code="unsupported_parameter")


def _tools(tools: list[ResponseTool]) -> tuple[Tool, ...]:
    found: dict[str, Tool] = {}
    for i, tool in enumerate(tools):
        if tool.type != "function":
            raise BadRequest(
                f"Unsupported tool at 'tools[{i}]': its type is '{tool.type[:MAX_ECHO]}'. A request brings tools of type "
                "'function'; what the server runs are the tools of its agents: ask for the model 'agent/NAME'.",
                param=f"tools[{i}].type",
                code="unsupported_tool",
            )
        if tool.name is None:
            param = f"tools[{i}].name"
            raise BadRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
        if tool.name in found:
            raise BadRequest(f"Two tools have the name '{tool.name}'.", param=f"tools[{i}].name")
        if tool.description is not None:
            clean_text(tool.description, f"tools[{i}].description")
        if tool.parameters is not None:
            check_parameters(tool.parameters, f"tools[{i}].parameters")
        found[tool.name] = Tool(tool.name, tool.description, tool.parameters, strict=tool.strict is True)
    return tuple(found.values())


def _tool_choice(choice: str | NamedTool | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if choice is None or choice == "auto":
        return ToolChoice("auto")
    if choice == "none":
        return ToolChoice("none")
    if isinstance(choice, NamedTool) and (choice.type != "function" or choice.name is None):
        raise _unsupported("tool_choice", "Name a function: {type: 'function', name: ...}.")
    if not tools:
        raise BadRequest("'tool_choice' needs 'tools' to choose from.", param="tool_choice")
    if not isinstance(choice, NamedTool):
        return ToolChoice("required")
    name = choice.name or ""
    if name not in {tool.name for tool in tools}:
        raise BadRequest(f"'tool_choice' names '{name[:64]}', which is none of the tools.", param="tool_choice.name")
    return ToolChoice("named", name)


def _text_format(text: TextOptions | None) -> TextFormat:
    wanted = None if text is None else text.format
    if wanted is None or wanted.type != "json_schema":
        return TextFormat(kind="text" if wanted is None else wanted.type)
    missing = "text.format.schema" if wanted.schema is None else "text.format.name" if wanted.name is None else None
    if missing is not None:
        raise BadRequest(f"Missing required parameter: '{missing}'.", param=missing, code="missing_required_parameter")
    clean_json(wanted.schema, "text.format.schema")
    return TextFormat(
        kind="json_schema",
        name=wanted.name,
        schema=wanted.schema,
        description=wanted.description,
        strict=wanted.strict,
    )


def _structured(text: TextFormat) -> Structured | None:
    if text.kind == "json_schema":
        return Structured(kind="json", value=text.schema, param="text.format.schema")
    return Structured(kind="json_object", param="text.format") if text.kind == "json_object" else None

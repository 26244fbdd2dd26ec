"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from acu.http.errors import BadRequest
from acu.http.wire.decode import UNSUPPORTED, BodyDecoder, clean_json, clean_text
from acu.http.wire.sampling import Envelope, GenerationBody, Unsupported
from agentflow.messages import ChatRequest, Message, Structured, Tool, ToolCall, ToolChoice

FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class ContentPart(Struct, forbid_unknown_fields=True):
    """A piece of a message. Only `text` (and an assistant's own `refusal`) can be read here. The last field is a hint."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    prompt_cache_breakpoint: Any = None


class CalledFunction(Struct, forbid_unknown_fields=True):
    """The function that an assistant called, its arguments as JSON text."""

    name: FunctionName
    arguments: str


class MessageToolCall(Struct, forbid_unknown_fields=True):
    """A call in an assistant's message."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(Struct, forbid_unknown_fields=True):
    """A message. The last three fields are what OpenAI's answers carry: they may come back, and are not read."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=128)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Unsupported = None
    function_call: Unsupported = None


class Function(Struct, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=65_536)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct, forbid_unknown_fields=True):
    """A tool: always a function."""

    type: Literal["function"]
    function: Function


class NamedFunction(Struct, forbid_unknown_fields=True):
    """The name of the function to call."""

    name: str


class NamedToolChoice(Struct, forbid_unknown_fields=True):
    """One particular function must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchemaFormat(Struct, forbid_unknown_fields=True):
    """The schema that an answer must satisfy."""

    name: FunctionName
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True):
    """The form of the answer; `json_schema` with that type only."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class ChatBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    functions: Unsupported = None
    function_call: Unsupported = None
    audio: Unsupported = None
    modalities: list[str] | None = None
    prediction: Unsupported = None
    web_search_options: Unsupported = None
    moderation: Unsupported = None


CHAT_DECODER = BodyDecoder(ChatBody)


def chat_request(body: ChatBody, envelope: Envelope) -> ChatRequest:
    """The orchestrator's value of `body`. Raises BadRequest for what the types could not say."""
    body.check_stream_options()
    _check_modalities(body.modalities)
    tools = _tools(body.tools or [])
    return ChatRequest(
        id=envelope.id,
        model=clean_text(body.model, "model"),
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(body.messages)),
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        sampling=body.sampling(
            envelope.defaults,
            max_tokens=_max_tokens(body),
            logprobs=_logprobs(body),
            structured=_structured(body),
        ),
        n=body.n or 1,
        store=body.store is not False,
        priority=body.priority or 0,
        deadline_s=envelope.deadline_s,
        caller=envelope.caller,
    )


def _check_modalities(modalities: list[str] | None) -> None:
    if modalities is not None and modalities != ["text"]:
        raise BadRequest(
            f"Unsupported parameter: 'modalities'. {UNSUPPORTED['modalities']}",
            param="modalities",
            code="unsupported_parameter",
        )


def _max_tokens(body: ChatBody) -> int | None:
    newer, older = body.max_completion_tokens, body.max_tokens
    if newer is not None and older is not None and newer != older:
        raise BadRequest(
            "'max_tokens' and 'max_completion_tokens' contradict each other; give the second alone.", param="max_tokens"
        )
    return older if newer is None else newer


def _logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise BadRequest("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
        return None
    return body.top_logprobs or 0


def _structured(body: ChatBody) -> Structured | None:
    vllms = body.structured_form()
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return vllms
    if vllms is not None:
        raise BadRequest("'structured_outputs' and 'response_format' exclude each other.", param="structured_outputs")
    if wanted.type == "json_object":
        return Structured(kind="json_object", param="response_format")
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        missing = "response_format.json_schema" + ("" if wanted.json_schema is None else ".schema")
        raise BadRequest(f"Missing required parameter: '{missing}'.", param=missing, code="missing_required_parameter")
    param = "response_format.json_schema.schema"
    clean_json(wanted.json_schema.schema, param)
    return Structured(kind="json", value=wanted.json_schema.schema, param=param)


def _tools(tools: list[FunctionTool]) -> tuple[Tool, ...]:
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        function = tool.function
        if function.name in seen:
            raise BadRequest(f"Two tools have the name '{function.name}'.", param=f"tools[{i}].function.name")
        seen.add(function.name)
        if function.description is not None:
            clean_text(function.description, f"tools[{i}].function.description")
        if function.parameters is not None:
            check_parameters(function.parameters, f"tools[{i}].function.parameters")
    return tuple(
        Tool(
            name=tool.function.name,
            description=tool.function.description,
            parameters=tool.function.parameters,
            strict=bool(tool.function.strict),
        )
        for tool in tools
    )


def check_parameters(schema: dict[str, Any], param: str) -> None:
    """Refuse a schema that is none of a function's parameters."""
    clean_json(schema, param)
    if schema and schema.get("type", "object") != "object":
        raise BadRequest(f"Invalid schema for '{param}': its type must be 'object'.", param=param)
    if not isinstance(schema.get("properties", {}), dict):
        raise BadRequest(f"Invalid schema for '{param}': 'properties' must be an object.", param=param)


def _tool_choice(choice: str | NamedToolChoice | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if choice is None or choice == "auto":
        return ToolChoice("auto" if tools else "none")
    if choice == "none":
        return ToolChoice("none")
    if not tools:
        raise BadRequest("'tool_choice' needs 'tools' to choose from.", param="tool_choice")
    if isinstance(choice, str):
        return ToolChoice("required")
    name = choice.function.name
    if name not in {tool.name for tool in tools}:
        raise BadRequest(
            f"'tool_choice' names '{name[:64]}', which is none of the tools.", param="tool_choice.function.name"
        )
    return ToolChoice("named", name)


def _message(message: ChatMessage, param: str) -> Message:
    content = _content(message, f"{param}.content")
    role = message.role
    if role == "tool" and not message.tool_call_id:
        raise BadRequest(
            f"Missing required parameter: '{param}.tool_call_id'.",
            param=f"{param}.tool_call_id",
            code="missing_required_parameter",
        )
    if message.tool_calls and role != "assistant":
        raise BadRequest(f"Only an assistant's message can have '{param}.tool_calls'.", param=f"{param}.tool_calls")
    if message.tool_call_id and role != "tool":
        raise BadRequest(f"Only a tool's message can have '{param}.tool_call_id'.", param=f"{param}.tool_call_id")
    if content is None and not (role == "assistant" and (message.tool_calls or message.refusal is not None)):
        raise BadRequest(
            f"Missing required parameter: '{param}.content'.",
            param=f"{param}.content",
            code="missing_required_parameter",
        )
    return Message(
        role=role,
        content=content,
        name=None if message.name is None else clean_text(message.name, f"{param}.name"),
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, clean_text(call.function.arguments, f"{param}.tool_calls"))
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id,
    )


def _content(message: ChatMessage, param: str) -> str | None:
    content = message.content
    if content is None:
        return None if message.refusal is None else clean_text(message.refusal, param)
    if isinstance(content, str):
        return clean_text(content, param)
    if not content:
        raise BadRequest(f"Invalid value for '{param}': the array is empty.", param=param)
    return "".join(_part(part, f"{param}[{i}]", message.role) for i, part in enumerate(content))


def _part(part: ContentPart, param: str, role: str) -> str:
    if part.type == "text":
        text = part.text
    elif part.type == "refusal" and role == "assistant":
        text = part.refusal
    else:
        raise BadRequest(
            f"Unsupported content at '{param}': a part of type '{part.type[:64]}'. Only 'text' can be read.",
            param=param,
            code="unsupported_content",
        )
    if text is None:
        missing = f"{param}.{part.type}"
        raise BadRequest(f"Missing required parameter: '{missing}'.", param=missing, code="missing_required_parameter")
    return clean_text(text, param)

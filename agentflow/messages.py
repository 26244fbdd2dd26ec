"""Frozen values that come in: what a caller asks of the service, free of any wire format."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Caller(Struct, frozen=True):
    """Who asks: the tenant that everything is kept apart by, and the name of the key for the audit log.

    `trace`: the request's place in a trace of its caller's (W3C `traceparent`), or nothing.
    """

    tenant: str = "default"
    name: str = "local"
    admin: bool = False
    trace: str = ""


class ToolCall(Struct, frozen=True):
    """A call that the assistant made. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class Message(Struct, frozen=True):
    """One turn of a conversation. `at`: when a tool's result came, in milliseconds since 1970; 0 where nobody knows."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    at: int = 0


class Tool(Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON schema (an object), or None for no arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolChoice(Struct, frozen=True):
    """Whether the model may, must or must not call a tool; `name` only with mode `named`."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    name: str | None = None


class Structured(Struct, frozen=True):
    """A form that the output must have.

    `value` is a JSON schema (kind `json`), a regular expression or an EBNF/Lark grammar (text), the list of
    allowed texts (`choice`), or None for any JSON object (`json_object`). `param` names the caller's field.
    """

    kind: Literal["json", "json_object", "regex", "grammar", "choice"]
    value: Any = None
    param: str = "response_format"


class Sampling(Struct, frozen=True):
    """How tokens are chosen and when to stop.

    `max_tokens` None means: up to the model's context. `logprobs` is the number of alternatives a token, 0 for
    the chosen token alone, None for none. Penalties, temperatures and probabilities are unitless.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    structured: Structured | None = None


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A conversation to continue.

    `priority`: a lower number is served earlier (vLLM's convention). `deadline_s`: seconds from now by which the
    engine must have taken the run, None for the scheduler's default. `n`: how many answers. `store`: an agent's run is kept,
    and taken up again after a crash.
    """

    id: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: Sampling = Sampling()
    n: int = 1
    store: bool = True
    priority: int = 0
    deadline_s: float | None = None
    caller: Caller = Caller()


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """Texts (or token ids) to continue, with no chat template. Choice `p * n + i` is answer i to prompt p.

    With `echo` each answer begins with its prompt's text.
    """

    id: str
    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool = False
    sampling: Sampling = Sampling()
    n: int = 1
    priority: int = 0
    deadline_s: float | None = None
    caller: Caller = Caller()


class EmbeddingRequest(Struct, frozen=True, kw_only=True):
    """Texts (or token ids) to turn into vectors. `dimensions` truncates and normalises again, where allowed."""

    id: str
    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    priority: int = 0
    deadline_s: float | None = None
    caller: Caller = Caller()

"""Response bodies of the OpenAI API. Streams are written by sse.py in bytes of the same shape as the chunks here."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from agentflow.events import FinishReason, TokenLogprob
from agentflow.events import Usage as Counted

LOWEST_LOGPROB = -9999.0  # OpenAI's stand-in for minus infinity, which JSON cannot say


class PromptTokensDetails(Struct, frozen=True):
    """Prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class Usage(Struct, frozen=True):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(Struct, frozen=True):
    """An alternative token. `bytes` is the token's UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Struct, frozen=True):
    """A chosen token with its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """Log probabilities of an answer's tokens."""

    content: list[ChatTokenLogprob] | None
    refusal: None = None


class AnsweredFunction(Struct, frozen=True):
    """A function that the model calls, its arguments as JSON text."""

    name: str
    arguments: str


class AnsweredToolCall(Struct, frozen=True, kw_only=True):
    """A call that the model makes."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[AnsweredToolCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer to POST /v1/chat/completions without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(Struct, frozen=True, kw_only=True):
    """A piece of a call: the name in the first, arguments in all."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """A piece of call `index`; `id` and `type` in the first."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class MessageDelta(Struct, frozen=True):
    """What a chunk adds to the message; nothing in the last one."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ToolActivity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tool of an agent's does. `arguments` is JSON text; `output` is what the model reads of the result.

    `tool.asked`: the call waits until a person allows it, or does not, under /acu/v1/runs/{run_id}/calls/{call_id}/approval.
    """

    type: Literal["tool.asked", "tool.started", "tool.ended"]
    call_id: str
    name: str
    arguments: str | None = None
    output: str | None = None
    is_error: bool = False
    handle: str | None = None
    run_id: str | None = None


class ChatChunkChoice(Struct, frozen=True):
    """The choice that a chunk continues."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat. `usage` only with stream_options.include_usage, and null but in the last chunk.

    `acu` only with stream_options.include_acu_events, in chunks without a choice.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    acu: ToolActivity | UnsetType = UNSET


class CompletionLogprobs(Struct, frozen=True):
    """Log probabilities of a completion's tokens; `text_offset` counts characters from the text's beginning."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True):
    """One continuation (in a stream: the next piece of one)."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(Struct, frozen=True, kw_only=True):
    """The answer to POST /v1/completions, and, with `usage` as in a chat's chunks, every event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class EmbeddingUsage(Struct, frozen=True):
    """Token counts of an embedding."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, frozen=True, kw_only=True):
    """A vector: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """The answer to POST /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Model(Struct, frozen=True, kw_only=True):
    """A served model. `max_model_len` is its context in tokens, once known; `ready` whether it takes work now."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "acu"
    root: str
    max_model_len: int | None
    ready: bool


class ModelList(Struct, frozen=True, kw_only=True):
    """The answer to GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


def usage_of(counted: Counted) -> Usage:
    """OpenAI's shape of token counts."""
    return Usage(
        prompt_tokens=counted.prompt_tokens,
        completion_tokens=counted.completion_tokens,
        total_tokens=counted.prompt_tokens + counted.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(counted.cached_tokens),
    )


def chat_logprobs(tokens: tuple[TokenLogprob, ...]) -> ChatLogprobs:
    """A chat's shape of log probabilities."""
    return ChatLogprobs(
        [
            ChatTokenLogprob(
                token.token,
                _finite(token.logprob),
                list(token.token.encode()),
                [TopLogprob(top.token, _finite(top.logprob), list(top.token.encode())) for top in token.top],
            )
            for token in tokens
        ]
    )


def completion_logprobs(tokens: tuple[TokenLogprob, ...], offset: int) -> CompletionLogprobs:
    """A completion's shape of log probabilities, for tokens whose text begins `offset` characters into the whole."""
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return CompletionLogprobs(
        tokens=[token.token for token in tokens],
        token_logprobs=[_finite(token.logprob) for token in tokens],
        top_logprobs=[{top.token: _finite(top.logprob) for top in token.top} for token in tokens]
        if any(token.top for token in tokens)
        else None,
        text_offset=offsets,
    )


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB

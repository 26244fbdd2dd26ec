"""Plan: what a request comes to before any engine sees it. Pure.

Which sampling and which parser `tool_choice` asks for, whether the caller's token ids exist, and a seed for each answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentflow.errors import InvalidRequest
from agentflow.events import FinishReason
from agentflow.messages import ChatRequest, Sampling, Structured, Tool
from agentflow.parsing.choice import marks, parser_maker
from agentflow.parsing.events import ToolParser
from agentflow.parsing.forced import ListParser, NamedParser, named_schema, required_schema

MAX_SEED = 2**63
MAX_ALTERNATIVES = 250_000  # log probabilities in one answer: about 15 MB of JSON


def no_parser() -> None:
    """For answers in which everything is text."""


class Plan(Struct, frozen=True):
    """What a request comes to once its prompts are encoded.

    `param` names the caller's field with the prompt; `arrived_at` is in seconds of `time.monotonic()`; `echoes` are
    texts to begin the answers to each prompt with.
    """

    prompts: Sequence[list[int]]
    sampling: Sampling
    param: str
    arrived_at: float
    parser: Callable[[], ToolParser | None] = no_parser
    finish_after_calls: FinishReason = "stop"
    echoes: Sequence[str] = ()


def tool_use(
    request: ChatRequest, tools: Sequence[Tool], tool_format: str
) -> tuple[Sampling, Callable[[], ToolParser | None]]:
    """The sampling that `tool_choice` asks for, and the parser (a fresh one an answer) that finds the calls."""
    sampling, choice = request.sampling, request.tool_choice
    if choice.mode in ("required", "named") and sampling.structured is not None:
        raise InvalidRequest(
            f"`{sampling.structured.param}` asks for a form of the answer and `tool_choice` for a call instead of one; "
            "leave one of them out.",
            param="tool_choice",
        )
    if choice.mode == "required":
        if not tools:
            raise InvalidRequest("tool_choice is required, but there are no tools.", param="tool_choice")
        schema = required_schema(tools, request.parallel_tool_calls)
        return replace(sampling, structured=Structured("json", schema, "tools")), ListParser
    if choice.mode == "named":
        tool = next((tool for tool in tools if tool.name == choice.name), None)
        if tool is None:
            raise InvalidRequest(f"tool_choice names {choice.name!r}, which is not among tools.", param="tool_choice")
        forced = replace(sampling, structured=Structured("json", named_schema(tool), "tools"))
        return forced, functools.partial(NamedParser, tool.name)
    # A form that the whole answer must have leaves no room for calls.
    form = marks(tool_format)
    if not tools or sampling.structured is not None or form is None:
        return sampling, no_parser
    if form.special:
        sampling = replace(sampling, skip_special_tokens=False)
    return sampling, parser_maker(tool_format, tools) or no_parser


def check_token_ids(sampling: Sampling, vocab_size: int) -> None:
    """Raise InvalidRequest for a token id of the caller's that the model does not have."""
    check_vocabulary(sampling.stop_token_ids, vocab_size, "stop_token_ids")
    check_vocabulary(sampling.logit_bias or (), vocab_size, "logit_bias")


def check_vocabulary(tokens: Collection[int], vocab_size: int, param: str) -> None:
    """Raise InvalidRequest, naming the field `param`, if the model lacks one of `tokens`."""
    # Two passes of C over what may be millions of ids.
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"Token id {token} is outside the vocabulary (0 to {vocab_size - 1}).",
                param=param,
                code="invalid_value",
            )


def check_alternatives(sampling: Sampling, answers: int, tokens: int) -> None:
    """Raise InvalidRequest when `answers` of up to `tokens` tokens each would carry too many log probabilities."""
    if sampling.logprobs is None:
        return
    count = answers * tokens * (1 + sampling.logprobs)
    if count > MAX_ALTERNATIVES:
        raise InvalidRequest(
            f"The answers could carry {count} log probabilities; at most {MAX_ALTERNATIVES} are given to a request. Lower "
            "n, max_tokens or the number of alternatives.",
            param="logprobs",
            code="invalid_value",
        )


def next_seed(seed: int, answer: int) -> int:
    """A seed of its own for each answer, within the 64 bits that engines take."""
    return seed + answer if seed + answer < MAX_SEED else seed - answer

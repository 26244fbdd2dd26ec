"""Frozen values that go out: what a run says while it goes on.

Order, for each choice: any number of TextDelta, ToolCallOpened and ToolCallArguments (a call's arguments follow its
opening, and calls do not interleave), then one ChoiceFinished. A stream of events that ends by an exception has
told everything that was true until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class TokenLogprob(Struct, frozen=True):
    """A token with its natural-log probability; `top` holds the alternatives, most probable first."""

    token: str
    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class TextDelta(Struct, frozen=True, gc=False):
    """More of the answer's text. One delta may carry any number of tokens."""

    choice: int
    text: str
    token_ids: Sequence[int] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


class ToolCallOpened(Struct, frozen=True):
    """The model began call `index` (0, 1, ... within the choice) of the function `name`."""

    choice: int
    index: int
    id: str
    name: str


class ToolCallArguments(Struct, frozen=True):
    """More of the JSON text of call `index`'s arguments."""

    choice: int
    index: int
    text: str


class ToolCallClosed(Struct, frozen=True):
    """The arguments of call `index` are whole. Only of agents: a client's own tools need no such word."""

    choice: int
    index: int
    id: str


class ToolAsked(Struct, frozen=True):
    """A call of the run `run_id` waits until a person allows it, or does not. `arguments` is JSON text."""

    choice: int
    run_id: str
    id: str
    name: str
    arguments: str


class ToolStarted(Struct, frozen=True):
    """An agent made a call. `arguments` is JSON text."""

    choice: int
    id: str
    name: str
    arguments: str


class ToolEnded(Struct, frozen=True):
    """A call of an agent's is over: what its model reads of the result, and the handle of what was longer."""

    choice: int
    id: str
    name: str
    text: str
    is_error: bool
    handle: str | None = None


class ChoiceFinished(Struct, frozen=True):
    """The choice is complete. `stop_reason` is the stop string or token id that ended it, if one did."""

    choice: int
    reason: FinishReason
    stop_reason: str | int | None = None


Event = TextDelta | ToolCallOpened | ToolCallArguments | ToolAsked | ToolStarted | ToolEnded | ChoiceFinished


class Usage(Struct, frozen=True):
    """Token counts of a whole request, over all its choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Embeddings(Struct, frozen=True):
    """Vectors (float32, one row an input, shape [inputs, dimensions]) and the tokens they cost."""

    vectors: object  # numpy.ndarray; numpy is not imported for a type
    prompt_tokens: int

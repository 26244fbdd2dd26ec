"""Record: what a run's log holds. Frozen values, and their bytes. Pure.

The log is the run: what is not in it has not happened, and everything about a run (its prompt, where its parser stands, which
calls are open) follows from reading it in order (progress.py). An event is appended before its effect becomes visible: token ids
before they are sent, a call before it is made, a result before the model reads it.

Times are milliseconds since 1970. Every event is msgpack with its kind under `k`; a newer release may add fields with defaults.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from agentflow.messages import Message, Sampling, Tool
from agentflow.router import Route

ANY_TOOL = "*"
"""Stands for a tool's name where the model must call some tool, whichever."""

HANDED_OVER = "tool_calls"
"""Why a run of an agent ended whose last calls are its caller's to make."""

RunEnd = Literal["completed", "incomplete", "failed", "cancelled"]


class RunEvent(Struct, frozen=True, kw_only=True, tag_field="k", omit_defaults=True):
    """Root of the events. `at`: when it was appended."""

    at: int = 0


class Began(RunEvent, frozen=True, tag="began", kw_only=True):
    """The run was accepted. What it was asked, and what of the configuration it goes by until its end.

    `tools` are those that its model is told of; `tool_format` is how it writes calls; `prompt` the first step's token ids.
    `key` names the API key that asked, for the audit log; `trace` is the request's `traceparent`, if it had one.

    `instructions`: what of the first message stands there for this run alone, in front of the conversation. `max_calls`: how
    many calls are made at most; further ones are refused. `forced`: as StepBegan's, of the first step. A run with no `agent` is
    one answer of a model, whose calls are the caller's to make.

    `client_tools`: which of an agent's `tools` its caller brought, whose calls are the caller's too. `asking`: those whose calls
    a person must allow. `conversation`: the conversation, or the first response of the chain, that the run belongs to.
    """

    agent: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_format: str = "none"
    sampling: Sampling = Sampling()
    prompt: list[int] = []
    key: str = "local"
    trace: str = ""
    instructions: str = ""
    max_calls: int | None = None
    forced: str | None = None
    client_tools: tuple[str, ...] = ()
    asking: tuple[str, ...] = ()
    conversation: str = ""


class Recalled(RunEvent, frozen=True, tag="recalled", kw_only=True):
    """What of the agent's memory the model reads in this run, the best first: searched for once, before the first step.

    `ids` and `written` (when, in milliseconds since 1970) are those of the `texts`, and so are `names`, unless none has one.
    `tiers`: where it was searched, in `seconds`. Not `complete`: something was left out, for the reason `why`.
    """

    texts: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    written: tuple[int, ...] = ()
    tiers: tuple[str, ...] = ()
    complete: bool = True
    seconds: float = 0.0
    why: str = ""


class Routed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the router decided of a step, and why (router.Decision). `seconds`: how long it took."""

    route: Route
    tool: str | None = None
    score: float = 0.0
    runner_up: str | None = None
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0


class StepBegan(RunEvent, frozen=True, tag="step", kw_only=True):
    """A generation begins, of `model`. With `forced` its whole text is the arguments of that tool, or with ANY_TOOL calls.

    `prompt`: all ids where they are not those of the last step, what it said, and `added` (where a template wants all
    rendered anew, or another model goes on). `routed`: where a router decided what the step is. `quoted`: no model speaks;
    what is said is a tool's result, or that no tool fits.
    """

    step: int
    model: str
    added: list[int] = []
    prompt: list[int] | None = None
    forced: str | None = None
    routed: Routed | None = None
    quoted: bool = False


class Said(RunEvent, frozen=True, tag="said", kw_only=True):
    """The model said these tokens, which are this text (none, while a character is incomplete)."""

    ids: list[int]
    text: str


class Resumed(RunEvent, frozen=True, tag="resumed", kw_only=True):
    """The engine, or the whole daemon, was lost in mid-generation, and another goes on behind the first `kept` tokens of the
    step. What lay behind them was a part of a character, and no text.
    """

    kept: int


class StepEnded(RunEvent, frozen=True, tag="stepped", kw_only=True):
    """The generation is over. Times in seconds; `reason` as the engine's finish reason."""

    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0


class CallStarted(RunEvent, frozen=True, tag="calling", kw_only=True):
    """A call is made from here on. `attempt` above 1: it was started before, and is idempotent."""

    call_id: str
    name: str
    arguments: str
    idempotent: bool
    attempt: int = 1


class CallEnded(RunEvent, frozen=True, tag="called", kw_only=True):
    """What the model reads as the call's result, which is an error or not. `handle`: of a result that was longer.

    `answered_at`: when the tool said it, where it is told again with a mark that it is old; 0: at `at`.
    """

    call_id: str
    text: str
    is_error: bool = False
    handle: str | None = None
    seconds: float = 0.0
    answered_at: int = 0

    @property
    def said_at(self) -> int:
        """When the tool said it, in milliseconds since 1970."""
        return self.answered_at or self.at


class ApprovalAsked(RunEvent, frozen=True, tag="asked", kw_only=True):
    """A call waits for a person who allows it, or does not."""

    call_id: str


class ApprovalGiven(RunEvent, frozen=True, tag="answered", kw_only=True):
    """A person allowed a call or did not; `why` is for the model. `by`: the name of the key that said so.

    `response`: the id of the response that brought the word; empty: it was given at the run itself.
    """

    call_id: str
    allowed: bool
    why: str = ""
    by: str = ""
    response: str = ""


class Added(RunEvent, frozen=True, tag="added", kw_only=True):
    """A message came in mid-flight; the model reads it with the next step."""

    message: Message


class Paused(RunEvent, frozen=True, tag="paused", kw_only=True):
    """The model says no more, and no step begins, until the run goes on. Calls that are under way come to their end."""


class Unpaused(RunEvent, frozen=True, tag="unpaused", kw_only=True):
    """The run goes on; with `one_step` until the model has said what it has to say in this step."""

    one_step: bool = False


class Aged(RunEvent, frozen=True, tag="aged", kw_only=True):
    """Results of earlier steps (of the calls `call_ids`) may not hold any more; the model reads `text` with the new turns."""

    call_ids: tuple[str, ...]
    text: str


class Ended(RunEvent, frozen=True, tag="ended", kw_only=True):
    """The run is over. `why` is a word for machines (`stop`, `max_steps`, ...), `error` a sentence."""

    end: RunEnd
    why: str
    error: str | None = None


Steering = ApprovalAsked | ApprovalGiven | Added | Paused | Unpaused
Event = Began | Recalled | StepBegan | Said | Resumed | StepEnded | CallStarted | CallEnded | Aged | Steering | Ended

_DECODER = msgspec.msgpack.Decoder(Event)
_ENCODER = msgspec.msgpack.Encoder()


def encode(event: Event) -> bytes:
    """The bytes to log."""
    return _ENCODER.encode(event)


def decode(stored: bytes) -> Event:
    """The event in `stored`. Raises msgspec.MsgspecError for bytes that are none."""
    return _DECODER.decode(stored)

"""Account: what happened in a run, told from its log: steps, calls, times and figures. Pure: events in, a value out.

It is read off the same `Progress` that the loop goes by, so an account cannot tell of a call that the loop did not see. It can be
given at any moment: of a run in mid-flight it says what is so far. Texts are bounded, the log has them whole.

All times are Unix seconds, all durations seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from agentflow.agents import progress as read
from agentflow.agents.progress import Heard, Progress
from agentflow.agents.record import (
    Added,
    CallStarted,
    Ended,
    Event,
    Recalled,
    Resumed,
    Routed,
    RunEnd,
    StepBegan,
    StepEnded,
    Unpaused,
)
from agentflow.events import TextDelta, ToolEnded, Usage

MOST_TEXT = 4000  # characters of a step's text, and of a result
MOST_ARGUMENTS = 2000

Status = RunEnd | Literal["running", "waiting", "paused", "open"]
"""How a run is. `waiting`: a call of it waits until a person allows it, or does not. `open`: it has no end, and does not go on
here; a daemon that starts takes it up, as it does one that waits or is paused.
"""


class CallAccount(Struct, frozen=True, kw_only=True):
    """One call. `started_at` None: it was never made; `ended_at` None: it has no result.

    `seconds` is how long the tool took, as it was measured; `attempts` above 1: the daemon was lost under it. `approval` is None
    for a call that needs none, and `asked` while it waits for one. `clients`: it is for who asked to make.
    """

    id: str
    name: str
    arguments: str
    started_at: float | None = None
    ended_at: float | None = None
    seconds: float | None = None
    attempts: int = 0
    is_error: bool = False
    result: str | None = None
    handle: str | None = None
    approval: Literal["asked", "allowed", "refused"] | None = None
    clients: bool = False


class StepAccount(Struct, frozen=True, kw_only=True):
    """One generation. What is measured at its end (`queue_s`, `ttft_s`, which includes it, `decode_s`) is None until then.

    `routed`: what the router decided of it, and why; `forced`: the tool that it had to call. `resumptions`: how often an engine
    was lost under it, and another went on.
    """

    number: int
    model: str
    routed: Routed | None
    forced: str | None
    began_at: float
    ended_at: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float | None
    ttft_s: float | None
    decode_s: float | None
    finish_reason: str | None
    text: str
    resumptions: int
    calls: tuple[CallAccount, ...]


class MessageAccount(Struct, frozen=True, kw_only=True):
    """A message that came in mid-flight, while step `step` was the last that had begun."""

    at: float
    step: int
    role: str
    content: str


class PauseAccount(Struct, frozen=True, kw_only=True):
    """A time in which the run did not go on; `ended_at` None: it still does not."""

    began_at: float
    ended_at: float | None


class RecalledAccount(Struct, frozen=True, kw_only=True):
    """What a run's model was reminded of, the best first: `ids` and `written` (when) are those of the `texts`.

    `names`: under which these are kept, empty for what has none; none at all where that is so for each. `tiers`: where it was
    searched for, in `seconds`. Not `complete`: something was left out, for the reason `why`.
    """

    texts: tuple[str, ...]
    ids: tuple[str, ...]
    written: tuple[float, ...]
    tiers: tuple[str, ...]
    complete: bool
    seconds: float
    why: str
    names: tuple[str, ...] = ()


class RunAccount(Struct, frozen=True, kw_only=True):
    """A run. `as_of`: until when the account tells of it; `last`: the number of the last event that it tells of.

    `recalled`: what its model was reminded of, and what was left out.
    """

    id: str
    agent: str
    model: str
    status: Status
    why: str | None
    error: str | None
    created_at: float
    ended_at: float | None
    as_of: float
    last: int
    usage: Usage
    steps: tuple[StepAccount, ...]
    messages: tuple[MessageAccount, ...]
    pauses: tuple[PauseAccount, ...]
    recalled: RecalledAccount | None = None


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run as a list shows it. `steps` and `calls` are counts."""

    id: str
    agent: str
    model: str
    status: Status
    why: str | None
    created_at: float
    ended_at: float | None
    steps: int
    calls: int
    usage: Usage


def account(run_id: str, events: Iterable[tuple[int, Event]], now: float, *, going: bool = False) -> RunAccount | None:
    """The account of a run, from all its events with their numbers; None for a log without a beginning.

    `going`: it goes on in this process. Raises DataDamaged for a log that contradicts itself.
    """
    accountant = _Accountant(run_id)
    for number, event in events:
        accountant.take(number, event)
    return accountant.account(now, going=going)


def summary(progress: Progress, *, going: bool = True) -> RunSummary:
    """The summary of a run that has begun. `going`: it goes on in this process."""
    began, ended = progress.began, progress.ended
    assert began is not None, "a run's log begins with Began"
    return RunSummary(
        id=progress.run_id,
        agent=began.agent,
        model=progress.model,
        status=_status(progress, going=going),
        why=None if ended is None else ended.why,
        created_at=_s(began.at),
        ended_at=None if ended is None else _s(ended.at),
        steps=progress.step + 1,
        calls=progress.calls_made,
        usage=_usage(progress),
    )


@dataclass(slots=True)
class _Call:
    call: read.Call
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int = 0

    def account(self) -> CallAccount:
        ended = self.call.ended
        return CallAccount(
            id=self.call.id,
            name=self.call.name,
            arguments=_cut(self.call.arguments, MOST_ARGUMENTS),
            started_at=self.started_at,
            ended_at=self.ended_at,
            seconds=None if ended is None or self.started_at is None else ended.seconds,
            attempts=self.attempts,
            is_error=ended is not None and ended.is_error,
            result=None if ended is None else _cut(ended.text, MOST_TEXT),
            handle=None if ended is None else ended.handle,
            approval=self.approval,
            clients=self.call.clients,
        )

    @property
    def approval(self) -> Literal["asked", "allowed", "refused"] | None:
        answer = self.call.answer
        if answer is not None:
            return "allowed" if answer.allowed else "refused"
        return "asked" if self.call.asked else None


@dataclass(slots=True)
class _Step:
    began: StepBegan
    prompt_tokens: int
    text: str = ""
    said: int = 0
    resumptions: int = 0
    ended: StepEnded | None = None
    calls: list[_Call] = field(default_factory=list)

    def account(self) -> StepAccount:
        ended = self.ended
        return StepAccount(
            number=self.began.step,
            model=self.began.model,
            routed=self.began.routed,
            forced=self.began.forced,
            began_at=_s(self.began.at),
            ended_at=None if ended is None else _s(ended.at),
            prompt_tokens=self.prompt_tokens if ended is None else ended.prompt_tokens,
            cached_tokens=0 if ended is None else ended.cached_tokens,
            completion_tokens=self.said if ended is None else ended.completion_tokens,
            queue_s=None if ended is None else ended.queue_s,
            ttft_s=None if ended is None else ended.ttft_s,
            decode_s=None if ended is None else ended.decode_s,
            finish_reason=None if ended is None else ended.reason,
            text=_cut(self.text, MOST_TEXT),
            resumptions=self.resumptions,
            calls=tuple(call.account() for call in self.calls),
        )


class _Accountant:
    """Takes a run's events one after the other."""

    def __init__(self, run_id: str) -> None:
        self._progress = Progress(run_id)
        self._last = 0
        self._last_at = 0.0
        self._steps: list[_Step] = []
        self._messages: list[MessageAccount] = []
        self._pauses: list[PauseAccount] = []
        self._paused_at: float | None = None

    def take(self, number: int, event: Event) -> None:
        progress = self._progress
        heard = progress.apply(event)
        self._last, self._last_at = number, _s(event.at)
        match event:
            case StepBegan():
                self._steps.append(_Step(event, len(progress.prompt)))
            case StepEnded():
                self._steps[-1].ended = event
            case Resumed():
                self._steps[-1].resumptions += 1
            case Added(message=message):
                content = _cut(message.content or "", MOST_TEXT)
                self._messages.append(
                    MessageAccount(at=self._last_at, step=progress.step, role=message.role, content=content)
                )
        if self._steps:
            self._in_step(self._steps[-1], event, heard)
        self._note_pause(event)

    def _in_step(self, step: _Step, event: Event, heard: list[Heard]) -> None:
        step.said = len(self._progress.said)
        step.calls += [_Call(call) for call in self._progress.calls[len(step.calls) :]]
        if isinstance(event, CallStarted):
            call = _named(step, event.call_id)
            call.started_at = call.started_at or self._last_at
            call.attempts = event.attempt
        for each in heard:
            if isinstance(each, TextDelta) and len(step.text) <= MOST_TEXT:
                step.text += each.text
            elif isinstance(each, ToolEnded):
                _named(step, each.id).ended_at = self._last_at

    def _note_pause(self, event: Event) -> None:
        if self._progress.paused and self._paused_at is None:  # told, or come to after one step
            self._paused_at = self._last_at
        elif self._paused_at is not None and isinstance(event, Unpaused | Ended):
            self._pauses.append(PauseAccount(began_at=self._paused_at, ended_at=self._last_at))
            self._paused_at = None

    def account(self, now: float, *, going: bool) -> RunAccount | None:
        progress = self._progress
        began, ended = progress.began, progress.ended
        if began is None:
            return None
        still = [] if self._paused_at is None else [PauseAccount(began_at=self._paused_at, ended_at=None)]
        return RunAccount(
            id=progress.run_id,
            agent=began.agent,
            model=progress.model,
            status=_status(progress, going=going),
            why=None if ended is None else ended.why,
            error=None if ended is None else ended.error,
            created_at=_s(began.at),
            ended_at=None if ended is None else _s(ended.at),
            as_of=max(now, self._last_at) if going and ended is None else self._last_at,
            last=self._last,
            usage=_usage(progress),
            steps=tuple(step.account() for step in self._steps),
            messages=tuple(self._messages),
            pauses=(*self._pauses, *still),
            recalled=None if progress.recalled is None else _recalled(progress.recalled),
        )


def _recalled(recalled: Recalled) -> RecalledAccount:
    return RecalledAccount(
        texts=recalled.texts,
        ids=recalled.ids,
        written=tuple(map(_s, recalled.written)),
        tiers=recalled.tiers,
        complete=recalled.complete,
        seconds=recalled.seconds,
        why=recalled.why,
        names=recalled.names,
    )


def _named(step: _Step, call_id: str) -> _Call:
    return next(call for call in step.calls if call.call.id == call_id)  # Progress has refused others


def _status(progress: Progress, *, going: bool) -> Status:
    if progress.ended is not None:
        return progress.ended.end
    if progress.paused:
        return "paused"
    if progress.asks:
        return "waiting"
    return "running" if going else "open"


def _usage(progress: Progress) -> Usage:
    """What was counted at the end of each step, and the tokens of one that is under way."""
    usage = progress.usage
    if not progress.speaking:
        return usage
    return Usage(
        prompt_tokens=usage.prompt_tokens + len(progress.prompt),
        completion_tokens=usage.completion_tokens + len(progress.said),
        cached_tokens=usage.cached_tokens,
    )


def _s(ms: int) -> float:
    return ms / 1000


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "\u2026"

"""RunWatch: what the events of a run come to, for those who count and trace: its steps, its calls, and itself. Pure.

Each is told once, when it is over, with the times of the log. So a run that another daemon goes on with after a crash is told
whole: what was over before was told by that daemon, and a step in which it fell is told here, from its beginning on.

    RunSeen     the run is watched from here on
    StepOver    a generation ended, or was cut short
    CallOver    a call has its first result, could not be understood, or was cut short
    RunOver     nothing follows
    RunLeft     it stays open, and is taken up by whoever starts next
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypedDict

from msgspec import Struct

from agentflow.agents.progress import Heard, Progress
from agentflow.agents.record import (
    Began,
    CallEnded,
    CallStarted,
    Ended,
    Event,
    Routed,
    RunEnd,
    StepBegan,
    StepEnded,
)
from agentflow.events import ToolEnded

Outcome = Literal["ok", "error", "refused", "malformed", "cut"]
"""`refused`: the call was never made. `cut`: the run ended before the call did."""


class Part(Struct, frozen=True, kw_only=True):
    """Root: a part of the run `run_id`. Times are milliseconds since 1970."""

    run_id: str
    run: Began
    began_ms: int
    ended_ms: int


class RunSeen(Part, frozen=True, kw_only=True):
    """The run goes on here."""


class StepOver(Part, frozen=True, kw_only=True):
    """A generation of `model`. `measured` is None where it was cut short. `text`: what was said beside calls."""

    number: int
    model: str
    measured: StepEnded | None = None
    routed: Routed | None = None
    text: str = ""


class CallOver(Part, frozen=True, kw_only=True):
    """A call. `name` is what the model wrote, which may be no tool's: `known` says whether it is one of the run's."""

    call_id: str
    name: str
    known: bool
    outcome: Outcome
    arguments: str = ""
    result: str = ""
    seconds: float = 0.0


class RunOver(Part, frozen=True, kw_only=True):
    """The run's end, as in Ended. `prompt_tokens` and the like are in its steps."""

    end: RunEnd
    why: str
    error: str | None = None
    steps: int
    calls: int


class RunLeft(Part, frozen=True, kw_only=True):
    """Nobody goes on with it here."""


class _PartFields(TypedDict):
    run_id: str
    run: Began
    began_ms: int
    ended_ms: int


Watched = RunSeen | StepOver | CallOver | RunOver | RunLeft
Watcher = Callable[[Watched], None]
"""Takes what a watch finds, on the event loop: it must be quick, and must not raise."""


class RunWatch:
    """Of one run, whose log begins with `events`, and whose progress has taken them in."""

    def __init__(self, progress: Progress, events: Iterable[Event], watcher: Watcher) -> None:
        assert progress.began is not None, "a run's log begins with Began"
        self._progress = progress
        self._began = progress.began
        self._tools = frozenset(tool.name for tool in self._began.tools)
        self._watcher = watcher
        self._step: StepBegan | None = None  # that is not over
        self._started: dict[str, CallStarted] = {}  # calls that are not over
        self._over: set[str] = set()  # calls of the step that are
        self._done = False
        at = self._began.at
        for event in events:
            self._note(event)
            at = event.at
        self._tell(RunSeen(**self._part(self._began.at, at)))

    def see(self, event: Event, heard: Iterable[Heard]) -> None:
        """The next event, and what the progress made of it."""
        for each in heard:
            if isinstance(each, ToolEnded) and each.id not in self._over:
                self._call_over(event, each)
        match event:
            case StepEnded():
                self._step_over(event.at, event)
            case Ended():
                self._cut(event.at)
                self._run_over(event)
        self._note(event)

    def left(self) -> None:
        """The run is left as it is."""
        if not self._done:
            self._done = True
            self._tell(RunLeft(**self._part(self._began.at, self._began.at)))

    def _note(self, event: Event) -> None:
        """Keep when that began which is not over."""
        match event:
            case StepBegan():
                self._step = event
                self._over.clear()
            case StepEnded():
                self._step = None
            case CallStarted(call_id=call_id) if call_id not in self._over:
                self._started.setdefault(call_id, event)  # one that is made again began when it was made first
            case CallEnded(call_id=call_id):
                self._started.pop(call_id, None)
                self._over.add(call_id)

    def _call_over(self, event: Event, ended: ToolEnded) -> None:
        started = self._started.get(ended.id)
        outcome: Outcome = "error" if ended.is_error else "ok"
        if not isinstance(event, CallEnded):
            outcome = "malformed"
        elif started is None:
            outcome = "refused"
        self._tell(
            CallOver(
                **self._part(event.at if started is None else started.at, event.at),
                call_id=ended.id,
                name=ended.name,
                known=ended.name in self._tools,
                outcome=outcome,
                arguments="" if started is None else started.arguments,
                result=ended.text,
                seconds=event.seconds if isinstance(event, CallEnded) else 0.0,
            )
        )

    def _step_over(self, at: int, measured: StepEnded | None) -> None:
        step = self._step
        if step is None:
            return
        self._tell(
            StepOver(
                **self._part(step.at, at),
                number=step.step,
                model=step.model,
                measured=measured,
                routed=step.routed,
                text=self._progress.said_turn().content or "",
            )
        )

    def _cut(self, at: int) -> None:
        """What was under way ends with the run."""
        self._step_over(at, None)
        for call_id, started in self._started.items():
            self._tell(
                CallOver(
                    **self._part(started.at, at),
                    call_id=call_id,
                    name=started.name,
                    known=started.name in self._tools,
                    outcome="cut",
                    arguments=started.arguments,
                )
            )

    def _run_over(self, event: Ended) -> None:
        self._done = True
        self._tell(
            RunOver(
                **self._part(self._began.at, event.at),
                end=event.end,
                why=event.why,
                error=event.error,
                steps=self._progress.step + 1,
                calls=self._progress.calls_made,
            )
        )

    def _part(self, began_ms: int, ended_ms: int) -> _PartFields:
        return _PartFields(run_id=self._progress.run_id, run=self._began, began_ms=began_ms, ended_ms=ended_ms)

    def _tell(self, found: Watched) -> None:
        self._watcher(found)

"""Progress: where a run stands, told by its log. Pure: events in, what they mean out.

The loop, whoever follows a run, and a daemon that takes it up after a crash all read the same log through a `Progress`, so they
cannot differ: which text the client sees, which calls were made, and what comes next.

    Began           the prompt and the conversation
    Recalled        what of the agent's memory the model reads with it
    StepBegan       a parser begins with an empty text
    Said            the prompt grows; the parser finds text and calls in it
    ApprovalAsked   a person must allow a call
    ApprovalGiven   a person did, or did not
    CallStarted     a call that the parser closed is under way
    CallEnded       it is over; once all are, the next step may begin
    Aged            results of earlier steps have grown old
    Resumed         what had no text yet is forgotten
    StepEnded       the model has nothing more to say in this step
    Ended           nothing follows

A call that cannot be understood is a call that ended with an error: the model is told of it, and may try again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from agentflow.agents.record import (
    ANY_TOOL,
    Added,
    Aged,
    ApprovalAsked,
    ApprovalGiven,
    Began,
    CallEnded,
    CallStarted,
    Ended,
    Event,
    Paused,
    Recalled,
    Resumed,
    Routed,
    Said,
    Steering,
    StepBegan,
    StepEnded,
    Unpaused,
)
from agentflow.errors import EngineStartFailed
from agentflow.events import TextDelta, ToolCallArguments, ToolCallClosed, ToolCallOpened, ToolEnded, ToolStarted, Usage
from agentflow.library.refusals import DataDamaged
from agentflow.messages import Message, ToolCall
from agentflow.parsing.choice import parser_maker
from agentflow.parsing.events import CallArguments, CallClosed, CallOpened, Malformed, ParserEvent, Text, ToolParser
from agentflow.parsing.forced import ListParser, NamedParser

OUTCOME_UNKNOWN = (
    "The outcome of this call is unknown: it was cut off while it was under way. It may have been done, and is not "
    "repeated."
)
"""What a model reads as the result of a call that was begun, and of whose end nobody knows."""

Heard = TextDelta | ToolCallOpened | ToolCallArguments | ToolCallClosed | ToolStarted | ToolEnded
_NOT_UNDERSTOOD = (
    "This call could not be understood, and was not made. Write it again, whole, in the form that you were shown, with the "
    "tool's name and all of its arguments."
)


@dataclass(slots=True)
class Call:
    """One call of the current step, the `number`-th of the run (from 0).

    `closed`: its arguments are whole; `attempt` 0: it was not started yet. `clients`: it is the caller's to make.
    """

    id: str
    name: str
    number: int = 0
    clients: bool = False
    pieces: list[str] = field(default_factory=list)
    closed: bool = False
    attempt: int = 0
    idempotent: bool = False
    asked_at: int | None = None
    answer: ApprovalGiven | None = None
    ended: CallEnded | None = None

    @property
    def asked(self) -> bool:
        """Whether a person was asked to allow it."""
        return self.asked_at is not None

    @property
    def arguments(self) -> str:
        """The JSON text that the model wrote, so far."""
        return "".join(self.pieces)


class Progress:
    """Where run `run_id` stands after the events that it was given."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.began: Began | None = None
        self.recalled: Recalled | None = None
        self.ended: Ended | None = None
        self.step = -1
        self.speaking = False
        self.paused = False
        self.model = ""
        self.forced: str | None = None
        self.routed: Routed | None = None
        self.prompt: list[int] = []
        self.said: list[int] = []
        self.calls: list[Call] = []
        self.history: list[Message] = []
        self.added: list[Message] = []
        self.past: list[Call] = []  # of earlier steps, whose results the model has read and may still go by
        self._remarks: list[str] = []
        self.finish_reason = ""
        self.usage = Usage()
        self._one_step = False
        self._text: list[str] = []
        self._parser: ToolParser | None = None
        self.calls_made = 0

    def apply(self, event: Event) -> list[Heard]:
        """Take the next event; returns what a follower of the run hears of it. Raises DataDamaged for one that cannot follow."""
        self._check(event)
        match event:
            case Began():
                self.began, self.model = event, event.model
                self.history, self.prompt = list(event.messages), list(event.prompt)
            case Recalled():
                self.recalled = event
            case StepBegan():
                self._begin_step(event)
            case Said():
                self.said += event.ids
                return self._heard(event.text)
            case Resumed():
                del self.said[event.kept :]
            case StepEnded():
                return self._end_step(event)
            case CallStarted():
                call = self._call(event.call_id)
                call.attempt, call.idempotent = event.attempt, event.idempotent
                return [ToolStarted(0, call.id, call.name, call.arguments)] if event.attempt == 1 else []
            case CallEnded():
                call = self._call(event.call_id)
                call.ended = event
                return [ToolEnded(0, call.id, call.name, event.text, event.is_error, event.handle)]
            case Aged():
                self.past = [call for call in self.past if call.id not in event.call_ids]
                self._remarks.append(event.text)
            case Ended():
                self.ended, self.speaking = event, False
            case _:
                self._steered(event)
        return []

    def _check(self, event: Event) -> None:
        """Refuse what no loop writes there."""
        wrong = ""
        if (self.began is None) != isinstance(event, Began):
            wrong = "as its beginning" if self.began is None else "a second time"
        elif self.ended is not None:
            wrong = "behind its end"
        else:
            match event:
                case Said() | Resumed() | StepEnded() if not self.speaking:
                    wrong = "outside of a step"
                case Resumed(kept=kept) if not 0 <= kept <= len(self.said):
                    wrong = f"that keeps {kept} of {len(self.said)} tokens"
                case StepBegan(step=step) if self.speaking or step != self.step + 1:
                    wrong = f"{step} behind step {self.step}"
                case Recalled() if self.step >= 0:
                    wrong = "behind its first step"
        if wrong:
            kind = event.__struct_config__.tag
            raise DataDamaged(f"the log of {self.run_id} makes no sense: it has {kind!r} {wrong}")

    def _steered(self, event: Steering) -> None:
        """What people do with a run, and what it asks them."""
        match event:
            case ApprovalAsked():
                self._call(event.call_id).asked_at = event.at
            case ApprovalGiven():
                call = self._call(event.call_id)
                call.answer = call.answer or event  # the first word counts
            case Added():
                self.added.append(event.message)
            case Paused():
                self.paused = True
            case Unpaused():
                self.paused, self._one_step = False, event.one_step

    @property
    def waiting(self) -> list[Call]:
        """Calls of this step that are the server's to make, and have no result yet."""
        return [call for call in self.calls if call.ended is None and not call.clients]

    @property
    def handed_over(self) -> list[Call]:
        """Whole calls of this step that are the caller's to make."""
        return [call for call in self.calls if call.clients and call.closed and call.ended is None]

    @property
    def asks(self) -> bool:
        """Whether a call waits for a person's word. Others may be under way meanwhile."""
        return self.ended is None and any(call.asked and call.answer is None for call in self.waiting)

    @property
    def waits_for_word(self) -> bool:
        """Whether nothing happens until a person allows a call, or does not."""
        waiting = self.waiting
        asked = bool(waiting) and all(call.asked and call.answer is None for call in waiting)
        return asked and not self.speaking and self.ended is None

    def new_turns(self) -> list[Message]:
        """What the model has not read yet: the results of this step's calls, in their order, and what was added."""
        results = [
            Message("tool", call.ended.text, name=call.name, tool_call_id=call.id, at=call.ended.said_at)
            for call in self.calls
            if call.ended is not None
        ]
        turns = [*results, *self.added]
        if turns and self._remarks:  # behind a result, where there is one: it is no word of the user's
            last = len(results or turns) - 1
            turns[last] = replace(turns[last], content="\n".join([turns[last].content or "", *self._remarks]))
        return turns

    def said_turn(self) -> Message:
        """What the model said in this step, as a message."""
        calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in self.calls if call.closed)
        return Message("assistant", "".join(self._text), tool_calls=calls)

    def _begin_step(self, event: StepBegan) -> None:
        if self.step >= 0:
            self.history += [self.said_turn(), *self.new_turns()]
            self.past += [call for call in self.calls if call.ended is not None and not call.ended.is_error]
            self.added, self._remarks = [], []
        self.prompt = list(event.prompt) if event.prompt is not None else [*self.prompt, *self.said, *event.added]
        self.step, self.model, self.forced = event.step, event.model, event.forced
        self.routed = event.routed
        self.said, self.calls, self._text = [], [], []
        self.speaking = True
        self._parser = None if event.quoted else self._new_parser(event.forced)

    def _new_parser(self, forced: str | None) -> ToolParser | None:
        began = self.began
        assert began is not None
        if forced is not None:
            return ListParser() if forced == ANY_TOOL else NamedParser(forced)
        try:
            make = parser_maker(began.tool_format, began.tools)
        except EngineStartFailed as error:
            raise DataDamaged(f"the log of {self.run_id} cannot be understood here: {error}") from error
        return None if make is None else make()

    def _heard(self, text: str) -> list[Heard]:
        if self._parser is None:
            return self._told(text)
        return self._parsed(self._parser.feed(text))

    def _end_step(self, event: StepEnded) -> list[Heard]:
        heard = self._parsed(self._parser.finish()) if self._parser is not None else []
        self.speaking, self.finish_reason = False, event.reason
        self.paused, self._one_step = self.paused or self._one_step, False
        self.usage = Usage(
            prompt_tokens=self.usage.prompt_tokens + event.prompt_tokens,
            completion_tokens=self.usage.completion_tokens + event.completion_tokens,
            cached_tokens=self.usage.cached_tokens + event.cached_tokens,
        )
        return heard

    def _parsed(self, found: list[ParserEvent]) -> list[Heard]:
        heard: list[Heard] = []
        for part in found:
            match part:
                case Text(text):
                    heard += self._told(text)
                case CallOpened(name=name):
                    call = self._new_call(name)
                    heard.append(ToolCallOpened(0, len(self.calls) - 1, call.id, name))
                case CallArguments(text=text):
                    self.calls[-1].pieces.append(text)
                    heard.append(ToolCallArguments(0, len(self.calls) - 1, text))
                case CallClosed():
                    self.calls[-1].closed = True
                    heard.append(ToolCallClosed(0, len(self.calls) - 1, self.calls[-1].id))
                case Malformed(text, None) if self.began is not None and not self.began.agent:
                    heard += self._told(text)  # never a call of its reader's: he gets the words
                case Malformed(index=index):
                    call = self.calls[-1] if index is not None else self._new_call("unknown")
                    call.ended = CallEnded(call_id=call.id, text=_NOT_UNDERSTOOD, is_error=True)
                    heard.append(ToolEnded(0, call.id, call.name, _NOT_UNDERSTOOD, True, None))
        return heard

    def _told(self, text: str) -> list[Heard]:
        if not text:
            return []
        self._text.append(text)
        return [TextDelta(0, text)]

    def _new_call(self, name: str) -> Call:
        """A call whose id follows from the run's: whoever reads the log gives it the same."""
        began = self.began
        clients = began is not None and (not began.agent or name in began.client_tools)
        call = Call(f"call_{self.run_id.rpartition('_')[2]}{self.calls_made:04x}", name, self.calls_made, clients)
        self.calls_made += 1
        self.calls.append(call)
        return call

    def _call(self, call_id: str) -> Call:
        for call in self.calls:
            if call.id == call_id:
                return call
        raise DataDamaged(f"the log of {self.run_id} tells of a call {call_id} that its model did not make")

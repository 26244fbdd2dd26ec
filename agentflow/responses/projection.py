"""Projection: a run's log as the events of a response. Pure: run events in, response events out.

Everything follows from the record and the log, ids and numbers included, so that a stream that is read again says the same
under the same numbers, whether the run goes on, is over, or was taken up by another daemon.

    Began                   created, in_progress
    text                    a message item with one part; it ends with the step, or where a call begins
    a call's opening        a function_call item, or (the server makes it) a tool's item
    its arguments           deltas, and the whole
    ToolStarted, ToolEnded  the stages of a tool's item, which then is done; a result that is fetched again changes nothing
    ApprovalAsked           an item that is done at once; the call's own comes when it is made
    ApprovalGiven           in a response that answers one of several: in the end the items of those that wait still, once more
    Ended                   what is open ends as incomplete; then completed, incomplete or failed

A response that is stored is complete too when nothing happens until a person allows a call. Then the run goes on in another
response, whose record says behind which event of the log. Each of them tells its own part, and counts its own tokens. One that
is not stored is complete there only if it is given whole (`parts`).

What people tell a run in mid-flight is in no response, but in its conversation, where the model read it; what they say while a
person is asked, behind the question (`items`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from agentflow.agents.progress import Heard, Progress
from agentflow.agents.record import Added, ApprovalAsked, Ended, Event, StepBegan, StepEnded
from agentflow.events import TextDelta, ToolCallArguments, ToolCallClosed, ToolCallOpened, ToolEnded, ToolStarted, Usage
from agentflow.responses.events import (
    ArgumentsAdded,
    ArgumentsDone,
    Failure,
    ItemAdded,
    ItemDone,
    Moment,
    PartAdded,
    PartDone,
    ResponseEvent,
    ResponseState,
    ResponseStatus,
    StateTold,
    TextAdded,
    TextDone,
    ToolStage,
    ToolTold,
)
from agentflow.responses.ids import approval_of
from agentflow.responses.items import ApprovalItem, CallItem, Item, ItemStatus, MessageItem, ToolItem
from agentflow.responses.records import ResponseRecord

FILE_SEARCH: Final = "file_search"
"""The tool whose calls the API has items of their own for."""

_FIRST_HEARD: Final = 0x8000
"""In ids of what people said meanwhile: those of the output count from 0."""
_INCOMPLETE: Final = {"max_tokens": "max_output_tokens"}
_PROMPT_CODES: Final = frozenset({"context_length_exceeded", "invalid_request", "invalid_value", "invalid_grammar"})


@dataclass(slots=True)
class _Open:
    """An item that is not done. `item` is as it was added, but for what has asked for it."""

    item: Item
    place: int
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Projection:
    """The response of `record` after the run's events that were applied. `parts`: it is complete where a person is asked.

    `first`: the number in the id of its first item.
    """

    def __init__(self, record: ResponseRecord, first: int = 0) -> None:
        self.record = record
        self.parts = record.store
        self.progress = Progress(record.run_id)
        self._suffix = record.id.rpartition("_")[2]
        self._first = first
        self._number = 0
        self._told: list[ResponseEvent] = []
        self._output: list[Item] = []
        self._heard: list[tuple[int, MessageItem]] = []  # what people said, each in front of which item of the output
        self._unread: list[MessageItem] = []  # that the model has not read yet
        self._message: _Open | None = None
        self._calls: dict[str, _Open] = {}  # by call id
        self._over: set[str] = set()  # the ids of calls of the server's own that have a result
        self._created_ms = 0
        self._ended: Ended | None = None
        self._asked_ms: int | None = None  # when it was complete, of one that asks a person
        self._before = Usage()  # of the run, in earlier responses
        self.applied = 0
        self.followed = False

    @property
    def over(self) -> bool:
        """Whether nothing will follow. Of the log, something may: `applied` events were this response's or before it, and
        `followed` tells whether there were more.
        """
        return self._ended is not None or self.asks

    @property
    def asks(self) -> bool:
        """Whether it is over because its run waits for a person, or did."""
        return self._asked_ms is not None

    @property
    def waits(self) -> bool:
        """Whether it is over, and its run waits for a person still, as far as was read."""
        return self.asks and not self.followed

    @property
    def over_ms(self) -> int:
        """When it was over."""
        return self._asked_ms or (self._ended.at if self._ended is not None else 0)

    @property
    def is_own(self) -> bool:
        """Whether the last event was this response's, and not of the run before it."""
        return self.applied > self.record.after

    @property
    def usage(self) -> Usage:
        """What was counted so far, over all steps."""
        now, before = self.progress.usage, self._before
        return Usage(
            prompt_tokens=now.prompt_tokens - before.prompt_tokens,
            completion_tokens=now.completion_tokens - before.completion_tokens,
            cached_tokens=now.cached_tokens - before.cached_tokens,
        )

    @property
    def next_number(self) -> int:
        """The number that the next event will have."""
        return self._number

    def apply(self, event: Event) -> list[ResponseEvent]:
        """What the next event of the log says."""
        if self.over:
            self.followed = True
            return []
        heard = self.progress.apply(event)
        self.applied += 1
        if not self.is_own:
            self._over |= {each.id for each in heard if isinstance(each, ToolEnded)}
            self._before = self.progress.usage
            return []
        if self.applied == self.record.after + 1:
            self._created_ms = event.at
            self._tell_state("created")
            self._tell_state("in_progress")
        for each in heard:
            self._hear(each, event.at)
        if isinstance(event, StepEnded):
            self._end_message("incomplete" if event.reason == "length" else "completed")
        elif isinstance(event, ApprovalAsked):
            self._ask(event.call_id)
        elif isinstance(event, Ended):
            self._end(event)
        elif isinstance(event, Added):
            self._hear_of(event)
        if isinstance(event, StepBegan | Ended) or self.progress.waits_for_word:
            self._heard += [(len(self._output), message) for message in self._unread]
            self._unread.clear()
        if self._parts() and self.progress.waits_for_word:
            self._ask_again()
            self._asked_ms = event.at
            self._tell_state("completed")
        told, self._told = self._told, []
        return told

    def state(self) -> ResponseState:
        """The response as it stands."""
        ended = self._ended
        if ended is None:
            return self._state("completed" if self.asks else "in_progress")
        return self._state("cancelled" if ended.end == "cancelled" else ended.end)

    def _state(self, status: ResponseStatus) -> ResponseState:
        ended = self._ended
        state = ResponseState(record=self.record, created_ms=self._created_ms, status=status)
        if ended is None:
            usage = self.usage if self.asks else None
            return replace(state, output=tuple(self._output), usage=usage, completed_ms=self._asked_ms)
        failed, cut = ended.end == "failed", ended.end == "incomplete"
        return replace(
            state,
            output=tuple(self._output),
            usage=self.usage,
            completed_ms=ended.at if ended.end == "completed" else None,
            incomplete=_INCOMPLETE.get(ended.why, "max_messages") if cut else None,
            failure=_failure(ended) if failed else None,
        )

    def items(self) -> tuple[Item, ...]:
        """Its output, with what people told the run meanwhile, beside what came with its request."""
        found: list[Item] = list(self._output)
        for place, message in reversed(self._heard):
            found.insert(place, message)
        return tuple(found)

    # What is heard

    def _hear_of(self, added: Added) -> None:
        if self.record.run and self.applied <= self.record.after + len(self.record.input):
            return  # it is of the input, each item of which is an event
        number = self._first + _FIRST_HEARD + len(self._heard) + len(self._unread)
        item_id = f"msg_{self._suffix}{number:04x}"
        self._unread.append(MessageItem(id=item_id, role="user", texts=(added.message.content or "",)))

    def _hear(self, heard: Heard, at: int) -> None:
        match heard:
            case TextDelta(text=text):
                self._add_text(text)
            case ToolCallOpened(id=call_id, name=name):
                self._end_message("completed")
                if not self._is_held(name):
                    self._open_call(call_id, name)
            case ToolCallArguments(text=text):
                call = self._calls.get(self.progress.calls[heard.index].id)
                if call is not None:
                    self._add_arguments(call, text)
            case ToolCallClosed(id=call_id):
                if call_id in self._calls:
                    self._close_call(call_id)
            case ToolStarted(id=call_id, name=name) if call_id not in self._over:
                call = self._calls.get(call_id) or self._show_held(call_id, name)
                if name == FILE_SEARCH:
                    self._tell_stage(call, "searching")
            case ToolEnded(id=call_id) if call_id not in self._over:
                self._end_call(heard, at)

    def _parts(self) -> bool:
        """Whether the response ends where a person is asked. A run of an earlier release waits within its response."""
        began = self.progress.began
        return self.parts and began is not None and bool(began.asking)

    def _is_held(self, name: str) -> bool:
        """Whether a call's item comes only when it is made: a person is asked before that, in an item of its own."""
        began = self.progress.began
        return began is not None and name in began.asking

    def _show_held(self, call_id: str, name: str) -> _Open:
        """The item of a call that was held, or was none from its first word on."""
        self._end_message("completed")
        opened = self._open_call(call_id, name)
        call = next(call for call in self.progress.calls if call.id == call_id)
        if call.arguments:
            self._add_arguments(opened, call.arguments)
        if call.closed:
            self._close_call(call_id)
        if call.asked and isinstance(opened.item, ToolItem):
            opened.item = replace(opened.item, approval=approval_of(call_id))
        return opened

    def _add_text(self, text: str) -> None:
        message = self._message
        if message is None:
            item_id = self._item_id("msg")
            item = MessageItem(id=item_id, role="assistant", texts=(), status="in_progress")
            message = self._message = self._added(item)
            self._say(PartAdded(self._number, message.place, item_id))
        message.pieces.append(text)
        self._say(TextAdded(self._number, message.place, message.item.id, text))

    def _end_message(self, status: ItemStatus) -> None:
        message, self._message = self._message, None
        if message is None:
            return
        item_id, text = message.item.id, message.text
        self._say(TextDone(self._number, message.place, item_id, text))
        self._say(PartDone(self._number, message.place, item_id, text))
        self._done(message, MessageItem(id=item_id, role="assistant", texts=(text,), status=status))

    def _open_call(self, call_id: str, name: str) -> _Open:
        began = self.progress.began
        item: Item
        if began is None or not began.agent or name in began.client_tools:
            item = CallItem(id=self._item_id("fc"), call_id=call_id, name=name, arguments="", status="in_progress")
        else:
            item = ToolItem(
                id=self._item_id("fs" if name == FILE_SEARCH else "mcp"), name=name, arguments="", status="in_progress"
            )
        call = self._calls[call_id] = self._added(item)
        if isinstance(item, ToolItem):
            self._tell_stage(call, "in_progress")
        return call

    def _add_arguments(self, call: _Open, text: str) -> None:
        call.pieces.append(text)
        if not _is_search(call.item):
            self._say(ArgumentsAdded(self._number, call.place, call.item.id, text, isinstance(call.item, ToolItem)))

    def _close_call(self, call_id: str) -> None:
        call = self._calls[call_id]
        if not _is_search(call.item):
            own = isinstance(call.item, ToolItem)
            self._say(ArgumentsDone(self._number, call.place, call.item.id, call.text, own))
        if isinstance(call.item, CallItem):
            del self._calls[call_id]
            self._done(call, replace(call.item, arguments=call.text, status="completed"))

    def _ask(self, call_id: str) -> None:
        """A call waits for a person. The item has the call's id, by another name, for whoever answers."""
        if call_id in self._over:
            return  # it is to be made again
        call = next(call for call in self.progress.calls if call.id == call_id)
        asked = ApprovalItem(id=approval_of(call_id), name=call.name, arguments=call.arguments)
        shown = self._calls.get(call_id)
        if shown is not None and isinstance(shown.item, ToolItem):
            shown.item = replace(shown.item, approval=asked.id)
        self._done(self._added(asked), asked)

    def _ask_again(self) -> None:
        """What an earlier response asked, and waits still, is the last that this one says."""
        asked = {item.id for item in self._output}
        for call in self.progress.waiting:
            if approval_of(call.id) not in asked:
                self._ask(call.id)

    def _end_call(self, ended: ToolEnded, at: int) -> None:
        """A tool's result is there, since `at`; or what the model wrote was no call."""
        call = self._calls.get(ended.id) or self._show_held(ended.id, ended.name)
        del self._calls[ended.id]
        self._over.add(ended.id)
        if isinstance(call.item, ToolItem):
            self._tell_stage(call, "failed" if ended.is_error else "completed")
            status: ItemStatus = "failed" if ended.is_error else "completed"
            self._done(call, replace(call.item, arguments=call.text, output=ended.text, status=status, at=at))
        else:
            self._cut(call)

    def _end(self, ended: Ended) -> None:
        self._end_message("completed" if ended.end == "completed" else "incomplete")
        for call in list(self._calls.values()):
            self._cut(call)
        self._calls.clear()
        self._ended = ended
        moment: Moment = "incomplete" if ended.end == "cancelled" else ended.end
        self._tell_state(moment)

    def _cut(self, call: _Open) -> None:
        """A call that nothing becomes of."""
        item = call.item
        if isinstance(item, ToolItem):
            self._tell_stage(call, "failed")
            self._done(call, replace(item, arguments=call.text, status="incomplete"))
        elif isinstance(item, CallItem):
            self._done(call, replace(item, arguments=call.text, status="incomplete"))

    # What is said

    def _added(self, item: Item) -> _Open:
        opened = _Open(item, len(self._output))
        self._output.append(item)
        self._say(ItemAdded(self._number, opened.place, item))
        return opened

    def _done(self, opened: _Open, item: Item) -> None:
        self._output[opened.place] = item
        self._say(ItemDone(self._number, opened.place, item))

    def _tell_stage(self, call: _Open, stage: ToolStage) -> None:
        self._say(ToolTold(self._number, call.place, call.item.id, stage, _is_search(call.item)))

    def _tell_state(self, moment: Moment) -> None:
        self._say(StateTold(self._number, moment, self.state()))

    def _say(self, event: ResponseEvent) -> None:
        self._told.append(event)
        self._number += 1

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._suffix}{self._first + len(self._output):04x}"


def _is_search(item: Item) -> bool:
    return isinstance(item, ToolItem) and item.name == FILE_SEARCH


def _failure(ended: Ended) -> Failure:
    code = "invalid_prompt" if ended.why in _PROMPT_CODES else "server_error"
    return Failure(code, ended.error or "The response failed.")

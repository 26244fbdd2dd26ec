"""Calls that another's reader understands only once they are whole, found while the text is being written. Pure.

A `Shape` tells where a call begins and where it ends; what stands between is held back until its end has come, and then
given to a `Reader`, once. So a call is opened, has its arguments and is closed in one go; one that is cut anywhere is none.

    text   passed on up to where a call begins, or might begin
    head   from the opener to where the call's JSON begins
    value  the call's JSON: a marker within one of its strings is no marker
    tail   from there to the closer
    tags   a call with no JSON around it: a closer counts only where every tag within is closed

**Nothing is lost.** What should have been a call and is none comes back whole in a Malformed, or as Text if no marker
announced it. White space is dropped around calls, and nowhere else.

**Time.** Each character is looked at a constant number of times, and read once; a call of tags may have `_MOST_TRIES`
closers, any call `_LONGEST` characters that the reader sees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, NoReturn

from msgspec import Struct

from agentflow.parsing.events import CallArguments, CallClosed, CallOpened, Malformed, ParserEvent, Text
from agentflow.parsing.held import HeldText, overlap
from agentflow.parsing.value import SPACE, ValueScanner

_MOST_TRIES = 16
_LONGEST = 32_768
_BRACKETS = "[{"


class Shape(Struct, frozen=True):
    """Where calls stand in the text.

    `opener` and `closer` surround one; without a closer it ends where its JSON does. `body` is what stands between: JSON that
    is the call's arguments (`arguments`), or that names the function too (`call`), or `tags`. Of `tags`, outermost first, each
    that is opened must be closed right before what closes it. `section` surrounds all calls. Where nothing went before, a
    call may do without its opener, and begins with one of the characters `bare`. `special`: the markers are tokens that the
    engine must be told to show.
    """

    opener: str
    closer: str | None
    body: Literal["arguments", "call", "tags"]
    tags: tuple[tuple[str, str], ...] = ()
    section: tuple[str, str] | None = None
    bare: str = ""
    special: bool = False


class ReadCall(NamedTuple):
    """What a reader found: a function's name, and the JSON text of its arguments."""

    name: str
    arguments: str


Reader = Callable[[str], Sequence[ReadCall]]
"""Reads one whole call of a shape, with its section around it; a list in one opener may be several. None: it is no call."""


class WholeCallParser(HeldText):
    """A ToolParser. `names` are the functions that exist: what nothing announced is a call only of one of these."""

    def __init__(self, shape: Shape, read: Reader, names: Collection[str]) -> None:
        super().__init__()
        self._shape = shape
        self._read = read
        self._names = names
        self._fresh = True  # nothing but white space since the beginning, or since a call
        self._within = False  # a section
        self._calls = 0
        self._called = False  # in it, whether understood or not
        self._call: list[str] = []  # the text of the call that is being held back
        self._announced = True
        self._json: list[str] = []  # of it
        self._scanner = ValueScanner()
        self._tries = 0

    def finish(self) -> list[ParserEvent]:
        """As ToolParser.finish."""
        held, self._held = self._held, ""
        raw = self._taken_layout() + "".join(self._call) + held
        if self._state != self._in_text:
            return [Malformed(raw) if self._announced else Text(raw)]
        if self._within and self._fresh:
            _, end = self._shape.section or ("", "")
            if not self._called:
                return [Malformed(raw)]
            held = "" if end.startswith(held) else held
        return [] if not held and (self._calls or not raw) else [Text(raw)]

    def _in_text(self, events: list[ParserEvent]) -> bool:
        """Pass text on up to where a call, or a section, begins, or might begin."""
        shape = self._shape
        if self._fresh:
            self._set_layout_aside()
            if not self._held:
                return False
            if self._held[0] in shape.bare:
                return self._begin_call("")
        markers = self._markers()
        at, marker = min(((at, each) for each in markers if (at := self._held.find(each)) >= 0), default=(-1, ""))
        sure = at if at >= 0 else len(self._held) - max(overlap(self._held, each) for each in markers)
        if sure:
            events.append(Text(self._taken_layout() + self._held[:sure]))
            self._held = self._held[sure:]
            self._fresh = False
        if at < 0:
            return False
        self._held = self._held[len(marker) :]
        if marker == shape.opener:
            return self._begin_call(marker)
        self._layout.append(marker)
        if self._within:
            raw = self._taken_layout()
            if not self._called:
                events.append(Malformed(raw) if self._fresh else Text(raw))
        self._within = not self._within
        self._called, self._fresh = False, True
        return True

    def _markers(self) -> tuple[str, ...]:
        section = self._shape.section
        if section is None:
            return (self._shape.opener,)
        return (self._shape.opener, section[1]) if self._within else (section[0],)

    def _begin_call(self, opener: str) -> bool:
        shape = self._shape
        self._announced = opener != ""
        self._call, self._json, self._tries = [opener], [], 0
        self._scanner = ValueScanner()
        if shape.body == "tags":
            self._state = self._in_tags
        elif not opener or opener[-1] in _BRACKETS:
            self._json.append(opener[-1:])  # the call's JSON begins with the opener's end
            self._scanner.scan(opener[-1:], 0)
            self._state = self._in_value
        else:
            self._state = self._in_head
        return True

    def _in_head(self, events: list[ParserEvent]) -> bool:
        held, closer = self._held, self._shape.closer
        begin = min((at for each in _BRACKETS if (at := held.find(each)) >= 0), default=-1)
        if closer is None:
            blank = len(held) - len(held.lstrip(SPACE))
            self._take(blank)
            if blank < len(held) and blank != begin:
                return self._end_call(events, whole=False)
        else:
            end = held.find(closer)
            if end >= 0 and not 0 <= begin < end:
                self._take(end + len(closer))
                return self._end_call(events, whole=False)
            self._take(begin if begin >= 0 else len(held) - overlap(held, closer))
        if begin >= 0:
            self._state = self._in_value
        return begin >= 0

    def _in_value(self, events: list[ParserEvent]) -> bool:
        scanner = self._scanner
        end = scanner.scan(self._held, 0)
        self._json.append(self._held[:end])
        self._take(end)
        if not scanner.complete and not scanner.failed:
            return False
        if self._shape.closer is None or not self._announced:
            return self._end_call(events, whole=scanner.complete)
        self._state = self._in_tail
        return True

    def _in_tail(self, events: list[ParserEvent]) -> bool:
        return self._take_to_closer() and self._end_call(events, whole=self._scanner.complete)

    def _in_tags(self, events: list[ParserEvent]) -> bool:
        if not self._take_to_closer():
            return False
        self._tries += 1
        whole = self._all_closed()
        if not whole and self._tries < _MOST_TRIES:
            return True
        return self._end_call(events, whole=whole)

    def _take_to_closer(self) -> bool:
        """Take what goes before the closer, and it; False while it has not come."""
        held, closer = self._held, self._shape.closer or ""
        at = held.find(closer)
        self._take(at + len(closer) if at >= 0 else len(held) - overlap(held, closer))
        return at >= 0

    def _all_closed(self) -> bool:
        """Whether every tag that was opened within the call is closed where it should be."""
        text = "".join(self._call)
        text = text.removesuffix(self._shape.closer or "").rstrip(SPACE)
        for opener, closer in self._shape.tags:
            if opener not in text:
                continue
            if not text.endswith(closer):
                return False
            text = text.removesuffix(closer).rstrip(SPACE)
        return True

    def _end_call(self, events: list[ParserEvent], *, whole: bool) -> bool:
        """All of the call is there: say what it is."""
        text = "".join(self._call)
        calls = self._understood(text) if whole else []
        raw = self._taken_layout() + text
        self._call = []
        self._called = True
        self._state = self._in_text
        self._fresh = bool(calls) or self._announced
        if not calls:
            events.append(Malformed(raw) if self._announced else Text(raw))
        for name, arguments in calls:
            events += (CallOpened(self._calls, name), CallArguments(self._calls, arguments), CallClosed(self._calls))
            self._calls += 1
        return True

    def _understood(self, text: str) -> list[ReadCall]:
        """The calls that the text comes to; none unless each of them is right, and has all that the model wrote."""
        begin, end = self._shape.section or ("", "")
        written = "".join(self._json)
        if self._shape.body == "arguments":
            # The reader says whose arguments these are; they are passed on byte for byte, and it has little to read.
            head, _, tail = text.partition(written)
            found = [call._replace(arguments=written) for call in self._given(f"{begin}{head}{{}}{tail}{end}")]
            calls = found if len(found) == 1 else []
        elif self._shape.body == "call":
            found = self._given(begin + text + end)
            calls = found if _are_all_of(written, found) else []
        else:
            calls = self._of_tags(text)
        known = self._announced or all(call.name in self._names for call in calls)
        return calls if known and all(map(_is_call, calls)) else []

    def _of_tags(self, text: str) -> list[ReadCall]:
        """As `_understood`. A closer within a value is hidden from the reader, which would take it for the call's end."""
        begin, end = self._shape.section or ("", "")
        closer = self._shape.closer or ""
        within = text.removesuffix(closer)
        hidden = f"z{'q' * (1 + max(map(len, re.findall('q+', text)), default=0))}z"
        found = [
            ReadCall(name.replace(hidden, closer), arguments.replace(hidden, closer))
            for name, arguments in self._given(begin + within.replace(closer, hidden) + closer + end)
        ]
        return found if len(found) == 1 and self._has_all_values(text, found[0]) else []

    def _has_all_values(self, text: str, call: ReadCall) -> bool:
        """Whether there are as many arguments as values, and no value looks like the end of one, and was cut there."""
        if not self._shape.tags:
            return True
        opener, closer = self._shape.tags[-1]
        values = text.count(opener)
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return False
        if not isinstance(arguments, dict) or text.count(closer) != values:
            return False
        # One value may be an object with all arguments in it, which some readers take out.
        return len(arguments) == values or (values == 1 and len(arguments) > 0)

    def _given(self, text: str) -> list[ReadCall]:
        return list(self._read(text)) if len(text) <= _LONGEST else []

    def _take(self, size: int) -> None:
        self._call.append(self._held[:size])
        self._held = self._held[size:]


def _are_all_of(written: str, calls: Sequence[ReadCall]) -> bool:
    """Whether the calls are those in the JSON, every one, with the arguments that the model wrote."""
    try:
        value = json.loads(written)
        each = value if isinstance(value, list) else [value]
        told = [json.loads(call.arguments) for call in calls]
    except (ValueError, RecursionError):
        return False
    return len(told) == len(each) and all(
        isinstance(item, dict) and (arguments in item.values() or arguments == {})
        for item, arguments in zip(each, told, strict=True)
    )


def _is_call(call: ReadCall) -> bool:
    """Whether there is a name, and the arguments are one whole JSON object."""
    try:
        value = json.loads(call.arguments, parse_constant=_refuse)
        (call.name + call.arguments).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and call.name.strip() == call.name != ""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

"""Tool calls in a model's text, found while it is being written. Pure: text in, events out.

A parser takes text in pieces of any cut and says what it has understood so far. How the text was cut never shows in the
events, but for where Text and CallArguments are divided.

    MarkedParser, hermes   `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, among text
    MarkedParser, llama3   `{"name": ..., "parameters": {...}}`, after `<|python_tag|>` or not; `;` divides several
    ListParser             a JSON array of such objects, or one of them, and nothing else (see `required_schema`)
    NamedParser            the arguments of a function that is known beforehand, and nothing else (`named_schema`)

**Arguments** are passed on byte for byte as the model wrote them, as soon as the call's name is known, whatever the
order of the keys. They are not validated beyond their brackets: they may lack sense, but they end where they end.

**Nothing is lost.** Text that looks like the beginning of a marker is held back until it is one or is not. What turns
out to be no call, or ends before its time, comes back whole in a Malformed; an object in llama3's form that is no call
of a known function comes back as Text. White space is dropped around calls, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from agentflow.messages import Tool
from agentflow.schema import rebased
from agentflow.toolcall import SPACE, CallArguments, CallClosed, CallEvent, CallOpened, CallScanner, ValueScanner

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class Text(Struct, frozen=True):
    """More of the answer's text."""

    text: str


class Malformed(Struct, frozen=True):
    """What should have been a call is none. `text` is all of it; `index` the call's, if it had been opened."""

    text: str
    index: int | None = None


ParserEvent = Text | CallEvent | Malformed


class ToolParser(Protocol):
    """What the three parsers have in common."""

    def feed(self, text: str) -> list[ParserEvent]:
        """Take more text."""

    def finish(self) -> list[ParserEvent]:
        """The text is at its end: what was held back comes out."""


class Format(Struct, frozen=True):
    """How calls stand in the text.

    `opener` and `closer` surround a call. `bare` calls need no opener where no text went before them, `separator`
    characters may stand between them.
    """

    opener: str
    closer: str | None = None
    bare: bool = False
    separator: str = ""


FORMATS: dict[Literal["hermes", "llama3"], Format] = {
    "hermes": Format(opener="<tool_call>", closer="</tool_call>"),
    "llama3": Format(opener="<|python_tag|>", bare=True, separator=";"),
}


class MarkedParser:
    """Calls among text. `names` are the functions that exist: a bare object that names no other is a call."""

    def __init__(self, form: Format, names: Collection[str]) -> None:
        self._format = form
        self._names = names
        self._state: Callable[[list[ParserEvent]], bool] = self._in_text
        self._held = ""
        self._fresh = True  # nothing but white space and separators since the beginning, or since a call
        self._calls = 0
        self._call: CallScanner | None = None
        self._raw: list[str] = []  # of the call that is being read

    def feed(self, text: str) -> list[ParserEvent]:
        """As ToolParser.feed."""
        self._held += text
        events: list[ParserEvent] = []
        while self._held and self._state(events):
            pass
        return events

    def finish(self) -> list[ParserEvent]:
        """As ToolParser.finish."""
        held, self._held = self._held, ""
        if self._call is not None:
            raw = "".join(self._raw) + held
            return [self._no_call(self._call, raw)]
        if self._state == self._after_call and self._format.closer is not None:
            held = "" if self._format.closer.startswith(held.lstrip(SPACE)) else held
        if not held or (self._calls and self._fresh and not held.strip(self._layout)):
            return []
        return [Text(held)]

    @property
    def _layout(self) -> str:
        """Characters that may stand before a call without being text."""
        return SPACE + (self._format.separator if self._calls else "")

    def _in_text(self, events: list[ParserEvent]) -> bool:
        """Pass text on up to where a call begins, or might begin."""
        held, opener = self._held, self._format.opener
        if self._fresh:
            rest = held.lstrip(self._layout)
            if not rest:
                return False
            if self._format.bare and rest.startswith("{"):
                return self._begin_call(held[: -len(rest)], rest, bare=True)
        at = held.find(opener)
        if at >= 0:
            if at and not (self._fresh and not held[:at].strip(self._layout)):
                events.append(Text(held[:at]))
            return self._begin_call(opener, held[at + len(opener) :], bare=False)
        sure = len(held) - _overlap(held, opener)
        if sure and not (self._fresh and not held[:sure].strip(self._layout)):
            events.append(Text(held[:sure]))
            self._held = held[sure:]
            self._fresh = False
        return False

    def _begin_call(self, raw: str, rest: str, *, bare: bool) -> bool:
        self._call = CallScanner(self._calls, names=self._names if bare else None)
        self._raw = [raw]
        self._held = rest
        self._state = self._in_call
        return True

    def _in_call(self, events: list[ParserEvent]) -> bool:
        call = self._call
        assert call is not None
        taken = call.feed(self._held)
        self._raw.append(self._held[:taken])
        self._held = self._held[taken:]
        events += call.take_events()
        if call.done:
            self._call = None
            self._calls += 1
            self._fresh = True
            self._state = self._after_call if self._format.closer else self._in_text
        elif call.failed and call.optional and not call.opened:
            events.append(Text("".join(self._raw)))
            self._call = None
            self._fresh = False
            self._state = self._in_text
        elif call.failed:
            self._state = self._in_failed_call
        return True

    def _after_call(self, _: list[ParserEvent]) -> bool:
        """Drop the closer, if the model wrote one."""
        closer = self._format.closer or ""
        rest = self._held.lstrip(SPACE)
        if rest.startswith(closer):
            self._held = rest[len(closer) :]
        elif closer.startswith(rest):
            return False
        self._state = self._in_text
        return True

    def _in_failed_call(self, events: list[ParserEvent]) -> bool:
        """Collect what cannot be understood, up to the closer or to the end."""
        call, closer = self._call, self._format.closer
        assert call is not None
        at = -1 if closer is None else self._held.find(closer)
        if at < 0 or closer is None:
            sure = len(self._held) - _overlap(self._held, closer or "")
            self._raw.append(self._held[:sure])
            self._held = self._held[sure:]
            return False
        self._raw.append(self._held[: at + len(closer)])
        self._held = self._held[at + len(closer) :]
        events.append(self._no_call(call, "".join(self._raw)))
        self._fresh = True
        self._state = self._in_text
        return True

    def _no_call(self, call: CallScanner, raw: str) -> ParserEvent:
        self._call = None
        self._calls += call.opened
        return Text(raw) if call.optional and not call.opened else Malformed(raw, call.index if call.opened else None)


class ListParser:
    """A text that is a JSON array of calls, or one call."""

    def __init__(self) -> None:
        self._state = "start"  # start | item | call | next | end | failed
        self._held = ""
        self._array = False
        self._calls = 0
        self._call: CallScanner | None = None
        self._raw: list[str] = []  # since the last whole call

    def feed(self, text: str) -> list[ParserEvent]:
        """As ToolParser.feed."""
        events: list[ParserEvent] = []
        position = 0
        while position < len(text):
            position = self._step(text, position, events)
        return events

    def finish(self) -> list[ParserEvent]:
        """As ToolParser.finish."""
        if self._state == "end":
            return []
        index = self._calls if self._call is not None and self._call.opened else None
        return [Malformed("".join(self._raw), index)]

    def _step(self, text: str, position: int, events: list[ParserEvent]) -> int:
        if self._state == "call":
            return self._in_call(text, position, events)
        if self._state == "failed":
            self._raw.append(text[position:])
            return len(text)
        character = text[position]
        if character in SPACE:
            self._raw.append(character)
            return position + 1
        if character == "{" and self._state in {"start", "item"}:
            self._state = "call"
            self._call = CallScanner(self._calls)
            return position
        follower = _LIST_STATES.get((self._state, character))
        if follower is None or (follower == "end" and not self._array):
            self._state = "failed"
            return position
        self._array = True
        self._state = follower
        self._raw.append(character)
        return position + 1

    def _in_call(self, text: str, position: int, events: list[ParserEvent]) -> int:
        call = self._call
        assert call is not None
        taken = call.feed(text[position:])
        self._raw.append(text[position : position + taken])
        events += call.take_events()
        if call.done:
            self._call = None
            self._calls += 1
            self._raw = []
            self._state = "next" if self._array else "end"
        elif call.failed:
            self._state = "failed"
        return position + taken


_LIST_STATES = {("start", "["): "item", ("next", ","): "item", ("next", "]"): "end"}
"""Characters that move a ListParser between its items."""


class NamedParser:
    """A text that is the arguments of the function `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened = False
        self._value = ValueScanner()
        self._raw: list[str] = []
        self._excess: list[str] = []

    def feed(self, text: str) -> list[ParserEvent]:
        """As ToolParser.feed."""
        self._raw.append(text)
        events: list[ParserEvent] = []
        start = 0 if self._value.begun else len(text) - len(text.lstrip(SPACE))
        if start == len(text):
            return events
        if not self._opened:
            self._opened = True
            events.append(CallOpened(0, self._name))
        end = start if self._value.complete or self._value.failed else self._scan(text, start, events)
        self._excess.append(text[end:])
        return events

    def finish(self) -> list[ParserEvent]:
        """As ToolParser.finish."""
        if self._value.complete or self._value.ends_here():
            events: list[ParserEvent] = [] if self._value.complete else [CallClosed(0)]
            if excess := "".join(self._excess).strip(SPACE):
                events.append(Malformed(excess))
            return events
        return [Malformed("".join(self._raw), 0 if self._opened else None)]

    def _scan(self, text: str, start: int, events: list[ParserEvent]) -> int:
        end = self._value.scan(text, start)
        if end > start:
            events.append(CallArguments(0, text[start:end]))
        if self._value.complete:
            events.append(CallClosed(0))
        return end


def required_schema(tools: Sequence[Tool], parallel: bool) -> dict[str, Any]:
    """The schema of one call or more of any of `tools`: an array if `parallel`, one object if not."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": {"$ref": f"#/$defs/tool{number}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for number, tool in enumerate(tools)
    ]
    definitions = {f"tool{n}": rebased(named_schema(tool), f"#/$defs/tool{n}") for n, tool in enumerate(tools)}
    call: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    form = {"type": "array", "minItems": 1, "items": call} if parallel else call
    return {**form, "$defs": definitions}


def named_schema(tool: Tool) -> dict[str, Any]:
    """The schema of the arguments of `tool`."""
    return tool.parameters or _NO_ARGUMENTS


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`, but not all of it."""
    sizes = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)

"""Answers that are calls and nothing else, because the engine was made to write them so. Pure.

ListParser    a JSON array of `{"name": ..., "arguments": {...}}`, or one of them (see `required_schema`)
NamedParser   the arguments of a function that is known beforehand (see `named_schema`)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentflow.messages import Tool
from agentflow.parsing.events import CallArguments, CallClosed, CallOpened, Malformed, ParserEvent
from agentflow.parsing.jsoncall import JsonCall
from agentflow.parsing.value import PIECE, SPACE, ValueScanner
from agentflow.schema import rebased

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_LIST_STATES = {("start", "["): "item", ("next", ","): "item", ("next", "]"): "end"}
"""Characters that move a ListParser between its items."""


class ListParser:
    """A text that is a JSON array of calls, or one call."""

    def __init__(self) -> None:
        self._state = "start"  # start | item | call | next | end | failed
        self._held = ""
        self._array = False
        self._calls = 0
        self._call: JsonCall | None = None
        self._raw: list[str] = []  # since the last whole call

    def feed(self, text: str) -> list[ParserEvent]:
        """As ToolParser.feed."""
        events: list[ParserEvent] = []
        for start in range(0, len(text), PIECE):
            piece, position = text[start : start + PIECE], 0
            while position < len(piece):
                position = self._step(piece, position, events)
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
            self._call = JsonCall(self._calls)
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

"""What follows Mistral's `[TOOL_CALLS]`. Pure.

[{"name": "f", "arguments": {...}}, ...]   or one such object
f{...}
f[ARGS]{...}
f[CALL_ID]123456789[ARGS]{...}
"""

from __future__ import annotations

import re
from collections.abc import Collection

from agentflow.parsing.calllist import CallList
from agentflow.parsing.events import CallArguments, CallClosed, CallEvent, CallOpened, CallReader
from agentflow.parsing.jsoncall import JsonCall
from agentflow.parsing.value import SPACE, ValueScanner, match_end

_WORD = re.compile(r'[^\s\[\]{}",:]*')
_MARKS = {"name": ("[CALL_ID]", "[ARGS]"), "id": ("[ARGS]",)}
"""The marks that may follow a part of a call."""


class MistralCalls:
    """All that one marker announces. It says so for certain, and `names` say nothing here."""

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        del names
        self.certain = True
        self._index = index
        self._reader: CallReader = _NamedCall(index)
        self._begun = False

    @property
    def done(self) -> bool:
        """As in CallReader."""
        return self._reader.done

    @property
    def failed(self) -> bool:
        """As in CallReader."""
        return self._reader.failed

    @property
    def calls(self) -> int:
        """As in CallReader."""
        return self._reader.calls

    @property
    def opened(self) -> bool:
        """As in CallReader."""
        return self._reader.opened

    def feed(self, text: str) -> int:
        """As CallReader.feed."""
        position = 0
        if not self._begun:
            position = len(text) - len(text.lstrip(SPACE))
            if position == len(text):
                return position
            self._begun = True
            if text[position] == "[":
                self._reader = CallList(JsonCall, self._index)
            elif text[position] == "{":
                self._reader = JsonCall(self._index)
        return position + self._reader.feed(text[position:])

    def take_events(self) -> list[CallEvent]:
        """As CallReader.take_events."""
        return self._reader.take_events()


class _NamedCall:
    """A name, perhaps marks, and arguments in braces. It is opened once the arguments begin."""

    def __init__(self, index: int) -> None:
        self.calls = 0
        self.done = self.failed = False
        self.certain = True
        self._index = index
        self._part = "name"  # name | id | arguments
        self._words: list[str] = []
        self._mark = ""  # what was seen of one
        self._ended = False  # the word: space or a mark came
        self._value = ValueScanner()
        self._events: list[CallEvent] = []

    @property
    def opened(self) -> bool:
        """As in CallReader."""
        return self._value.begun and not self.done

    def feed(self, text: str) -> int:
        """As CallReader.feed."""
        position = 0
        while position < len(text) and not (self.done or self.failed):
            position = self._arguments(text, position) if self._value.begun else self._heading(text, position)
        return position

    def take_events(self) -> list[CallEvent]:
        """As CallReader.take_events."""
        events, self._events = self._events, []
        return events

    def _heading(self, text: str, position: int) -> int:
        character = text[position]
        if self._mark or character == "[":
            return self._in_mark(character, position)
        if character in SPACE:
            self._ended = True
            return position + 1
        name = "".join(self._words) if character == "{" else ""
        if name and self._part != "id":
            self._events.append(CallOpened(self._index, name))
            return self._arguments(text, position)
        end = match_end(_WORD, text, position)
        self.failed = self._ended or end == position or self._part == "arguments"
        if self.failed:
            return position
        if self._part == "name":
            self._words.append(text[position:end])
        return end

    def _in_mark(self, character: str, position: int) -> int:
        mark = self._mark + character
        marks = _MARKS.get(self._part, ()) if self._words else ()
        self.failed = not any(known.startswith(mark) for known in marks)
        if self.failed:
            return position
        self._mark = mark
        if mark in marks:
            self._mark = ""
            self._part = "id" if mark == "[CALL_ID]" else "arguments"
            self._ended = False
        return position + 1

    def _arguments(self, text: str, position: int) -> int:
        end = self._value.scan(text, position)
        self.failed = self._value.failed
        if end > position:
            self._events.append(CallArguments(self._index, text[position:end]))
        if self._value.complete:
            self.done, self.calls = True, 1
            self._events.append(CallClosed(self._index))
        return end

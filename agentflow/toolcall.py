"""One tool call, understood while it is being written. Pure: the ground that toolparser.py stands on.

`ValueScanner` finds the end of a JSON value; `CallScanner` reads one call and passes its arguments on as they come.
Both take pieces of any cut, look at each character once, and do not recurse, however deep the value is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from msgspec import Struct

SPACE = " \t\r\n"
_ARGUMENT_KEYS = ("arguments", "parameters")
_SCALAR_STARTS = "-0123456789tfn"
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_STRING_BODY = re.compile(r'[^"\\]*')
_NO_STRUCTURE = re.compile(r'[^"{}\[\]]*')


class CallOpened(Struct, frozen=True):
    """Call `index` (0, 1, ...) of the function `name` began."""

    index: int
    name: str


class CallArguments(Struct, frozen=True):
    """More of the JSON text of call `index`'s arguments."""

    index: int
    text: str


class CallClosed(Struct, frozen=True):
    """The arguments of call `index` are one whole JSON value."""

    index: int


CallEvent = CallOpened | CallArguments | CallClosed


class CallScanner:
    """One `{"name": ..., "arguments": ...}` in any order of keys; `parameters` means `arguments`.

    With `names` it is an `optional` one: it is opened only once it has both a name among these and arguments.
    """

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        self.index = index
        self.optional = names is not None
        self.opened = self.done = self.failed = False
        self._names = names
        self._state: Callable[[str, int], int] = self._punctuation
        self._expected = "{"
        self._value = ValueScanner()
        self._pieces: list[str] = []  # of a key or a name
        self._key = ""
        self._name: str | None = None
        self._has_arguments = False
        self._arguments: list[str] = []  # that wait for the name
        self._events: list[CallEvent] = []

    def feed(self, text: str) -> int:
        """Take text; returns how much of it was understood, all of it unless the call is `done` or `failed` now."""
        position = 0
        while position < len(text) and not (self.done or self.failed):
            position = self._state(text, position)
        return position

    def take_events(self) -> list[CallEvent]:
        """What was understood since the last time."""
        events, self._events = self._events, []
        return events

    def _punctuation(self, text: str, position: int) -> int:
        """White space, and one of the characters that are expected."""
        character = text[position]
        if character in SPACE:
            return position + 1
        if character not in self._expected:
            self.failed = True
            return position
        if character == '"':
            return self._begin_value(self._in_key, position)
        if character == "}":
            self._end()
        elif character == ":":
            self._state = self._before_value
        else:
            self._expected = '"' if character == "," else '"}'
        return position + 1

    def _begin_value(self, state: Callable[[str, int], int], position: int) -> int:
        self._value = ValueScanner()
        self._pieces = []
        self._state = state
        return position

    def _before_value(self, text: str, position: int) -> int:
        if text[position] in SPACE:
            return position + 1
        if self._key in _ARGUMENT_KEYS:
            self.failed = self._has_arguments
            self._has_arguments = True
            self._open_if_ready()
        return self._begin_value(self._in_arguments if self._key in _ARGUMENT_KEYS else self._in_other, position)

    def _in_key(self, text: str, position: int) -> int:
        end = self._scan(text, position)
        self._pieces.append(text[position:end])
        if self._value.complete:
            self._key = self._text() or ""
            self._state, self._expected = self._punctuation, ":"
        return end

    def _in_other(self, text: str, position: int) -> int:
        """The name's value, or one that is of no interest."""
        end = self._scan(text, position)
        if self._key == "name":
            self._pieces.append(text[position:end])
        if self._value.complete:
            if self._key == "name":
                self._set_name()
            self._state, self._expected = self._punctuation, ",}"
        return end

    def _in_arguments(self, text: str, position: int) -> int:
        end = self._scan(text, position)
        if end > position:
            if self.opened:
                self._events.append(CallArguments(self.index, text[position:end]))
            else:
                self._arguments.append(text[position:end])
        if self._value.complete:
            self._state, self._expected = self._punctuation, ",}"
        return end

    def _scan(self, text: str, position: int) -> int:
        end = self._value.scan(text, position)
        self.failed = self._value.failed
        return end

    def _text(self) -> str | None:
        """The JSON string in `_pieces`; None, and the call failed, when it is none."""
        try:
            value = json.loads("".join(self._pieces), strict=False)
            value.encode()
        except (ValueError, AttributeError):  # AttributeError: it is no string
            self.failed = True
            return None
        return str(value)

    def _set_name(self) -> None:
        name = self._text()
        if not name or self._name is not None or (self._names is not None and name not in self._names):
            self.failed = True
            return
        self._name = name
        self._open_if_ready()

    def _open_if_ready(self) -> None:
        if self._name is None or self.failed or self.opened or (self.optional and not self._has_arguments):
            return
        self.opened = True
        self._events.append(CallOpened(self.index, self._name))
        if self._arguments:
            self._events.append(CallArguments(self.index, "".join(self._arguments)))

    def _end(self) -> None:
        """The object is whole. One that has no name, or is optional and has no arguments, is no call."""
        if not self.opened:
            self.failed = True
            return
        if not self._has_arguments:
            self._events.append(CallArguments(self.index, "{}"))
        self.done = True
        self._events.append(CallClosed(self.index))


class ValueScanner:
    """Finds the end of one JSON value. Brackets must match; nothing else is checked."""

    def __init__(self) -> None:
        self.begun = self.complete = self.failed = False
        self._scalar = False
        self._open: list[str] = []  # closing brackets to come, innermost last
        self._in_string = False
        self._escaped = False

    def scan(self, text: str, position: int) -> int:
        """Go on from `position`, no white space at first; returns the end of what belongs to the value."""
        if not self.begun:
            self.begun = True
            self._scalar = text[position] in _SCALAR_STARTS
            self.failed = not self._scalar and text[position] not in '{["'
        while position < len(text) and not (self.complete or self.failed):
            if self._scalar:
                position = _match_end(_SCALAR, text, position)
                self.complete = position < len(text)
            elif self._in_string:
                position = self._string(text, position)
            else:
                position = self._structure(text, position)
        return position

    def ends_here(self) -> bool:
        """Whether the value is whole if no more text comes: a number's end shows in no other way."""
        return self.complete or (self.begun and self._scalar)

    def _string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        position = _match_end(_STRING_BODY, text, position)
        if position == len(text):
            return position
        if text[position] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.complete = not self._open
        return position + 1

    def _structure(self, text: str, position: int) -> int:
        position = _match_end(_NO_STRUCTURE, text, position)
        if position == len(text):
            return position
        character = text[position]
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._open.append("}" if character == "{" else "]")
        elif not self._open or self._open.pop() != character:
            self.failed = True
            return position
        else:
            self.complete = not self._open
        return position + 1


def _match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Where a pattern that always matches ends."""
    match = pattern.match(text, position)
    return position if match is None else match.end()

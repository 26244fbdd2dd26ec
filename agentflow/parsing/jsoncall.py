"""A call that is a JSON object, understood while it is being written. Pure.

`JsonCall` passes a call's arguments on as they come, byte for byte, as soon as its name is known, whatever the order of the
keys. It looks at each character once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from agentflow.parsing.events import CallArguments, CallClosed, CallEvent, CallOpened
from agentflow.parsing.value import SPACE, ValueScanner

_ARGUMENT_KEYS = ("arguments", "parameters")


class JsonCall:
    """One `{"name": ..., "arguments": ...}` in any order of keys; `parameters` means `arguments`.

    With `names` it may be no call: it is opened only once it has both a name among these and arguments.
    """

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        self.calls = 0
        self.done = self.failed = False
        self._index = index
        self._began = False
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

    @property
    def opened(self) -> bool:
        """As in CallReader."""
        return self._began and not self.done

    @property
    def certain(self) -> bool:
        """As in CallReader."""
        return self._names is None or self._began

    def feed(self, text: str) -> int:
        """As CallReader.feed."""
        position = 0
        while position < len(text) and not (self.done or self.failed):
            position = self._state(text, position)
        return position

    def take_events(self) -> list[CallEvent]:
        """As CallReader.take_events."""
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
            if self._began:
                self._events.append(CallArguments(self._index, text[position:end]))
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
        if self._name is None or self.failed or self._began or (self._names is not None and not self._has_arguments):
            return
        self._began = True
        self._events.append(CallOpened(self._index, self._name))
        if self._arguments:
            self._events.append(CallArguments(self._index, "".join(self._arguments)))

    def _end(self) -> None:
        """The object is whole. One that was not opened by now is no call."""
        if not self._began:
            self.failed = True
            return
        if not self._has_arguments:
            self._events.append(CallArguments(self._index, "{}"))
        self.done, self.calls = True, 1
        self._events.append(CallClosed(self._index))

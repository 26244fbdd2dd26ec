"""A call in Python's syntax, `f(city="SF", days=3)`, understood while it is being written. Pure.

The end of the call is where its brackets match, outside strings: it is found as the text comes, each character looked at
once, with no recursion. Only then are the arguments read, all at once (see literal.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from agentflow.parsing.events import CallArguments, CallClosed, CallEvent, CallOpened
from agentflow.parsing.literal import InvalidLiteral, arguments_json
from agentflow.parsing.value import SPACE, match_end

_NAME_START = re.compile(r"[^\W\d]")
_NAME = re.compile(r"[\w.-]*")
_PLAIN = re.compile(r"[^'\"()\[\]{}]*")
_BODIES = {
    "'": re.compile(r"[^'\\\r\n]*"),
    '"': re.compile(r'[^"\\\r\n]*'),
    "'''": re.compile(r"[^'\\]*"),
    '"""': re.compile(r'[^"\\]*'),
}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class PythonicCall:
    """One call. It is opened at its bracket; with `names`, only if it is of a function among these.

    Names may hold dots and hyphens, as those of tools do.
    """

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        self.calls = 0
        self.done = self.failed = False
        self._index = index
        self._names = names
        self._began = False
        self._state: Callable[[str, int], int] = self._in_name
        self._name: list[str] = []
        self._raw: list[str] = []  # of the arguments
        self._open = [")"]  # closing brackets to come, innermost last
        self._quote = ""  # that ends the string; while it begins, what was seen of its beginning
        self._quotes = 0  # how many of them were just seen, in a string in triple quotes
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
            start, began = position, self._began
            position = self._state(text, position)
            if began:
                self._raw.append(text[start:position])
        if self.done:
            self._close()
        return position

    def take_events(self) -> list[CallEvent]:
        """As CallReader.take_events."""
        events, self._events = self._events, []
        return events

    def _in_name(self, text: str, position: int) -> int:
        if not self._name and not _NAME_START.match(text, position):
            self.failed = True
            return position
        end = match_end(_NAME, text, position)
        self._name.append(text[position:end])
        if end < len(text):
            self._state = self._after_name
        return end

    def _after_name(self, text: str, position: int) -> int:
        if text[position] in SPACE:
            return position + 1
        name = "".join(self._name)
        if text[position] != "(" or (self._names is not None and name not in self._names):
            self.failed = True
            return position
        self._began = True
        self._events.append(CallOpened(self._index, name))
        self._state = self._in_arguments
        return position + 1

    def _in_arguments(self, text: str, position: int) -> int:
        position = match_end(_PLAIN, text, position)
        if position == len(text):
            return position
        character = text[position]
        if character in _CLOSERS:
            self._open.append(_CLOSERS[character])
        elif character in "'\"":
            self._quote, self._state = character, self._at_quotes
        elif self._open.pop() != character:
            self.failed = True
            return position
        else:
            self.done = not self._open
        return position + 1

    def _at_quotes(self, text: str, position: int) -> int:
        """After one quote, or two: it is a string's beginning, an empty string, or the beginning of a triple."""
        if text[position] == self._quote[0]:
            self._quote += text[position]
            if len(self._quote) == 3:
                self._quotes, self._state = 0, self._in_string
            return position + 1
        self._state = self._in_string if len(self._quote) == 1 else self._in_arguments
        return position

    def _in_string(self, text: str, position: int) -> int:
        end = match_end(_BODIES[self._quote], text, position)
        if end > position:
            self._quotes = 0
        if end == len(text):
            return end
        character = text[end]
        if character == "\\":
            self._quotes, self._state = 0, self._after_backslash
        elif character != self._quote[0]:
            self.failed = True
            return end
        else:
            self._quotes += 1
            if len(self._quote) == 1 or self._quotes == 3:
                self._quotes, self._state = 0, self._in_arguments
        return end + 1

    def _after_backslash(self, _: str, position: int) -> int:
        self._state = self._in_string
        return position + 1

    def _close(self) -> None:
        try:
            arguments = arguments_json("".join(self._raw)[:-1])
        except InvalidLiteral:
            self.done, self.failed = False, True
            return
        self.calls = 1
        self._events += (CallArguments(self._index, arguments), CallClosed(self._index))

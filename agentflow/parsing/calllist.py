"""A list of calls in brackets, of whatever kind the calls are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from agentflow.parsing.events import CallEvent, CallReader
from agentflow.parsing.value import SPACE

MakeReader = Callable[[int, Collection[str] | None], CallReader]
"""Makes the reader of a call with this index; of one that may be no call, unless it is of a function among these."""


class CallList:
    """`[call, call]`: at least one, and a comma may follow the last.

    What follows a whole call, but for a comma or the end of the list, belongs to the list no more: the model forgot its
    end. With `names` it may be no list of calls, until one is opened.
    """

    def __init__(self, make: MakeReader, index: int, names: Collection[str] | None = None) -> None:
        self.calls = 0
        self.done = self.failed = False
        self._make = make
        self._index = index
        self._names = names
        self._expected = "["
        self._call: CallReader | None = None

    @property
    def opened(self) -> bool:
        """As in CallReader."""
        return self._call is not None and self._call.opened

    @property
    def certain(self) -> bool:
        """As in CallReader."""
        return self._names is None or self.calls > 0 or self.opened

    def feed(self, text: str) -> int:
        """As CallReader.feed."""
        position, calls = 0, self.calls
        while position < len(text) and self.calls == calls and not (self.done or self.failed):
            position = (
                self._in_call(text, position) if self._expected == "" else self._between(text[position], position)
            )
        return position

    def take_events(self) -> list[CallEvent]:
        """As CallReader.take_events."""
        return [] if self._call is None else self._call.take_events()

    def _between(self, character: str, position: int) -> int:
        if character in SPACE:
            return position + 1
        if self._expected == "call":
            return self._begin_call(character, position)
        if character == "]" and self.calls:
            self.done = True
        elif character == self._expected:
            self._expected = "call"
        else:
            self.done, self.failed = self.calls > 0, self.calls == 0
            return position
        return position + 1

    def _begin_call(self, character: str, position: int) -> int:
        if character == "]" and self.calls:
            self.done = True
            return position + 1
        self._expected = ""
        self._call = self._make(self._index + self.calls, self._names if self.calls == 0 else None)
        return position

    def _in_call(self, text: str, position: int) -> int:
        call = self._call
        assert call is not None
        taken = call.feed(text[position:])
        self.failed = call.failed
        if call.done:
            self.calls += 1
            self._expected = ","
        return position + taken

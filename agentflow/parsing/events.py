"""What parsers say of a model's text, and what all of them have in common."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Text(Struct, frozen=True):
    """More of the answer's text."""

    text: str


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


class Malformed(Struct, frozen=True):
    """What should have been a call is none. `text` is all of it; `index` the call's, if it had been opened."""

    text: str
    index: int | None = None


CallEvent = CallOpened | CallArguments | CallClosed
ParserEvent = Text | CallEvent | Malformed


class ToolParser(Protocol):
    """Finds calls in one answer. However its text is cut, the events differ only in where texts are divided."""

    def feed(self, text: str) -> list[ParserEvent]:
        """Take more text."""

    def finish(self) -> list[ParserEvent]:
        """The text is at its end: what was held back comes out."""


class CallReader(Protocol):
    """Reads what stands at one place in the text: a call, or a list of them.

    Of its attributes, `calls` counts the whole calls so far; `opened` says that one more has been opened; `certain`
    that what is read is meant to be a call: if not, it is the answer's text once it `failed`.
    """

    @property
    def done(self) -> bool:
        """All is read."""

    @property
    def failed(self) -> bool:
        """It cannot be understood."""

    @property
    def calls(self) -> int: ...

    @property
    def opened(self) -> bool: ...

    @property
    def certain(self) -> bool: ...

    def feed(self, text: str) -> int:
        """Take text, up to the end of the first call in it; returns how much of it was taken.

        That is less than all only when a call was closed, or all is `done` or `failed`.
        """

    def take_events(self) -> list[CallEvent]:
        """What was understood since the last time."""

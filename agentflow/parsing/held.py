"""HeldText: what parsers that find calls among text have in common: text is held until it is known what it is. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from agentflow.parsing.events import ParserEvent
from agentflow.parsing.value import PIECE, SPACE


class HeldText(ABC):
    """Root of such parsers. `_state` looks at what is held, from its beginning on; False: it needs more than that."""

    def __init__(self) -> None:
        self._state: Callable[[list[ParserEvent]], bool] = self._in_text
        self._held = ""
        self._layout: list[str] = []  # what stands around calls, such as white space, and may yet turn out to be text

    def feed(self, text: str) -> list[ParserEvent]:
        """As ToolParser.feed."""
        events: list[ParserEvent] = []
        for start in range(0, len(text), PIECE):
            self._held += text[start : start + PIECE]
            while self._held and self._state(events):
                pass
        return events

    @abstractmethod
    def _in_text(self, events: list[ParserEvent]) -> bool:
        """Pass text on up to where a call begins, or might begin."""

    def _set_layout_aside(self, characters: str = SPACE) -> None:
        rest = self._held.lstrip(characters)
        if len(rest) < len(self._held):
            self._layout.append(self._held[: len(self._held) - len(rest)])
            self._held = rest

    def _taken_layout(self) -> str:
        layout = "".join(self._layout)
        self._layout.clear()
        return layout


def overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`, but not all of it."""
    sizes = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)

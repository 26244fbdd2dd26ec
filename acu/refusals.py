"""Refusals: what speaks against a start, collected, so that all of it is told at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from acu.errors import StartRefused


class Refusals:
    """The problems so far, in the order in which they were found."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note the StartRefused that the block raises, and go on behind it."""
        try:
            yield
        except StartRefused as refused:
            self._problems += refused.problems

    def tell(self) -> None:
        """Raise StartRefused with everything that was noted, if anything was."""
        if self._problems:
            raise StartRefused(*dict.fromkeys(self._problems))

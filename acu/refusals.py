"""Refusals: what speaks against a start, collected, so that all of it is told at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from acu.errors import StartRefused

_FEW, _NAME = 3, 120  # names in a message, and characters of each


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


def few(names: Sequence[str]) -> str:
    """Names for a message, in which nobody reads a thousand: the first three, and how many more there are."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(name[:_NAME] for name in names[:_FEW]) + more

"""Readers: the searches that are going on in a collection, told apart by when they began."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Readers:
    """Counts searches, so that the keeper can wait for those that began before a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn = 0
        self._inside: dict[int, int] = {}

    def enter(self) -> int:
        """A search begins; `leave` takes what this returns."""
        with self._changed:
            self._inside[self._turn] = self._inside.get(self._turn, 0) + 1
            return self._turn

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Between `enter` and `leave`."""
        turn = self.enter()
        try:
            yield
        finally:
            self.leave(turn)

    def leave(self, turn: int) -> None:
        """It ended."""
        with self._changed:
            self._inside[turn] -= 1
            if not self._inside[turn]:
                del self._inside[turn]
                self._changed.notify_all()

    def wait_for_earlier(self) -> None:
        """Return once every search that has begun by now has ended."""
        with self._changed:
            before = self._turn
            self._turn += 1
            while any(turn <= before for turn in self._inside):
                self._changed.wait()

"""Looks: parts of an examination, each in a thread of its own, none of which can spoil or hold up the whole.

A look that fails, or is not over when time is up, has its default, and the Sight's `unread` gets a sentence. The threads are
daemons: one that waits for a disk that never answers does not keep the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from acu.doctor.sight import Sight

T = TypeVar("T")


class Look(Generic[T]):
    """One part, begun. `value` waits for it."""

    def __init__(self, what: str, see: Callable[[], T], default: T, sight: Sight, until: float) -> None:
        self._what = what
        self._see = see
        self._default = default
        self._sight = sight
        self._until = until
        self._seen: T = default
        self._thread = threading.Thread(target=self._run, name=f"look at {what}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._seen = self._see()
        except Exception as error:  # noqa: BLE001  whatever it met: the other parts are to be told
            self._sight.note(self._what, error)

    def value(self) -> T:
        """What was seen, else the default. It waits no longer than until time is up."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._thread.is_alive():
            self._sight.note(self._what, TimeoutError("it took too long"))
            return self._default
        return self._seen


class Looks:
    """All parts of one examination, which has `patience_s` seconds from now."""

    def __init__(self, sight: Sight, patience_s: float) -> None:
        self._sight = sight
        self._until = time.monotonic() + patience_s

    def at(self, what: str, see: Callable[[], T], default: T) -> Look[T]:
        """Begin to look. `what` names it in `unread`."""
        return Look(what, see, default, self._sight, self._until)

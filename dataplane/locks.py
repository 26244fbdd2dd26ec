"""ReadersWriterLock: many searches in a graph at a time, or one that changes it.

A writer that waits lets no new reader in, and holds the lock for a few inserts at a time (about two milliseconds), so
that a search waits for one such piece at most; between two pieces all readers that wait are let in first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ReadersWriterLock:
    """Not reentrant. One thread writes at a time; it is meant to be always the same."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting_readers = 0
        self._writing = False
        self._writer_waits = False

    @property
    def contended(self) -> bool:
        """Whether somebody reads or wants to."""
        return self._readers > 0 or self._waiting_readers > 0

    @property
    def written(self) -> bool:
        """Whether somebody writes or waits to."""
        return self._writing or self._writer_waits

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._changed:
            if self._writing or self._writer_waits:
                self._waiting_readers += 1
                while self._writing or self._writer_waits:
                    self._changed.wait()
                self._waiting_readers -= 1
                if not self._waiting_readers:
                    self._changed.notify_all()
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                if not self._readers:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            while self._waiting_readers and not self._writing:
                self._changed.wait()  # those who waited for the last piece go first; whoever comes now need not wait
            self._writer_waits = True
            while self._readers or self._writing:
                self._changed.wait()
            self._writer_waits = False
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()

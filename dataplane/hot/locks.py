"""SharedTurns: many searches in a graph at a time, or one thread that changes it, piece by piece.

A search that comes while the graph is being changed is not let in: it leaves its call, and the thread that changes runs it
between two pieces (this is called flat combining). To hand the graph to another thread and get it back takes two
wakings, each of which waits for the interpreter's lock: with 200 searches a second beside 1,000 inserts, that took more time than
the work. So a search waits for one piece and for those that came before it. When many wait, they are let in together instead,
for they run side by side in their own threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

TOGETHER = 4  # calls that wait: from so many on they run in their own threads


class SharedTurns:
    """Not reentrant. One thread writes at a time; it is meant to be always the same."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._writing = False
        self._left: deque[_Call] = deque()

    @property
    def written(self) -> bool:
        """Whether somebody writes, or waits to."""
        return self._writing

    def read(self, call: Callable[[], T]) -> T:
        """What `call` returns (or raises), while nobody writes; perhaps from the thread that writes."""
        mine = None
        with self._changed:
            if self._writing:
                mine = _Call(call)
                self._left.append(mine)
            else:
                self._readers += 1
        if mine is not None:
            mine.ended.acquire()
            if not mine.let_in:
                return mine.outcome()  # type: ignore[no-any-return]
        try:
            return call()
        finally:
            with self._changed:
                self._readers -= 1
                if not self._readers:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Callable[[], bool]]:
        """Nobody reads meanwhile, but in the call of what this gives: do it after each piece of the work.

        It returns whether anybody waited.
        """
        with self._changed:
            while self._writing:
                self._changed.wait()
            self._writing = True  # from now on, calls are left
            self._wait_for_readers()
        try:
            yield self._serve
        finally:
            with self._changed:
                self._writing = False
                self._let_in()
                self._changed.notify_all()

    def _serve(self) -> bool:
        """Run what was left until now, or let it in."""
        waiting = len(self._left)
        if waiting >= TOGETHER:
            with self._changed:
                self._let_in()
                self._wait_for_readers()
        else:
            for _ in range(waiting):
                self._left.popleft().run()
        return waiting > 0

    def _let_in(self) -> None:
        while self._left:
            self._readers += 1
            call = self._left.popleft()
            call.let_in = True
            call.ended.release()

    def _wait_for_readers(self) -> None:
        while self._readers:
            self._changed.wait()


class _Call:
    """What somebody waits for: `ended` is released once it has run, or is let in."""

    __slots__ = ("_call", "_error", "_result", "ended", "let_in")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self.let_in = False
        self.ended = threading.Lock()
        self.ended.acquire()

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self._error = error
        self.ended.release()

    def outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

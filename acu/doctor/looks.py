"""Looks: parts of an examination, none of which can spoil or hold up the whole.

A look has a thread of its own (`at`), or where it asks what may never answer, a disk, a driver, a process of its own (`apart`):
who waits in the kernel for a disk that is gone cannot be killed, and a thread of ours that did would keep our process from
ending. Such a child says nothing, holds neither our output nor a descriptor that anybody waits for, and answers by a pipe. A
look that fails, or is not over when time is up, has its default, and the Sight's `unread` gets a sentence. Where the box grants
neither process nor thread, looks are had one after the other.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from acu.doctor.sight import Sight

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
PIECE = 1 << 16
REAPED_S = 0.1  # for children that were killed


class Look(Protocol[T_co]):
    """One part, begun."""

    def value(self) -> T_co:
        """What was seen, else the default. It waits no longer than until time is up."""


class Looks:
    """All parts of one examination, which has `patience_s` seconds from now. At the end of the block no child of it is left."""

    def __init__(self, sight: Sight, patience_s: float) -> None:
        self._sight = sight
        self._until = time.monotonic() + patience_s
        self._apart: list[Apart[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the children that are left. One may wait for what another one holds: each is killed before any is awaited."""
        for look in self._apart:
            look.kill()
        until = time.monotonic() + REAPED_S
        while not all([look.gone() for look in self._apart]) and time.monotonic() < until:  # noqa: C419  each is asked
            time.sleep(0.001)

    def at(self, what: str, see: Callable[[], T], default: T) -> Look[T]:
        """Begin to look. `what` names it in `unread`."""
        return Beside(Task(what, see, default, self._sight, self._until))

    def apart(self, what: str, see: Callable[[], T], default: T) -> Look[T]:
        """Begin to look at what may hang for ever. What it sees is pickled. To be begun before those of `at`.

        A recorded tree does not hang: there it is a look as all others.
        """
        task = Task(what, see, default, self._sight, self._until)
        if not self._sight.here:
            return Beside(task)
        look = Apart(task)
        self._apart.append(look)
        return look


class Task(Generic[T]):
    """What to see, and until when."""

    def __init__(self, what: str, see: Callable[[], T], default: T, sight: Sight, until: float) -> None:
        self.what = what
        self.default = default
        self.sight = sight
        self._see = see
        self._until = until

    def done(self) -> T:
        """See it, here and now."""
        try:
            return self._see()
        except Exception as error:  # noqa: BLE001  whatever it met: the other parts are to be told
            self.sight.note(self.what, error)
            return self.default

    @property
    def left_s(self) -> float:
        """Seconds until time is up, at least none."""
        return max(0.0, self._until - time.monotonic())

    def late(self) -> T:
        """The default, as time is up."""
        self.sight.note(self.what, TimeoutError("it took too long"))
        return self.default


class Beside(Generic[T]):
    """A look in a thread."""

    def __init__(self, task: Task[T]) -> None:
        self._task = task
        self._seen = task.default
        self._thread = threading.Thread(target=self._run, name=f"look at {task.what}", daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # no thread is to be had
            self._run()

    def _run(self) -> None:
        self._seen = self._task.done()

    def value(self) -> T:
        """See Look."""
        if self._thread.ident is not None:
            self._thread.join(self._task.left_s)
        return self._task.late() if self._thread.is_alive() else self._seen


class Apart(Generic[T]):
    """A look in a child process."""

    def __init__(self, task: Task[T]) -> None:
        self._task = task
        self._seen: T = task.default
        self._asked = self._gone = False
        self._pipe, answer = os.pipe()
        try:
            self._child = os.fork()
        except OSError:  # no process is to be had
            os.close(self._pipe)
            os.close(answer)
            self._gone = True
            self._seen, self._asked = task.done(), True
            return
        if self._child == 0:
            _answer(task, answer)
        os.close(answer)

    def value(self) -> T:
        """See Look."""
        if not self._asked:
            self._seen, self._asked = self._taken(), True
        return self._seen

    def _taken(self) -> T:
        try:
            data = self._read()
        finally:
            os.close(self._pipe)
        if data is None:
            return self._task.late()
        _, status = os.waitpid(self._child, 0)
        self._gone = True
        if not data:
            how = os.waitstatus_to_exitcode(status)
            self._task.sight.note(self._task.what, OSError(f"its process ended with {how}"))
            return self._task.default
        seen, unread = pickle.loads(data)  # noqa: S301  of our own child
        self._task.sight.note_all(unread)
        return seen  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End the child, whatever it does; one that waits in the kernel ends when that lets go, or stays for init."""
        if not self._gone:
            os.kill(self._child, signal.SIGKILL)

    def gone(self) -> bool:
        """Whether the child has ended."""
        if not self._gone:
            self._gone = os.waitpid(self._child, os.WNOHANG)[0] != 0
        return self._gone

    def _read(self) -> bytes | None:
        """All that the child says; None where time is up before."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        data = b""
        while poll.poll(self._task.left_s * 1000):
            piece = os.read(self._pipe, PIECE)
            if not piece:
                return data
            data += piece
        return None


def _answer(task: Task[T], pipe: int) -> NoReturn:
    """In the child: see, answer and end, without anything that the parent would do at its end."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.closerange(3, pipe)
        os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
        task.sight.unread.clear()
        left = memoryview(pickle.dumps((task.done(), task.sight.unread)))
        while left:
            left = left[os.write(pipe, left) :]
    finally:
        os._exit(0)

"""AuditLog: one JSON line an event, appended to a file that only its owner reads. The lines carry no content.

`write` only puts the line into a bounded queue; a thread writes it out, so that a slow disk holds up no request. Lines
keep their order. A line that finds the queue full, or that the disk does not take, is lost and counted in `dropped`; the
first of a series of failures is logged. Every line is handed over whole, in one write(2) to a file opened for appending,
so lines of several processes do not mix; where the disk took only a part (it filled up), the next line begins with a
newline, so that the torn one spoils no other.

`reopen` goes over to a new file of the same name, once the old one was moved away (logrotate); a place in the queue marks
where, so that each line is in one of the two.

`close` waits a bounded time for what is queued. A crash loses what is queued, and nothing that was written.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading

QUEUE_LINES = 10_000
CLOSE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class AuditLog:
    """The file, and the thread that writes it. Lines wait until `start`."""

    def __init__(self, path: str) -> None:
        """Open the file for appending. Raises OSError."""
        self.dropped = 0
        self._path = path
        self._fd = _open(path)
        self._lines: queue.Queue[bytes | int | None] = queue.Queue(QUEUE_LINES)  # an int: the next file's descriptor
        self._torn = False  # whether the file ends within a line
        self._failing = False
        # A daemon thread: one that is stuck in write(2) must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queue `line`, which has no newline. Never blocks."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def reopen(self) -> None:
        """From now on write to what is at the path. Raises OSError, and goes on with the old file then."""
        fd = _open(self._path)
        try:
            self._lines.put_nowait(fd)
        except queue.Full:
            os.close(fd)
            raise OSError(errno.EBUSY, "the old file does not take what waits for it") from None

    def close(self) -> None:
        """Write what waits, for at most twice CLOSE_TIMEOUT_S seconds, and close the file."""
        if not self._thread.ident:
            self._thread.start()
        try:
            self._lines.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return  # the disk hangs, and the thread in it; the file is closed with the process
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            os.close(self._fd)

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            if isinstance(line, int):
                os.close(self._fd)
                self._fd, self._torn = line, False
                continue
            try:
                self._append(line + b"\n")
            except OSError as error:
                self.dropped += 1
                if not self._failing:
                    log.error("the audit log cannot be written", extra={"why": error.strerror})  # noqa: TRY400
                self._failing = True
            else:
                self._failing = False

    def _append(self, data: bytes) -> None:
        if self._torn:
            data = b"\n" + data
        while data:
            written = os.write(self._fd, data)
            data = data[written:]
            self._torn = bool(data)


def _open(path: str) -> int:
    # Not blocking: the opening of a FIFO that nobody reads fails, where it would wait for ever.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    os.set_blocking(fd, True)
    return fd

"""Printed: what a worker's process prints, read as it comes, so that it never waits for us.

The first OUTPUT_KEPT bytes since the last `take` are kept for the log, and the last ones for an error; the rest is counted.
What a function printed before it returned lies in the pipe when its answer is there: `take` reads that first.
"""

from __future__ import annotations

import asyncio
import codecs
import os
from contextlib import suppress
from typing import Final, NamedTuple

from agentflow.tools.secrets import Secrets

OUTPUT_KEPT: Final = 4096
_READ: Final = 64 << 10  # a pipe's capacity
_READS: Final = 4
"""Reads in a row: who prints without end does not hold the loop."""


class Taken(NamedTuple):
    """The beginning of what was printed, and how many bytes behind it were dropped."""

    text: str
    left_out: int


class Printed:
    """Made on the loop, of the reading end of a pipe, which it closes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._first = bytearray()
        self._last = b""
        self._size = 0
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def take(self, secrets: Secrets) -> Taken:
        """What was printed since the last time, without the secrets that are to be hidden."""
        self._drain()
        whole = self._size == len(self._first)
        shown, rest = secrets.hide_first(bytes(self._first), is_last=whole)
        left_out = self._size - len(self._first) + len(rest)
        self._first.clear()
        self._last, self._size = b"", 0
        return Taken(codecs.getincrementaldecoder("utf-8")("replace").decode(shown, whole), left_out)

    def last_line(self) -> str:
        """The last line since `take`, or what is kept of it."""
        return self._last.decode("utf-8", "replace").strip().rpartition("\n")[2]

    def close(self) -> None:
        """Read what is there, and no more from now on. Idempotent."""
        self._drain()
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _drain(self) -> None:
        """Read what is there, up to a bound."""
        for _ in range(_READS):
            if not self._read():
                break

    def _read(self) -> bool:
        """Whether there may be more."""
        if self._descriptor is None:
            return False
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _READ)
            if not data:  # the last who could print has ended
                self._close()
        self._size += len(data)
        self._first += data[: OUTPUT_KEPT - len(self._first)]
        self._last = (self._last + data)[-OUTPUT_KEPT:]
        return bool(data)

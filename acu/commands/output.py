"""What a command answers with: lines on standard output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO, cast

UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def out(text: str) -> None:
    """Print `text` at once, so that whoever reads a pipe sees it while the command goes on."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def drop(stream: TextIO) -> None:
    """Nothing more is written where a stream goes: its reader has gone, or there is no room. What it holds is lost, too."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextmanager
def to_its_end() -> Iterator[None]:
    """For a command that acts: what it does within is done to its end, also where nobody can read what it says of it.

    Raises, at the end, the OSError for which what it said could not be written, unless its reader had just gone.
    """
    told, warned = _Unread(sys.stdout), _Unread(sys.stderr)
    with redirect_stdout(cast("TextIO", told)), redirect_stderr(cast("TextIO", warned)):
        try:
            yield
        finally:
            told.flush()
    if told.lost is not None:
        raise told.lost


class _Unread:
    """A stream that says no word of it when it cannot be written; `lost` has the first reason, if that is no broken pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._let_go(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._let_go(error)

    def _let_go(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            if error.errno not in UNWRITABLE:
                raise error
            self.lost = self.lost or error
        drop(self._stream)

"""SyncedMark: how much of RocksDB's log is known to be durable, so that damage in it is told from an end that was torn off.

After the loss of power the end of the log, which nobody had synced, may be anything: it is cut off, and that is right. The
same cut before a write that was acknowledged as durable would undo it without a word. So after each sync the database's
sequence number is written into a small file: 8 bytes, big-endian, and their CRC32. The file itself is not synced, for whatever
number is in it was true when it was written: it may lag behind, and is never ahead. It is written through a mapping: a system
call after each sync would give the interpreter's lock away each time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from pathlib import Path

LENGTH = 12


class SyncedMark:
    """The file at `path`. Thread-safe, for a number that is older does no harm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mapped: mmap.mmap | None = None

    def read(self) -> int:
        """The number up to which the log was synced, at least; 0: nothing is known."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return 0
        number, checksum = content[:8], content[8:]
        return int.from_bytes(number, "big") if zlib.crc32(number).to_bytes(4, "big") == checksum else 0

    def write(self, number: int) -> None:
        """It was synced up to `number`. On a full disk nothing is written."""
        content = number.to_bytes(8, "big")
        with contextlib.suppress(OSError):
            if self._mapped is None:
                self._mapped = _mapped(self._path)
            self._mapped[:] = content + zlib.crc32(content).to_bytes(4, "big")

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None


def _mapped(path: Path) -> mmap.mmap:
    """The file's 12 bytes. Raises OSError when there is no room for them: to write into a hole would end the process."""
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, LENGTH)
        return mmap.mmap(file, LENGTH)
    finally:
        os.close(file)

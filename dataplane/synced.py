"""SyncedMark: how much of RocksDB's log is known to be durable, so that damage in it is told from an end that was torn off.

After the loss of power the end of the log, which nobody had synced, may be anything: it is cut off, and that is right. The
same cut before a write that was acknowledged as durable would undo it without a word. So after each sync the database's
sequence number is written into a small file: 8 bytes, big-endian, and their CRC32. The file itself is not synced, for whatever
number is in it was true when it was written: it may lag behind, and is never ahead.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path


class SyncedMark:
    """The file at `path`. Thread-safe, for a number that is older does no harm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

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
            if self._file is None:
                self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, content + zlib.crc32(content).to_bytes(4, "big"), 0)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

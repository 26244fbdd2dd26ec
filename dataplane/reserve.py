"""Reserve: disk space that is kept free for the next start, for a database cannot be opened on a disk that is full.

RocksDB writes at each opening what its log holds into table files, and files about itself; SQLite needs a few pages. So a file
of `size` bytes stands by, with no content. Who opens gives it up first if the disk has less room than that, and takes back
what is left of it afterwards, before anybody else can: what was used of it is in the table files now, so that each further
start on the full disk needs only some hundred kilobytes.

Where there is space the file is made, or made whole again, by `top_up`. It never takes the disk's last space: only where
SPARE times its size is free. Without it (a disk that was small from the start) a full disk may refuse to open, and says so.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SPARE = 4


class Reserve:
    """The file at `path`. One thread at a time."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def give_up(self) -> bool:
        """Free its space, if the disk has less. Returns whether that was needed and there was any."""
        if self._held() == 0 or self._room() >= self._size:
            return False
        with contextlib.suppress(OSError):
            self._path.unlink()
            return True
        return False

    def take_back(self) -> None:
        """After an opening that needed it: what is left of it."""
        self._take(min(self._size, self._room()))

    def top_up(self) -> None:
        """Make it whole if there is plenty of space."""
        if self._held() < self._size and self._room() >= SPARE * self._size:
            self._take(self._size)

    def _held(self) -> int:
        try:
            return self._path.stat().st_blocks * 512
        except OSError:
            return 0

    def _room(self) -> int:
        """Bytes that are free for us."""
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize

    def _take(self, size: int) -> None:
        """As much of `size` as there is. A reserve that cannot be had is no error: the data plane works without."""
        while size >= os.sysconf("SC_PAGE_SIZE"):
            try:
                file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(file, 0, size)
                finally:
                    os.close(file)
            except OSError:
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
                size //= 2
            else:
                return

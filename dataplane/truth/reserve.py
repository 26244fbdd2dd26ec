"""Reserve: disk space that is kept free for the next start, for a database cannot be opened on a disk that is full.

RocksDB writes at each opening what its log holds into table files, and files about itself; SQLite needs a few pages. So a file
of `size` bytes stands by, with no content. Who opens gives it up first if the disk has less room than that, and takes back
what is left of it afterwards, before anybody else can: what was used of it is in the table files now, so that each further
start on the full disk needs only some hundred kilobytes.

A delete that meets the full disk while the data plane runs borrows it too (`Lender`): deleting is how room is made, and needs
some itself. RocksDB, which refuses all writes once one has met a full disk, looks for space every 5 seconds: so long is it
tried. What is left is taken back at once, and the rest when there is plenty of space.

Where there is space the file is made, or made whole again, by `top_up`. It never takes the disk's last space: only where
SPARE times its size is free. Without it (a disk that was small from the start) a full disk may refuse to open, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from dataplane.errors import Closed, Unavailable
from dataplane.threads import in_thread

SPARE = 4
TRIED_S = 12.0
PAUSE_S = 0.25
T = TypeVar("T")


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


class Lender:
    """Lends a reserve to deletes, one at a time. For one event loop."""

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        self._one = asyncio.Lock()

    async def delete(self, delete: Callable[[], Awaitable[T]]) -> T:
        """What `delete` returns, which may be called again. Raises what it raises, if the reserve does not help."""
        try:
            return await delete()
        except Closed:
            raise
        except Unavailable:
            async with self._one:
                return await self._lent(delete)

    async def _lent(self, delete: Callable[[], Awaitable[T]]) -> T:
        given = await in_thread(self._reserve.give_up)
        until = time.monotonic() + (TRIED_S if given else 0.0)
        try:
            while True:
                try:
                    return await delete()
                except Unavailable as error:
                    if isinstance(error, Closed) or time.monotonic() > until:
                        raise
                await asyncio.sleep(PAUSE_S)
        finally:
            if given:
                await in_thread(self._reserve.take_back)

    async def top_up(self) -> None:
        """Make the reserve whole if there is plenty of space."""
        async with self._one:
            await in_thread(self._reserve.top_up)

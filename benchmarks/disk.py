"""The disk under a measurement: what kind it is, how fast it syncs, and files whose pages memory does not hold."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.report import NotMeasured

IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
ALL_CACHES = Path("/proc/sys/vm/drop_caches")


def filesystem(path: Path, mounts: str | None = None) -> str:
    """The kind of file system that holds `path` ("ext4"), from the text of /proc/mounts: the longest mount point above it."""
    place = path.resolve()
    table = Path("/proc/mounts").read_text() if mounts is None else mounts
    best, kind = -1, "unknown"
    for line in table.splitlines():
        _, point, this_kind, *_ = line.split()
        point = point.encode().decode("unicode_escape")  # a space is \040
        if place.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), this_kind  # of two mounts on one point the later hides the earlier
    return kind


def refuse_memory(path: Path) -> str:
    """The kind of `path`'s file system. Raises NotMeasured when that is no disk."""
    kind = filesystem(path)
    if kind in IN_MEMORY:
        raise NotMeasured(f"{path} lies on a {kind}, which is memory: name a folder on a disk with --dir")
    return kind


def files(folder: Path) -> list[Path]:
    """All regular files in `folder` and below."""
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def drop_pages(paths: Iterable[Path]) -> None:
    """Take the files' pages out of the page cache (POSIX_FADV_DONTNEED), dirty ones synced first.

    Pages that a process has mapped stay. A file that vanishes meanwhile is no error.
    """
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


class PageCache:
    """Empties the page cache of a folder's files.

    `drop` takes the files' own pages, one file after another. `drop_everything` also throws the kernel's switch, which
    takes all pages of the machine, directories and inodes; only root may, and it takes long where much else is cached.
    `how` says what has been done.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.how = "posix_fadvise(DONTNEED) on every file"

    def drop(self) -> None:
        """After this the files must be read from the disk."""
        drop_pages(files(self.folder))

    def drop_everything(self) -> None:
        """The same, and all that the machine holds, if that is allowed."""
        self.drop()
        with contextlib.suppress(OSError):
            ALL_CACHES.write_text("3")
            self.how += ", after drop_caches once"

    def resident_share(self) -> float:
        """The share of the files' bytes that are in the page cache. A file that vanishes meanwhile does not count."""
        total = resident = 0.0
        for path in files(self.folder):
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                resident += size * resident_share(path)
                total += size
        return resident / total if total else 0.0


def resident_share(path: Path) -> float:
    """The share of the file's pages that are in the page cache, by mincore. Raises OSError."""
    size = path.stat().st_size
    if not size:
        return 1.0
    libc = ctypes.CDLL(None, use_errno=True)
    states = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as view:
        pages = np.frombuffer(view, np.uint8)
        code = libc.mincore(*map(ctypes.c_void_p, (pages.ctypes.data, size, states.ctypes.data)))
        del pages  # the view cannot be closed while somebody looks into it
    if code:
        raise OSError(ctypes.get_errno(), "mincore", str(path))
    return float((states & 1).mean())


def fdatasync_s(folder: Path, count: int, size: int = 1200, every_s: float = 0.0) -> list[float]:
    """Seconds of `count` appends of `size` bytes to a file in `folder`, each synced by fdatasync before the next.

    `every_s` is the least time between two beginnings. The file is removed.
    """
    path = folder / f".fdatasync-{os.getpid()}"
    block = os.urandom(size)
    took: list[float] = []
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for _ in range(count):
            began = time.perf_counter()
            os.write(fd, block)
            os.fdatasync(fd)
            took.append(time.perf_counter() - began)
            time.sleep(max(0.0, every_s - took[-1]))
    finally:
        os.close(fd)
        path.unlink()
    return took

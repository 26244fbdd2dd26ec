"""Reading a model's weights into the page cache before an engine maps them, so that its start waits for no disk.

One sequential pass in large reads. Nothing is kept in the process: the kernel drops the pages when something else needs
the memory. What is there already, as at a second start, is passed over by the kernel at the speed of memory, and told. The
reads pass the page cache and not O_DIRECT, which would leave nothing in it for the engine to map; and they have the lowest
priority of their class, so that whoever waits for the same disk goes first (the schedulers bfq and mq-deadline heed it;
`none`, of NVMe, takes what comes).
"""

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from msgspec import Struct

from acu.errors import ModelIncomplete, NoSpace
from acu.hardware.probe import memory
from acu.models.pagecache import cached_bytes
from acu.models.progress import Progress, human, silent

_CHUNK = 1 << 20  # fits the processor's cache: larger reads are slower
_TOLD_EVERY = 8 << 20
_LAST_OF_ITS_CLASS = 7


class Preloaded(Struct, frozen=True):
    """What a preload read: bytes, in how many seconds, and the rate in MB/s (powers of ten).

    `cached` bytes of them were in memory before; None where the kernel does not tell.
    """

    bytes: int
    seconds: float
    mb_s: float
    cached: int | None = None


def preload(path: Path, progress: Progress = silent, available: int | None = None) -> Preloaded:
    """Read all *.safetensors of the folder `path` once, in order of name.

    `available` is the memory in bytes that may be used; by default what the kernel can give within this process's
    cgroup. Raises `NoSpace` when the weights are larger, for then the first pages would be gone before the last are
    read; `ModelIncomplete` when there are no weights, or some cannot be read, or are cut short meanwhile. One that is
    replaced meanwhile, by a pull, is read as it was.
    """
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise ModelIncomplete(f"{path} has no *.safetensors: nothing to preload.")
    with contextlib.ExitStack() as opened:
        files: list[int] = []
        for shard in shards:
            with _named(shard):
                files.append(_open(shard))
            opened.callback(os.close, files[-1])
        sizes = [os.fstat(file).st_size for file in files]
        total = sum(sizes)
        room = memory()[1] if available is None else available
        if room < total:
            raise NoSpace(f"{path} has {human(total)} of weights, and only {human(room)} of memory are available.")
        found = [cached_bytes(file) for file in files]
        started = time.monotonic()
        done = 0
        with behind_others():
            for position, (shard, file, size) in enumerate(zip(shards, files, sizes, strict=True)):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                # It costs nothing, and gains little: 1.04 times the speed, quartiles 0.90 to 1.32.
                for ahead in files[position : position + 2]:
                    os.posix_fadvise(ahead, 0, 0, os.POSIX_FADV_WILLNEED)
                before = done
                for read in _read(shard, file, size):
                    done = before + read
                    progress("preload", done, total)
    seconds = max(time.monotonic() - started, 1e-6)
    cached = None if None in found else sum(filter(None, found))
    return Preloaded(bytes=done, seconds=seconds, mb_s=done / seconds / 1e6, cached=cached)


@contextlib.contextmanager
def behind_others() -> Iterator[None]:
    """Let this thread's reads have the lowest priority of best-effort I/O; where it may not be set, they have the usual one."""
    thread = None
    with contextlib.suppress(psutil.Error, OSError):
        thread = psutil.Process(threading.get_native_id())
        before = thread.ionice()
        thread.ionice(psutil.IOPRIO_CLASS_BE, _LAST_OF_ITS_CLASS)
    try:
        yield
    finally:
        if thread is not None:
            with contextlib.suppress(psutil.Error, OSError):
                thread.ionice(before.ioclass, before.value)


@contextlib.contextmanager
def _named(shard: Path) -> Iterator[None]:
    """Errors of the system carry the file's name."""
    try:
        yield
    except OSError as error:
        raise ModelIncomplete(f"{shard} cannot be read: {error.strerror}.") from error


def _open(shard: Path) -> int:
    """Open a file, and nothing that would be waited for (a FIFO) or read without an end (a device)."""
    file = os.open(shard, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ModelIncomplete(f"{shard} is no regular file.")
    return file


def _read(shard: Path, file: int, size: int) -> Iterator[int]:
    """Read `size` bytes, of a file that grows meanwhile no more; yields now and then, and at the end, how many were read."""
    buffer = memoryview(bytearray(_CHUNK))
    offset = 0
    while offset < size:
        with _named(shard):
            count = os.preadv(file, [buffer[: size - offset]], offset)
        if count == 0:
            raise ModelIncomplete(f"{shard} was cut short while it was read: it has {offset} of {size} bytes.")
        offset += count
        if offset // _TOLD_EVERY > (offset - count) // _TOLD_EVERY or offset == size:
            yield offset

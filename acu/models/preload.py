"""Reading a model's weights into the page cache before an engine maps them, so that its start waits for no disk.

One sequential pass in large reads, with the next file announced to the kernel while the present one is read. Nothing is
kept in the process: the kernel drops the pages when something else needs the memory. What is there already, as at a second
start, is passed over by the kernel at the speed of memory, and told. The reads pass the page cache and not O_DIRECT, which would
leave nothing in it for the engine to map; and they have the lowest priority of their class, so that whoever waits for
the same disk goes first (the schedulers bfq and mq-deadline heed it; `none`, of NVMe, takes what comes).
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
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
    read; `ModelIncomplete` when there are no weights.
    """
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise ModelIncomplete(f"{path} has no *.safetensors: nothing to preload.")
    sizes = [shard.stat().st_size for shard in shards]
    total = sum(sizes)
    room = memory()[1] if available is None else available
    if room < total:
        raise NoSpace(f"{path} has {human(total)} of weights, and only {human(room)} of memory are available.")
    found = [cached_bytes(shard) for shard in shards]
    started = time.monotonic()
    done = 0
    files = [os.open(shard, os.O_RDONLY | os.O_CLOEXEC) for shard in shards]
    try:
        with behind_others():
            for position, file in enumerate(files):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                for ahead in files[position : position + 2]:
                    os.posix_fadvise(ahead, 0, 0, os.POSIX_FADV_WILLNEED)
                done = _read(file, sizes[position], done, lambda read: progress("preload", read, total))
    finally:
        for file in files:
            os.close(file)
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


def _read(file: int, size: int, done: int, progress: Callable[[int], None]) -> int:
    """Read `size` bytes, or what there is; of a file that grows meanwhile no more than was counted. Returns `done` and those."""
    buffer = memoryview(bytearray(_CHUNK))
    offset = 0
    while offset < size and (count := os.preadv(file, [buffer[: size - offset]], offset)):
        if (offset + count) // _TOLD_EVERY > offset // _TOLD_EVERY:
            progress(done + offset + count)
        offset += count
    progress(done + offset)
    return done + offset

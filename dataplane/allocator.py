"""The C library's memory, which counts as long as it is not given back to the system, whether anybody uses it or not.

glibc keeps a heap for every few threads, and in them what large, short-lived arrays leave, in case it is asked for again. Where
there is no glibc, nothing here does anything.

    give_back   after work that is done now and then, such as writing a shard: what nobody uses goes back
    tune        for the owner of a process that lives long, before it starts threads: two heaps for all threads, and large
                arrays by themselves, so that they go back as soon as they are freed
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
LARGE = 256 << 10
HEAPS = 2


def give_back() -> None:
    """Takes milliseconds, without the GIL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def tune() -> None:
    """Changes the whole process."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, HEAPS)
        mallopt(_MMAP_THRESHOLD, LARGE)
        mallopt(_TRIM_THRESHOLD, LARGE)

"""Gives memory that was freed back to the system.

The C library keeps what large, short-lived arrays leave in its heaps, in case it is asked for again. After work that is done
now and then, such as writing a shard, that is memory which nobody uses and which counts. Without glibc this does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes


def give_back() -> None:
    """Milliseconds, without the GIL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

"""How much of a file lies in the kernel's page cache, asked by mincore(2). It reads nothing and brings nothing in."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path


def cached_bytes(path: Path) -> int | None:
    """Bytes of the file that a read would not wait for, in whole pages; None where the kernel does not tell.

    Raises OSError when the file cannot be opened. mincore tells who may not write a file nothing (Linux 5.2 and later say that
    all of it is there): who owns neither the file nor the right to write gets None.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        if size == 0:
            return 0
        if not (os.fstat(file).st_uid == os.geteuid() or os.access(path, os.W_OK, effective_ids=True)):
            return None
        # A private mapping that is never written: only a writable one tells Python its address.
        with mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            return _resident(mapped, size)
    finally:
        os.close(file)


def _resident(mapped: mmap.mmap, size: int) -> int | None:
    pages = -(-size // mmap.PAGESIZE)
    first = ctypes.c_char.from_buffer(mapped)
    try:
        told = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), told) != 0:
            return None
        here = bytes(page & 1 for page in told)
    finally:
        del first  # or the mapping could not be closed
    whole = here.count(1) * mmap.PAGESIZE
    return whole - (pages * mmap.PAGESIZE - size if here[-1] else 0)

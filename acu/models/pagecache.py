"""How much of a file lies in the kernel's page cache, asked by mincore(2). It reads nothing and brings nothing in."""

from __future__ import annotations

import ctypes
import mmap
import os

_HERE = bytes(state & 1 for state in range(256))


def cached_bytes(file: int) -> int | None:
    """Bytes of an open file that a read would not wait for, in whole pages; None where the kernel does not tell.

    mincore tells who may not write a file nothing (Linux 5.2 and later say that
    all of it is there): who owns neither the file nor the right to write gets None.
    """
    found = os.fstat(file)
    if found.st_size == 0:
        return 0
    if found.st_uid != os.geteuid() and not os.access(f"/proc/self/fd/{file}", os.W_OK, effective_ids=True):
        return None
    # A private mapping that is never written: only a writable one tells Python its address. Of a file that was cut short
    # since, or that cannot be mapped (RLIMIT_AS, or memory that is promised to the last byte), nothing is told.
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        with mmap.mmap(file, found.st_size, flags=mmap.MAP_PRIVATE, prot=writable) as mapped:
            return _resident(mapped, found.st_size)
    except (OSError, ValueError, MemoryError):
        return None


def _resident(mapped: mmap.mmap, size: int) -> int | None:
    pages = -(-size // mmap.PAGESIZE)
    first = ctypes.c_char.from_buffer(mapped)
    try:
        told = (ctypes.c_ubyte * pages)()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), told) != 0:
            return None
        here = bytes(told).translate(_HERE)  # at once: millions of pages would hold up the other threads
    finally:
        del first  # or the mapping could not be closed
    whole = here.count(1) * mmap.PAGESIZE
    return whole - (pages * mmap.PAGESIZE - size if here[-1] else 0)

"""Memory: how much all collections together may take, and who may take more of it now.

The keeper counts what is taken, at each of its turns: every structure tells its own bytes (`counted`). Between two turns the
writer's thread takes more: for tables it must (`took`), for new vectors only where there is room (`take`), and those that find
none are read from RocksDB. What is taken while a sum is made may be in that sum or not: until the next one it counts on top of
it. Several threads may count at once. So that a table that must grow finds room, `growing` bytes are kept back from everybody
else. What is taken is therefore never more than the cap, unless the tables alone are.
"""

from __future__ import annotations

import os
import threading

from dataplane.config import DataPlaneConfig

MIB = 1 << 20
ROCKS_SHARE = 8  # of the memory, RocksDB's caches and buffers have one part
ROCKS_LEAST, ROCKS_MOST = 16 * MIB, 512 * MIB
WORKING_SHARE = 6  # another is left for what is not counted: searches, full text, queues, what freed memory leaves
WORKING_MOST = 64 * MIB


class Memory:
    """`cap`: bytes that may be taken; it may be changed at any time. Thread-safe."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._lock = threading.Lock()
        self._used = 0
        self._growing = 0
        self._taken = 0  # ever
        self._summed = 0  # of it, what is in the sum

    @property
    def taken(self) -> int:
        """Bytes that were ever taken. For `counted`: to be read before the sum is made."""
        return self._taken

    def counted(self, used: int, growing: int, taken: int) -> None:
        """All that is taken, what is kept back for tables, and what was `taken` before this was counted."""
        with self._lock:
            self._used, self._growing, self._summed = used, growing, taken

    @property
    def free(self) -> int:
        """Bytes that may be taken; below 0: so many must be given back."""
        return self.cap - self._used - self._growing - (self._taken - self._summed)

    def take(self, size: int) -> bool:
        """Take bytes, if there are so many."""
        with self._lock:
            if self.free < size:
                return False
            self._taken += size
            return True

    def took(self, size: int) -> None:
        """Bytes were taken that had to be."""
        with self._lock:
            self._taken += size


def memory_bytes(config: DataPlaneConfig) -> int:
    """The cap: as configured, else a sixteenth of the machine's memory, from 64 MiB to 12 GiB."""
    if config.hot_layer_mem_mb is not None:
        return config.hot_layer_mem_mb * MIB
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(machine // 16, 64 * MIB), 12_288 * MIB)


def rocks_share(memory: int) -> int:
    """RocksDB's part of all memory, bytes."""
    return min(max(memory // ROCKS_SHARE, ROCKS_LEAST), ROCKS_MOST)


def collections_share(memory: int) -> int:
    """What all collections together may take of all memory, bytes."""
    return memory - rocks_share(memory) - min(memory // WORKING_SHARE, WORKING_MOST)

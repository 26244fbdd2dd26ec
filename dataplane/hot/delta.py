"""Delta: the newest rows of a collection, in flat matrices that a search reads whole.

A row is searchable as soon as it is here; the keeper moves it into the graph later, in batches. The writer's thread appends
at the end, the keeper takes from the front, under the collection's lock; a search works on the `view` of its moment, which
neither of them changes: what is appended lies beyond it, and what is dropped stays in the view's own arrays.

The matrices are blocks, each as large as all before it up to a bound: to grow never moves what is there. One array that doubled
was copied while the writer waited, and its fresh pages took the kernel eight milliseconds.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.uint64]
Part = tuple[Rows, Floats]
FIRST_ROWS = 16
BLOCK_ROWS = 2048


class DeltaView(Struct, frozen=True):
    """Row numbers, shape [n], rising, and their vectors, shape [n, dimensions], in `parts` one after another."""

    parts: tuple[Part, ...]
    dimensions: int
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def rows(self) -> Rows:
        """All row numbers."""
        return np.concatenate([np.empty(0, np.uint64), *(rows for rows, _ in self.parts)])

    @property
    def vectors(self) -> Floats:
        """All vectors."""
        return np.concatenate([np.empty((0, self.dimensions), np.float32), *(vectors for _, vectors in self.parts)])

    def since(self, first: int) -> Part:
        """The rows from number `first` on, and their vectors; the blocks before them are not copied."""
        late = [(part, int(np.searchsorted(part[0], np.uint64(first)))) for part in self.parts]
        ends = [(rows[at:], vectors[at:]) for (rows, vectors), at in late if at < len(rows)]
        tail = DeltaView(tuple(ends), self.dimensions, sum(len(rows) for rows, _ in ends))
        return tail.rows, tail.vectors


class _Block:
    """Rows `start` to `end` of the two arrays are in use."""

    __slots__ = ("end", "rows", "start", "vectors")

    def __init__(self, size: int, dimensions: int) -> None:
        self.rows: Rows = np.empty(size, np.uint64)
        self.vectors: Floats = np.empty((size, dimensions), np.float32)
        self.start = self.end = 0


class Delta:
    """Room for `capacity` rows at most; it takes memory as it fills."""

    def __init__(self, dimensions: int, capacity: int) -> None:
        self.capacity = capacity
        self._dimensions = dimensions
        self._blocks: list[_Block] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """Rows that can be appended now."""
        return self.capacity - self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken."""
        return sum(block.rows.nbytes + block.vectors.nbytes for block in self._blocks)

    def growth(self, count: int) -> int:
        """Bytes of memory that appending `count` rows takes."""
        last = self._blocks[-1] if self._blocks else None
        free = 0 if last is None else len(last.rows) - last.end
        return 0 if count <= free else self._size_for(count - free) * (8 + 4 * self._dimensions)

    def append(self, rows: Rows, vectors: Floats) -> None:
        """Add rows, whose numbers are above all that are here. The vectors are copied."""
        done = 0
        while done < len(rows):
            block = self._blocks[-1] if self._blocks else None
            if block is None or block.end == len(block.rows):
                block = _Block(self._size_for(len(rows) - done), self._dimensions)
                self._blocks.append(block)
            count = min(len(rows) - done, len(block.rows) - block.end)
            here = slice(block.end, block.end + count)
            block.rows[here] = rows[done : done + count]
            block.vectors[here] = vectors[done : done + count]
            block.end += count
            done += count
        self._count += len(rows)

    def _size_for(self, count: int) -> int:
        return max(FIRST_ROWS, count, min(self._count, BLOCK_ROWS))

    def view(self, limit: int | None = None) -> DeltaView:
        """What is here now, or the oldest `limit` of it."""
        count = left = self._count if limit is None else min(limit, self._count)
        parts: list[Part] = []
        for block in self._blocks:
            here = slice(block.start, min(block.end, block.start + left))
            parts.append((block.rows[here], block.vectors[here]))
            left -= len(parts[-1][0])
            if not left:
                break
        return DeltaView(tuple(parts), self._dimensions, count)

    def drop(self, count: int) -> None:
        """Forget the oldest `count` rows."""
        self._count -= count
        while count:
            block = self._blocks[0]
            gone = min(count, block.end - block.start)
            block.start += gone
            count -= gone
            if block.start == block.end and (not self._count or block.end == len(block.rows)):
                del self._blocks[0]  # views may look at its arrays: they are given up, not written over

    def keep(self, wanted: NDArray[np.bool_]) -> None:
        """Forget all rows but those that are `wanted`, shape [n]."""
        view = self.view()
        self._blocks, self._count = [], 0
        self.append(view.rows[wanted], view.vectors[wanted])

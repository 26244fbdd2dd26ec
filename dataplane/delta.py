"""Delta: the newest rows of a collection, in one flat matrix that a search reads whole.

A row is searchable as soon as it is here; the keeper moves it into the graph later, in batches. The writer's thread appends
at the end, the keeper takes from the front, under the collection's lock; a search works on the `view` of its moment, which
neither of them changes: what is appended lies beyond it, and what is dropped stays in the view's own arrays.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.uint64]
_FIRST = 16


class DeltaView(Struct, frozen=True):
    """Row numbers, shape [n], rising; and their vectors, shape [n, dimensions]."""

    rows: Rows
    vectors: Floats


class Delta:
    """Room for `capacity` rows at most; it takes memory as it fills."""

    def __init__(self, dimensions: int, capacity: int) -> None:
        self.capacity = capacity
        self._dimensions = dimensions
        self._rows: Rows = np.empty(0, np.uint64)
        self._vectors: Floats = np.empty((0, dimensions), np.float32)
        self._start = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def room(self) -> int:
        """Rows that can be appended now."""
        return self.capacity - len(self)

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken."""
        return self._rows.nbytes + self._vectors.nbytes

    def growth(self, count: int) -> int:
        """Bytes of memory that appending `count` rows takes."""
        if self._end + count <= len(self._rows):
            return 0
        return max(self._size_for(count) - len(self._rows), 0) * (8 + 4 * self._dimensions)

    def append(self, rows: Rows, vectors: Floats) -> None:
        """Add rows, whose numbers are above all that are here. The vectors are copied."""
        count = len(rows)
        if self._end + count > len(self._rows):
            self._make_room(count)
        self._rows[self._end : self._end + count] = rows
        self._vectors[self._end : self._end + count] = vectors
        self._end += count

    def view(self, limit: int | None = None) -> DeltaView:
        """What is here now, or the oldest `limit` of it."""
        start, end = self._start, self._end
        if limit is not None:
            end = min(end, start + limit)
        return DeltaView(self._rows[start:end], self._vectors[start:end])

    def drop(self, count: int) -> None:
        """Forget the oldest `count` rows."""
        self._start += count
        if self._start == self._end:  # views may look at the arrays: they are given up, not written over
            self._rows = np.empty(0, np.uint64)
            self._vectors = np.empty((0, self._dimensions), np.float32)
            self._start = self._end = 0

    def keep(self, wanted: NDArray[np.bool_]) -> None:
        """Forget all rows but those that are `wanted`, shape [n]."""
        held = slice(self._start, self._end)
        self._rows, self._vectors = self._rows[held][wanted], self._vectors[held][wanted]
        self._start, self._end = 0, len(self._rows)

    def _size_for(self, count: int) -> int:
        held = len(self)
        return max(_FIRST, held + count, min(2 * held, self.capacity))

    def _make_room(self, count: int) -> None:
        held, size = len(self), self._size_for(count)
        rows = np.empty(size, np.uint64)
        vectors = np.empty((size, self._dimensions), np.float32)
        rows[:held] = self._rows[self._start : self._end]
        vectors[:held] = self._vectors[self._start : self._end]
        self._rows, self._vectors, self._start, self._end = rows, vectors, 0, held

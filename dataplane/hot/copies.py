"""Copies: of many equal vectors, the graph gets a few.

Agents store the same text over and over. Equal vectors are each other's nearest, so that more of them than a node has links
link only to each other, and a search that comes among them does not come out again. The graph therefore gets at most
MOST_COPIES of them; the others are found by their sketches, wherever they are.

A vector is known by a hash of its bytes. There is one counter a slot of an array with about four slots a node of the graph, and
no list of collisions: of a million different vectors, less than one is refused for what others in its slot have counted, and
those few that share a slot with a full group of copies. Both are found by their sketches too.

Nodes that are masked count as well, for searches walk through them. The array does not grow: it is made anew for more nodes,
and what the graph has is counted again. Nothing of it is saved: after a start the array is made when the graph first gets rows.
In the keeper's thread, or in that of whoever holds the keeper; `nbytes` from any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_COPIES = 8  # in the graph: a quarter of a node's links at the lowest level
SLOTS = 4  # a node, when the array is made
LEAST_SLOTS = 2  # a node, or it is too small
FIRST = 1024  # slots

Floats = NDArray[np.float32]


class Copies:
    """Counts the vectors of `dimensions` that the graph has."""

    def __init__(self, dimensions: int) -> None:
        random = np.random.Generator(np.random.PCG64(dimensions + 1))
        self._odd = random.integers(0, 1 << 63, dimensions + 1, np.uint64) * np.uint64(2) + np.uint64(1)
        self._counts = np.empty(0, np.uint8)
        self._nodes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken."""
        return self._counts.nbytes

    def forget(self) -> None:
        """There is no graph."""
        self._counts, self._nodes = np.empty(0, np.uint8), 0

    def short_for(self, count: int) -> bool:
        """Whether the array is too small for `count` nodes more: it is to be begun anew."""
        return LEAST_SLOTS * (self._nodes + count) > len(self._counts)

    def begin(self, nodes: int) -> None:
        """Count from nothing, with room for so many nodes."""
        self.forget()  # before the other is there
        self._counts = np.zeros(max(FIRST, 1 << (SLOTS * nodes - 1).bit_length()), np.uint8)

    def count(self, vectors: Floats) -> None:
        """The graph has nodes with these vectors, shape [n, dimensions]."""
        self._add(self._places(vectors))

    def admit(self, vectors: Floats) -> NDArray[np.bool_]:
        """Which of some rows the graph may get, shape [n]: those that come first of as many as it has not. They are counted."""
        places = self._places(vectors)
        order = np.argsort(places, kind="stable")
        _, first, sizes = np.unique(places[order], return_index=True, return_counts=True)
        before = np.empty(len(places), np.int64)  # of the same, in the batch
        before[order] = np.arange(len(places)) - np.repeat(first, sizes)
        admitted: NDArray[np.bool_] = self._counts[places] + before < MOST_COPIES
        self._add(places[admitted])
        return admitted

    def _places(self, vectors: Floats) -> NDArray[np.int64]:
        """The slots of vectors: the uppermost bits of a sum of products of their bits with odd numbers, mixed once."""
        bits = np.ascontiguousarray(vectors, np.float32).view(np.uint32)
        mixed = (bits * self._odd[:-1]).sum(axis=1, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(32)
        mixed *= self._odd[-1]
        shift = np.uint64(64 - (len(self._counts) - 1).bit_length())
        places: NDArray[np.int64] = (mixed >> shift).astype(np.int64)
        return places

    def _add(self, places: NDArray[np.int64]) -> None:
        found, counts = np.unique(places, return_counts=True)
        self._counts[found] = np.minimum(self._counts[found] + counts, np.iinfo(np.uint8).max)
        self._nodes += len(places)

"""Room: for what there is memory, by what all collections take now.

Memory is bounded by the cap of `Memory` over all collections, as they count it themselves: a row becomes HOT only where there
is room for it, and what the writing of a shard takes is kept free. Nothing is moved here. In the keeper's thread, or in that of
whoever holds it; `settled` asks from others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from dataplane.collections.collection import FLAT_ROWS, Collection
from dataplane.hot.graph import node_bytes
from dataplane.hot.table import HOT, KEPT_OUT, LOOSE, WARM
from dataplane.memory import Memory

MERGE_ROWS = 256  # that are moved at a time
SHARD_ROWS = 16_384
LEAST_SHARD_ROWS = 64  # a row group
SHARD_SHARE = 0.05  # of memory that the rows of a shard take while it is written; it is kept free for that
RECORD_BYTES = 512  # about what a row takes then, beside its vector
RESERVE = 1.5  # times the live rows: no graph is made with memory for more
SPARE_SHARE = 0.02  # of the graph, or of free memory, that only promotions use
READ_S = 60.0  # a collection is read that was searched so lately
UNREAD_S = 600.0  # and nobody reads one that was not for so long: it makes room for those that are read
MARGIN_SHARE = 0.05  # of memory that a graph which had to shrink leaves: for tables, and for what comes and goes


class Room:
    """`collections` are those that are open."""

    def __init__(self, collections: Callable[[], Sequence[Collection]], memory: Memory) -> None:
        self.collections = collections
        self.memory = memory

    def free_bytes(self) -> int:
        """Count what all collections take, and tell how much more may be taken; below 0: so much must be given back."""
        taken = self.memory.taken  # first: what the writer takes from here on may be missing in the sum
        collections = self.collections()
        large = [collection for collection in collections if collection.table.live > FLAT_ROWS]
        writing = max((self.shard_rows(one) * _row_bytes(one) for one in large), default=0)
        used = sum(collection.nbytes for collection in collections)
        self.memory.counted(used, writing + sum(collection.growing for collection in collections), taken)
        return self.memory.free

    def for_nodes(self, collection: Collection, count: int, spare: float = SPARE_SHARE) -> bool:
        """Whether `count` rows can become hot in the graph that there is, and the share `spare` is left."""
        graph = collection.graph
        if graph is not None and graph.spare >= count + spare * len(graph):
            return True
        if self.lacking_elsewhere(collection):
            return False
        free = self.free_bytes()
        if graph is not None and free < graph.growth(count) + graph.moving_bytes(count):
            return False
        return free - spare * self.memory.cap >= count * node_bytes(collection.dimensions)

    def in_graph(self, collection: Collection, spare: float = SPARE_SHARE) -> int:
        """Nodes that the graph can take as it is, the share `spare` left."""
        graph = collection.graph
        return 0 if graph is None else max(graph.spare - int(spare * len(graph)), 0)

    def more_nodes(self, collection: Collection) -> int:
        """Nodes of live rows that a graph made anew would have beyond those of this one, where this one cannot grow.

        With the margin left: memory that others take again in a moment is not worth a graph.
        """
        graph, free = collection.graph, self.free_bytes()
        if graph is None or free >= graph.growth(graph.spare + 1) + graph.moving_bytes(graph.spare + 1):
            return 0
        if self.lacking_elsewhere(collection):
            return 0
        nodes = self.nodes(collection, MARGIN_SHARE)
        return max(int(nodes / (1 + SPARE_SHARE)) - collection.counts()[HOT] - graph.spare, 0)

    def for_delta(self, collection: Collection) -> bool:
        """Whether all loose rows can be taken into the delta."""
        growth = collection.delta.growth(collection.counts()[LOOSE])
        return self.free_bytes() - SPARE_SHARE * self.memory.cap >= growth

    def nodes(self, collection: Collection, margin: float = 0.0) -> int:
        """Nodes for which there is memory, in the place of the graph that there is, if the share `margin` is left."""
        taken = 0 if collection.graph is None else collection.graph.nbytes
        free = self.free_bytes() + taken - int((SPARE_SHARE + margin) * self.memory.cap)
        return min(max(free // node_bytes(collection.dimensions), 0), self.nodes_wanted(collection))

    def nodes_wanted(self, collection: Collection) -> int:
        """Nodes that a graph of the collection has at most when it is made anew."""
        return int(RESERVE * collection.table.live) + MERGE_ROWS

    def lacking_elsewhere(self, collection: Collection) -> int:
        """Bytes that collections lack which are read, if nobody reads this one; else 0."""
        now = time.monotonic()
        if now - collection.searched_at < UNREAD_S:
            return 0
        read = [one for one in self.collections() if one is not collection and now - one.searched_at < READ_S]
        free = self.free_bytes() - int((SPARE_SHARE + MARGIN_SHARE) * self.memory.cap)
        return max(sum(map(self._waiting_bytes, read)) - max(free, 0), 0)

    def _waiting_bytes(self, collection: Collection) -> int:
        """What the rows would take that have no room; 0 where some have. Copies that the graph was not given want none."""
        counts = collection.counts()
        if collection.graph is None and collection.table.live <= FLAT_ROWS:
            return 0 if self.for_delta(collection) else collection.delta.growth(counts[LOOSE])
        if self.for_nodes(collection, min(counts[LOOSE] + counts[WARM], MERGE_ROWS)):
            return 0
        view = collection.table.view()
        waiting = view.alive & (view.node != KEPT_OUT) & ((view.place == LOOSE) | (view.place == WARM))
        return int(np.count_nonzero(waiting)) * node_bytes(collection.dimensions)

    def delta_bytes(self, *, large: bool) -> int:
        """What the deltas of collections take that have a graph, or of those that have none."""
        return sum(one.delta.nbytes for one in self.collections() if (one.graph is not None) is large)

    def shard_rows(self, collection: Collection) -> int:
        """Rows of a shard, all of which are in memory while it is written."""
        rows = int(self.memory.cap * SHARD_SHARE) // _row_bytes(collection)
        return min(max(rows, LEAST_SHARD_ROWS), SHARD_ROWS)


def _row_bytes(collection: Collection) -> int:
    """About what a row takes in memory while its shard is written."""
    return 4 * collection.dimensions + RECORD_BYTES

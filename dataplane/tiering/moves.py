"""Moves: rows of one collection from place to place.

    into_graph     FRESH, LOOSE, WARM -> HOT or LOOSE   with their sketches; of many copies the graph gets a few
    into_delta     LOOSE -> FRESH                       all of a small collection
    empty_delta    FRESH -> LOOSE                       the same, the other way
    drop_graph     HOT -> LOOSE
    shrink         HOT -> WARM, LOOSE                   the coldest; the others wait for the new graph
    exchange       HOT -> WARM, WARM and HOT -> LOOSE   as many of each; the loose ones wait for the new graph
    demote         any -> WARM                          into new shards, those that no shard has yet
    adopt          LOOSE -> WARM                        what shards have, after a start
    abandon_shard  WARM -> LOOSE                        what a shard has; it is removed

In the keeper's thread, or in that of whoever holds the keeper: one move at a time. What is in RocksDB stays as it is, so a crash
loses nothing: places are in memory only, and shards and snapshots are written atomically.

Which rows are meant is found out before, for only moves change places, nodes, groups and slots; the lock is held for the change
alone. Order: memory is told under the collection's lock; then searches that began before are waited for, and only then are
nodes masked and shards removed, in which these searches look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dataplane import allocator
from dataplane.collections.collection import CENTRE_ROWS, Collection
from dataplane.errors import DataPlaneError
from dataplane.hot import snapshot
from dataplane.hot.attributes import AttributeColumns
from dataplane.hot.graph import Graph, node_bytes
from dataplane.hot.table import FRESH, HOT, KEPT_OUT, LOOSE, WARM, Slots, Table
from dataplane.tiering.due import Dues, KeeperCounts
from dataplane.tiering.room import MARGIN_SHARE, MERGE_ROWS, SPARE_SHARE, Room
from dataplane.warm.shards import ShardMeta, ShardRows

MOVE_ROWS = 8192  # that get another place at a time: the lock is held meanwhile
MASKED_SHARE = 0.3  # of rows that have ended, from which it is worth to forget them
ANEW_SHARE = 0.1  # of its rows that a graph must have more of, to be built anew for them
PACKED_S = 60.0  # after a graph took all the memory that there was
SHRUNK_S = 600.0  # after it had to shrink
PACKED_SHARE = 0.5  # in the place of ANEW_SHARE for so long


class Moves:
    """What the keeper can do with the rows of a collection."""

    def __init__(self, room: Room, due: Dues, counts: KeeperCounts) -> None:
        self._room = room
        self._memory = room.memory
        self._due = due
        self._counts = counts

    # Graph and delta

    def make_room(
        self, collection: Collection, count: int, spare: float = SPARE_SHARE, *, rebuild: bool = True
    ) -> bool:
        """Whether `count` rows can become hot, and the share `spare` is left.

        If so, the graph can take them afterwards without needing more memory than there is, for a moment or for good. With
        `rebuild` it is given up for a larger one where it could not grow beside itself, if that is worth it.
        """
        if self._room.for_nodes(collection, count, spare):
            graph = collection.graph
            needed = 0 if graph is None else graph.growth(count) + graph.moving_bytes(count)
            if not needed or self._memory.take(needed):
                return True
            del graph  # or the old one would be in memory beside the new one
        if not rebuild or not self.worth_anew(collection):
            return False
        self.drop_graph(collection)
        collection.graph = self._reserved_graph(collection)
        return self._room.in_graph(collection, spare) >= count

    def worth_anew(self, collection: Collection) -> int:
        """How many more rows the graph would have if it were built anew; 0 if that is not worth it, or not yet.

        While rows come in a burst, the delta has the memory that the graph should get.
        """
        due, now = self._due.of(collection), time.monotonic()
        if now - due.shrunk_at < PACKED_S:
            return 0
        share = PACKED_SHARE if now < due.packed_until else ANEW_SHARE
        more = self._room.more_nodes(collection)
        bursting = collection.delta.nbytes > ANEW_SHARE * more * node_bytes(collection.dimensions)
        return more if more >= max(share * collection.counts()[HOT], MERGE_ROWS) and not bursting else 0

    def into_graph(
        self,
        collection: Collection,
        rows: NDArray[np.uint64],
        vectors: NDArray[np.float32],
        *,
        to_graph: bool,
    ) -> int:
        """Rows become HOT, or LOOSE without `to_graph`; returns how many are HOT now. Those that ended become nothing.

        Of many copies only some become HOT. The others are marked and become LOOSE, or stay WARM.
        """
        with collection.lock:
            view = collection.table.view()
            slots = view.slots_of(rows)
            alive = (slots >= 0) & view.alive[np.maximum(slots, 0)]
        del view  # a table that grows meanwhile would be in memory twice
        rows, vectors, slots = rows[alive], vectors[alive], slots[alive]
        if not len(rows):
            return 0
        sketches = collection.sketches_of(vectors)
        with collection.lock:
            collection.table.set_sketches(slots, *sketches)
            if not to_graph:
                collection.table.move(slots, LOOSE)
                return 0
        if collection.copies.short_for(len(rows)):
            collection.count_copies(len(rows))
        admitted = collection.copies.admit(vectors)
        _keep_out(collection, slots[~admitted])
        _add(collection, rows[admitted], vectors[admitted])
        return int(np.count_nonzero(admitted))

    def into_delta(self, collection: Collection) -> None:
        """All loose rows of a collection that has become small become fresh: it is scanned as a whole."""
        self._memory.took(collection.delta.growth(collection.counts()[LOOSE]))
        with collection.lock:
            view = collection.table.view()
        loose = view.rows[np.flatnonzero((view.place == LOOSE) & view.alive)]
        rows, vectors = collection.stored_vectors(loose)
        with collection.lock:
            view = collection.table.view()
            slots = view.slots_of(rows)
            alive = view.alive[slots]  # the others ended while their vectors were read
            newer = collection.delta.view()  # came meanwhile: the delta's rows rise
            collection.delta.drop(len(newer))
            collection.delta.append(rows[alive], vectors[alive])
            collection.delta.append(newer.rows, newer.vectors)
            collection.table.move(slots[alive], FRESH)
        collection.leave_out(np.setdiff1d(loose, rows))

    def empty_delta(self, collection: Collection) -> None:
        """Fresh rows of a small collection become loose."""
        with collection.lock:
            delta = collection.delta.view()
        self.into_graph(collection, delta.rows, delta.vectors, to_graph=False)
        with collection.lock:
            collection.delta.drop(len(delta))

    def drop_graph(self, collection: Collection, *, forgotten: tuple[int, ...] = (LOOSE, WARM)) -> None:
        """Hot rows become loose, and there is no graph. Copies that it was not given, at these places, are tried again."""
        with collection.lock:
            view = collection.table.view()
        hot = np.flatnonzero(view.place == HOT)  # only a move makes others hot
        kept_out = np.flatnonzero(view.node == KEPT_OUT)
        kept_out = kept_out[np.isin(view.place[kept_out], forgotten)]
        del view  # a table that grows meanwhile would be in memory twice
        _move(collection, hot, LOOSE)
        with collection.lock:
            collection.graph = None
            collection.table.set_nodes(kept_out, -1)
        collection.copies.forget()
        collection.readers.wait_for_earlier()
        due = self._due.of(collection)
        due.snapshot_seq = -1  # a snapshot of the old graph is as large as that was
        due.packed_until = -math.inf
        self._counts.rebuilds += 1

    def _reserved_graph(self, collection: Collection, most: int | None = None) -> Graph:
        """A graph with all the memory that it may have, for `most` nodes. There must be none of the collection's yet.

        One that had to shrink of late leaves a margin, or the next rows to come, of whichever collection, would cost it again.
        """
        due, now = self._due.of(collection), time.monotonic()
        shrunk = now - due.shrunk_at < SHRUNK_S
        reserve = self._room.nodes(collection, MARGIN_SHARE if shrunk else 0.0)
        reserve = reserve if most is None else min(reserve, most)
        if reserve < self._room.nodes_wanted(collection):
            due.packed_until = due.shrunk_at + SHRUNK_S if shrunk else now + PACKED_S
        self._memory.took(reserve * node_bytes(collection.dimensions))
        return Graph(collection.dimensions, collection.metric, reserve)

    def shrink(self, collection: Collection, coldest: Slots, nodes: int) -> None:
        """These hot rows become warm, and the others loose, for a smaller graph of `nodes` at most.

        The graph goes first, for that gives memory back at once.
        """
        self._due.of(collection).shrunk_at = time.monotonic()
        self.drop_graph(collection)
        self.demote(collection, coldest)
        collection.graph = self._reserved_graph(collection, nodes)

    def exchange(self, collection: Collection, hotter: NDArray[np.uint64], colder: NDArray[np.uint64]) -> None:
        """Exchange warm rows with hot ones, as many, by building the graph anew."""
        self.demote(collection, collection.table.view().slots_of(colder))
        with collection.lock:
            view = collection.table.view()
        slots = view.slots_of(hotter)
        _move(collection, slots[slots >= 0], LOOSE)
        # Warm copies stay kept out, or the next exchange would be for them again.
        self.drop_graph(collection, forgotten=(LOOSE,))
        collection.graph = self._reserved_graph(collection)
        self._counts.promoted += len(hotter)

    # Shards

    def demote(self, collection: Collection, slots: Slots) -> None:
        """Rows become WARM: those that no shard has are written into new ones."""
        view = collection.table.view()
        known = view.group[slots] >= 0
        in_shards, others = view.rows[slots[known]], view.rows[slots[~known]]
        del view  # a table that grows meanwhile would be in memory twice
        self._make_warm(collection, in_shards)
        most = self._room.shard_rows(collection)
        for start in range(0, len(others), most):
            content = self._shard_rows(collection, others[start : start + most])
            meta = ShardMeta(collection.name, collection.published, collection.dimensions, collection.metric)
            if not len(content):
                continue
            groups = collection.shards.demote(content, meta)
            with collection.lock:
                found = collection.table.view().slots_of(content.rownums)
                collection.table.set_groups(found[found >= 0], groups[found >= 0])
            self._make_warm(collection, content.rownums)
            del content
            allocator.give_back()

    def _make_warm(self, collection: Collection, rows: NDArray[np.uint64]) -> None:
        with collection.lock:
            view = collection.table.view()
        slots = view.slots_of(rows)
        slots = slots[slots >= 0]
        nodes = view.node[slots[view.place[slots] == HOT]].tolist()
        _move(collection, slots, WARM)
        collection.readers.wait_for_earlier()
        if (graph := collection.graph) is not None:
            for node in nodes:
                graph.end(node)
        self._counts.demoted += len(slots)

    def _shard_rows(self, collection: Collection, rows: NDArray[np.uint64]) -> ShardRows:
        """The stored content of rows; those that ended meanwhile are left out."""
        numbers = np.empty(len(rows), np.uint64)
        vectors = np.empty((len(rows), collection.dimensions), np.float32)
        count = 0
        ids: list[str] = []
        texts: list[str] = []
        attributes: list[bytes] = []
        expires: list[int] = []
        for start in range(0, len(rows), MERGE_ROWS):
            have, part = collection.stored_vectors(rows[start : start + MERGE_ROWS])
            found = collection.row_records(have.tolist())
            keep = np.array([record is not None for record in found], np.bool_)
            here = slice(count, count + int(keep.sum()))
            numbers[here], vectors[here] = have[keep], part[keep]
            count = here.stop
            for record in filter(None, found):
                ids.append(record.id)
                texts.append(record.text or "")
                attributes.append(msgspec.json.encode(record.attributes))
                expires.append(record.expires_ms or 0)
        return ShardRows(numbers[:count], vectors[:count], ids, texts, attributes, np.array(expires, np.int64))

    def adopt(self, collection: Collection) -> None:
        """Rows that shards have are WARM, unless the snapshot has them in the graph. A shard that cannot be read is removed."""
        for entry in collection.shards.entries:
            try:
                for group, rows in collection.shards.groups(entry.name):
                    with collection.lock:
                        view = collection.table.view()
                        slots = view.slots_of(rows)
                        slots = slots[slots >= 0]
                        collection.table.set_groups(slots, group)
                        collection.table.move(slots[view.place[slots] == LOOSE], WARM)
            except DataPlaneError as error:
                self.abandon_shard(collection, entry.name, str(error))

    def abandon_shard(self, collection: Collection, name: str, why: str) -> None:
        """Remove a shard, and say `why` if it was damaged. Its rows are read from RocksDB."""
        groups = collection.shards.numbers_of(name)
        with collection.lock:
            view = collection.table.view()
        inside = np.flatnonzero((view.group >= groups.start) & (view.group < groups.stop))
        warm = inside[view.place[inside] == WARM]
        _move(collection, warm, LOOSE)
        collection.readers.wait_for_earlier()  # they look for rows in these groups
        with collection.lock:
            collection.table.set_groups(inside, -1)
        collection.shards.drop(name, why)

    # Table, snapshot, everything

    def compact_table(self, collection: Collection, share: float = MASKED_SHARE) -> None:
        """Forget the slots of rows that ended, once they are a share of all.

        Table and attributes are made anew beside the old ones, while the writer goes on. The attributes of rows that came
        meanwhile are read from RocksDB. To read some takes less time than to write them: each round finds fewer, until none came.
        """
        old = collection.table
        if old.ended < share * len(old):
            return
        with collection.lock:
            old.watch()
            view = old.view()
        try:
            slots, count = view.live_slots(), len(view)
            table, attributes = old.kept(slots), collection.attributes.keep(slots)
            while not self._exchanged(collection, table, attributes, count):
                with collection.lock:
                    rows = old.view().rows[count:]
                table.follow(old, count, count + len(rows))
                found = collection.row_records(rows.tolist())
                # Without a record it is ended, or about to be.
                attributes.append([{} if record is None else record.attributes for record in found])
                count += len(rows)
        finally:
            old.unwatch()

    def _exchanged(self, collection: Collection, table: Table, attributes: AttributeColumns, count: int) -> bool:
        """Put these in the place of the old ones, unless those have more slots than the `count` that were brought over."""
        with collection.lock:
            if len(collection.table) > count:
                return False
            table.end_late(collection.table)
            collection.table, collection.attributes = table, attributes
            view, delta = table.view(), collection.delta.view().rows
            slots = view.slots_of(delta)
            if not (known := slots >= 0).all():
                collection.delta.keep(known)
            return True

    def save_snapshot(self, collection: Collection) -> None:
        """Write a snapshot of graph, sketches and heat as they are."""
        due = self._due.of(collection)
        with collection.lock:  # no row that is in the view may be beyond the number
            seq = collection.published
            view, (accesses, hours) = collection.table.view(), collection.table.accessed()
        heat = snapshot.Heat(view.live_slots(), (view.rows, accesses, hours))
        sketched = None
        if collection.sketcher is not None and collection.centre_rows >= CENTRE_ROWS:
            slots = np.flatnonzero(view.alive & (view.place != FRESH))
            sketched = snapshot.Sketched(view, slots, collection.sketcher.centre)
        saved = snapshot.save(collection.folder, seq, collection.graph, heat, sketched)
        due.snapshot_seq, due.snapshot_nodes, due.snapshot_at = seq, saved.nodes, time.monotonic()
        self._counts.snapshots += 1

    def purge(self, collection: Collection, shards: Sequence[str]) -> None:
        """Have nothing of rows that ended stay in graph, table, snapshot and these shards. While `held`.

        Live rows are read from RocksDB until graph and snapshot have been made anew.
        """
        for name in shards:
            self.abandon_shard(collection, name, "")
        self.drop_graph(collection)
        snapshot.remove(collection.folder)
        collection.centre_rows = 0  # they were among those of which it is the mean: another is made at the next start
        self.compact_table(collection, share=0)


def _add(collection: Collection, rows: NDArray[np.uint64], vectors: NDArray[np.float32]) -> None:
    """The graph gets rows that have sketches."""
    if not len(rows):
        return
    if collection.graph is None:
        collection.graph = Graph(collection.dimensions, collection.metric)
    graph = collection.graph
    first = graph.add(rows, vectors)
    with collection.lock:
        view = collection.table.view()
        slots = view.slots_of(rows)
        nodes = np.arange(first, first + len(rows))
        collection.table.set_nodes(slots, nodes)
        collection.table.move(slots, HOT)
        for node in nodes[~view.alive[slots]].tolist():
            graph.end(node)


def _keep_out(collection: Collection, slots: Slots) -> None:
    """Rows of which the graph has enough copies. Those that are warm stay so."""
    with collection.lock:
        collection.table.set_nodes(slots, KEPT_OUT)
        collection.table.move(slots[collection.table.view().place[slots] != WARM], LOOSE)


def _move(collection: Collection, slots: Slots, place: int) -> None:
    """Rows have another place, part by part. A search sees each of them at one place, before and after."""
    for start in range(0, len(slots), MOVE_ROWS):
        with collection.lock:
            collection.table.move(slots[start : start + MOVE_ROWS], place)

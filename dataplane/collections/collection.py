"""Collection: what memory knows of one collection, brought up to RocksDB by commands and moved about by the keeper.

RocksDB has every row; table, attributes, delta, graph and full text are derived from it, and `load` makes them again. Each
change of a collection has a sequence number; that of an insert is the row's number, so rows are in the order of their
insertion and no number is used twice. `dead` holds, under the number of the change, the row that ended and its text, for
what is derived and was not there at the time; the keeper removes what nobody needs any more.

Threads: the writer's drafts and publishes changes (`reserve`, `publish`), the keeper's moves rows, searches take views. Memory
is changed under `lock`, for microseconds. A view may be older than the graph's mask: before the keeper masks the nodes of
rows that it moved elsewhere, it waits until the searches that began before the move have ended (`readers`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataplane.collections.changes import Change
from dataplane.collections.readers import Readers
from dataplane.collections.view import CollectionView
from dataplane.errors import Damaged, DimensionMismatch, InvalidInput
from dataplane.hot.attributes import AttributeColumns
from dataplane.hot.copies import Copies
from dataplane.hot.delta import Delta
from dataplane.hot.graph import Graph
from dataplane.hot.sketch import Sketcher, sketch_words
from dataplane.hot.table import HOT, LOOSE, WARM, Table
from dataplane.memory import Memory
from dataplane.rows import Metric
from dataplane.truth import keys, records
from dataplane.truth.records import CollectionRecord, RowRecord
from dataplane.truth.rocks import Rocks
from dataplane.warm.warmshards import WarmShards
from dataplane.words.indexer import TextFeed

Rows = NDArray[np.uint64]
Floats = NDArray[np.float32]
Sketches: TypeAlias = tuple[NDArray[np.uint64], Floats, Floats]

FLAT_ROWS = 1024  # a collection that is no larger stays in the delta: a scan of it takes 60 microseconds
DELTA_ROWS = 8192
QUICK_S = 0.002  # what a search may take on the event loop
UNBOUNDED = 1 << 62
SHORTEST, LONGEST = 1e-15, 1e18  # vectors whose squares are float32
ENDED_KEPT = 4096
ATTRIBUTES_GROW_BY = 4  # an array of attributes grows by such a part of it
COUNTED_ROWS = 1024  # at a time
CENTRE_ROWS = 512  # the mean of so many is the centre of the sketches


def lost_vector(row: int) -> str:
    """What is said of a row that has none."""
    return f"row {row} has lost its vector. No search for a vector finds it: store it again, or delete it."


class Collection:
    """One collection of one tenant. `folder` holds what is derived and on disk; `wake` tells the indexer of work."""

    def __init__(
        self,
        rocks: Rocks,
        tenant: str,
        record: CollectionRecord,
        folder: Path,
        wake: Callable[[bool], None],
        memory: Memory | None = None,
    ) -> None:
        self.rocks = rocks
        self.memory = memory or Memory(UNBOUNDED)
        self.tenant = tenant
        self.record = record
        self.folder = folder
        self.wake = wake
        self.name = record.name
        self.dimensions = record.dimensions
        self.metric: Metric = record.metric  # type: ignore[assignment]  # checked when it was made
        self.scope = keys.scope(tenant, record.number)
        self.seq_key = keys.tenant_prefix(tenant) + b"s" + keys.number(record.number)
        self.seq = 0  # the last number that was given out
        self.published = 0  # the last change that memory has: what is derived is built up to it
        self.lock = threading.Lock()
        self.readers = Readers()
        self.table = Table(sketch_words(self.dimensions))
        self.attributes = AttributeColumns()
        self.delta = Delta(self.dimensions, DELTA_ROWS)
        self.graph: Graph | None = None
        self.copies = Copies(self.dimensions)
        self.sketcher: Sketcher | None = None
        self.centre_rows = 0  # of which the sketches' centre is the mean; with too few, no snapshot has it
        self.shards = WarmShards(folder)
        self.text: TextFeed | None = None
        self.problems: list[str] = []  # what was found damaged and is being made anew
        self.damaged: dict[int, str] = {}  # row groups that a search could not read, and why: for the keeper
        self.changed_at = time.monotonic()
        self.searched_at = time.monotonic()  # when a search ended last
        self.search_s = 0.0  # what a search of hot rows took lately
        self.touched: list[Rows] = []  # what searches found, until a command takes it up; on the loop
        self.dropped = False
        self.ends = 0  # rows that have ended since it was loaded
        self.ended: deque[int] = deque(maxlen=ENDED_KEPT)  # the latest of them, for searches that began before

    def empty(self) -> Collection:
        """The same collection, of which nothing is in memory."""
        return Collection(self.rocks, self.tenant, self.record, self.folder, self.wake, self.memory)

    # Reading

    def view(self) -> CollectionView:
        """What a search sees. Take it inside `readers.reading()`."""
        with self.lock:
            return CollectionView(
                metric=self.metric,
                ends=self.ends,
                table=self.table.view(),
                attributes=self.attributes,
                delta=self.delta.view(),
                graph=self.graph,
                sketcher=self.sketcher,
                ids_of=self.table.ids,
                stored_vectors=self.stored_vectors,
                group_vectors=self.group_vectors,
            )

    def stored_vectors(self, rows: Rows) -> tuple[Rows, Floats]:
        """The vectors in RocksDB of the rows that it has, and which rows these are. One of the wrong length is none."""
        numbers, size = rows.tolist(), 4 * self.dimensions
        stored = self.rocks.get_many("vectors", [self.scope + keys.number(row) for row in numbers])
        have = [
            (row, vector)
            for row, vector in zip(numbers, stored, strict=True)
            if vector is not None and len(vector) == size
        ]
        vectors = np.frombuffer(b"".join(vector for _, vector in have), "<f4").reshape(-1, self.dimensions)
        return np.array([row for row, _ in have], np.uint64), vectors

    def group_vectors(self, group: int) -> tuple[Rows, Floats]:
        """The rows of a shard's row group and their vectors; from RocksDB, if the shard is damaged."""
        try:
            return self.shards.group_vectors(group)
        except Damaged as error:
            with self.lock:
                view = self.table.view()
                inside = view.rows[np.flatnonzero(view.alive & (view.group == group))]
                self.damaged[group] = str(error)
            return self.stored_vectors(inside)

    def row_records(self, rows: Sequence[int]) -> list[RowRecord | None]:
        """The records in RocksDB of some rows."""
        stored = self.rocks.get_many("rows", [self.scope + keys.number(row) for row in rows])
        return [None if value is None else records.decode(RowRecord, value) for value in stored]

    # Changing, in the writer's thread

    def reserve(self, count: int) -> int:
        """The first of `count` new sequence numbers. Numbers of a batch that is not written are left out."""
        first = self.seq + 1
        self.seq += count
        return first

    def publish(self, changes: Sequence[Change]) -> None:
        """Bring memory up to written changes, in their order: all at once, for each taking of the lock costs as much as a row."""
        inserted = [change for change in changes if change.batch is not None]
        ended = [end for change in changes for end in change.ended]
        with self.lock:
            if inserted:
                self._insert(inserted)
            if ended:  # none of them before it was inserted
                self._end(np.array([end.row for end in ended], np.uint64))
            self.published = changes[-1].last
            self.changed_at = time.monotonic()
        if self.text is not None:
            added = [(change.first + at, text) for change in inserted for at, text in enumerate(change.texts) if text]
            # Not `self.seq`: later commands of the batch have reserved theirs, and are not published yet.
            self.text.add(added, [(end.row, end.text) for end in ended if end.text], changes[-1].last)

    def _insert(self, changes: Sequence[Change]) -> None:
        batches = [change.batch for change in changes if change.batch is not None]
        rows = np.array([change.first + at for change in changes for at in range(len(change.texts))], np.uint64)
        vectors = batches[0].vectors if len(batches) == 1 else np.concatenate([batch.vectors for batch in batches])
        self.memory.took(self.table.growth(len(rows)))
        slots = self.table.append(
            rows,
            [id_ for batch in batches for id_ in batch.ids],
            [at for batch in batches for at in batch.expires_ms],
            changes[-1].hour,
        )
        self.attributes.append([each for batch in batches for each in batch.attributes])
        if self.delta.room >= len(rows) and self.memory.take(self.delta.growth(len(rows))):
            self.delta.append(rows, vectors)
        else:  # the keeper is behind, or memory is short: they are found by their sketches meanwhile
            self.table.set_sketches(slots, *self.sketches_of(vectors))
            self.table.move(slots, LOOSE)

    def _end(self, rows: Rows) -> None:
        self.ends += len(rows)
        self.ended.extend(rows.tolist())
        view = self.table.view()
        slots = view.slots_of(rows)
        slots = slots[slots >= 0]
        slots = slots[view.alive[slots]]
        self.table.end(slots)
        if self.graph is not None:
            for node in view.node[slots[view.place[slots] == HOT]].tolist():
                self.graph.end(node)

    def leave_out(self, rows: Rows) -> None:
        """Rows of which no vector was found leave memory: nothing can be compared with them. `verify` goes on to name them.

        Those that are being deleted have no record either, and go by themselves.
        """
        lost = [row for row, record in zip(rows.tolist(), self.row_records(rows.tolist()), strict=True) if record]
        if lost:
            with self.lock:
                self._end(np.array(lost, np.uint64))
            self.problems += [lost_vector(row) for row in lost]

    def sketches_of(self, vectors: Floats) -> Sketches:
        """Sketches, factors and bases, as the table takes them. The first rows decide the centre."""
        if self.sketcher is None:
            new = self.delta.view(CENTRE_ROWS)
            first = (new.vectors if len(new) > len(vectors) else vectors)[:CENTRE_ROWS]
            self.centre_rows = len(first)
            self.sketcher = self.sketcher_of(first.mean(axis=0, dtype=np.float32))
        return self.sketcher.encode(vectors)

    def sketcher_of(self, centre: Floats) -> Sketcher:
        """What makes the collection's sketches, by a centre."""
        return Sketcher(self.dimensions, centre, l2=self.metric == "l2")

    def count_copies(self, more: int) -> None:
        """Count anew what the graph has, with room for `more` nodes. In the keeper's thread."""
        nodes = 0 if self.graph is None else len(self.graph)
        before = self.copies.nbytes
        self.copies.begin(nodes + more)
        self.memory.took(max(self.copies.nbytes - before, 0))
        for start in range(0, nodes, COUNTED_ROWS):
            assert self.graph is not None
            self.copies.count(self.graph.vectors(np.arange(start, min(start + COUNTED_ROWS, nodes))))

    def touch(self, rows: Rows, hour: float) -> None:
        """Rows were found by a search."""
        with self.lock:
            slots = self.table.view().slots_of(rows)
            self.table.touch(slots[slots >= 0], hour)

    def quick(self) -> bool:
        """Whether a search for a vector is short enough for the event loop: all rows hot, and nobody changes the graph.

        A search of a few hundred microseconds costs less there than the way to another thread and back.
        """
        counts, graph = self.table.view().counts, self.graph
        if counts[LOOSE] or counts[WARM] or len(self.delta) > FLAT_ROWS or (graph is not None and graph.busy):
            return False
        return self.search_s < QUICK_S

    def searched(self, took_s: float) -> None:
        """A search of hot rows took so long. One slow one among many does not count."""
        self.search_s += 0.1 * (min(took_s, 10 * QUICK_S) - self.search_s)

    # What it takes

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken, those of the graph included."""
        graph = 0 if self.graph is None else self.graph.nbytes
        vectors = self.delta.nbytes + graph + self.copies.nbytes
        return self.table.nbytes + self.attributes.nbytes + vectors + self.shards.nbytes

    @property
    def growing(self) -> int:
        """Bytes of memory that table and attributes will take when they grow the next time, about."""
        return self.table.growing + self.attributes.nbytes // ATTRIBUTES_GROW_BY

    def counts(self) -> tuple[int, ...]:
        """Live rows by place: FRESH, HOT, LOOSE, WARM."""
        return self.table.view().counts

    # Input

    def ready(self, vectors: Floats, param: str) -> Floats:
        """Vectors as they are stored: float32, finite, and of length 1 for cosine. A copy. Raises InvalidInput."""
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise DimensionMismatch(
                f"{self.name} takes vectors of {self.dimensions} dimensions; these have shape {vectors.shape}.",
                param=param,
            )
        ready: Floats = np.array(vectors, np.float32)
        if not np.isfinite(ready).all():
            raise InvalidInput("a vector holds NaN or infinity.", param=param)
        lengths = np.sqrt(np.einsum("nd,nd->n", ready, ready, dtype=np.float64))
        if self.metric == "cosine":
            if not lengths.all():
                raise InvalidInput("a vector of zeros has no direction, which the metric cosine compares.", param=param)
            np.divide(ready, lengths[:, None], out=ready, casting="same_kind")
        elif (lengths > LONGEST).any():
            raise InvalidInput(f"a vector is longer than {LONGEST:.0e}: its scores would overflow.", param=param)
        return ready

    def ready_one(self, vector: Floats) -> Floats:
        """The same for the vector of a query, shape [dimensions]; 50 microseconds faster."""
        if vector.shape != (self.dimensions,):
            raise DimensionMismatch(
                f"{self.name} takes vectors of {self.dimensions} dimensions; this one has shape {vector.shape}.",
                param="vector",
            )
        ready: Floats = vector.astype(np.float32)
        wide = ready.astype(np.float64)  # whose squares do not overflow
        length = float((wide * wide).sum()) ** 0.5  # np.dot would give the interpreter's lock away
        if not SHORTEST < length < LONGEST:  # NaN is not
            checked: Floats = self.ready(vector.reshape(1, -1), "vector")[0]
            return checked
        if self.metric == "cosine":
            ready /= np.float32(length)
        return ready

    def close(self) -> None:
        """Close its files."""
        self.shards.close()
        if self.text is not None:
            self.text.close()

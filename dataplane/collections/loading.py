"""Loading: a collection's memory is brought up to RocksDB, at a start or when it is made anew.

Rows are read in parts: one thread decodes records and takes them into table and attributes, another reads the vectors of the
next part and sketches them, unless the snapshot has their sketches, and a third reads the snapshot's graph.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from dataplane import clock
from dataplane.collections.collection import CENTRE_ROWS, Collection, Floats, Rows, Sketches, lost_vector
from dataplane.errors import Damaged
from dataplane.hot import snapshot
from dataplane.hot.graph import Graph
from dataplane.hot.sketchfile import SavedSketches
from dataplane.hot.table import HOT, LOOSE
from dataplane.truth import records
from dataplane.truth.records import RowRecord
from dataplane.words.indexer import TextFeed

LOAD_ROWS = 512  # read, sketched and taken in at a time


class Part:
    """Stored rows that are taken in together: their numbers and records."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.records: list[RowRecord] = []


def load(to: Collection) -> None:
    """Bring memory up to RocksDB. Rows are LOOSE afterwards, or in the delta if they are few."""
    with ThreadPoolExecutor(1, thread_name_prefix="dataplane-load") as beside:
        graph = beside.submit(snapshot.load, to.folder, Graph(to.dimensions, to.metric))
        _take_in_all(to, saved=True)
        to.shards.open(to.seq)
        _take_up_snapshot(to, graph)
    if to.record.text:
        to.text = TextFeed(to.rocks, to.scope, to.folder / "text.sqlite", to.wake)
        to.text.open(to.seq)
        to.text.index.rest()  # there may be thousands of collections, and few that are used
        to.wake(False)


def _take_in_all(to: Collection, *, saved: bool = False) -> None:
    """`saved`: use the sketches that the snapshot has."""
    stored = to.rocks.get("meta", to.seq_key)
    to.seq = to.published = int.from_bytes(stored, "big") if stored else 0
    sketches = snapshot.load_sketches(to.folder, to.dimensions, to.seq) if saved else None
    if sketches is not None:
        to.sketcher, to.centre_rows = to.sketcher_of(sketches.centre), CENTRE_ROWS
    scan = to.rocks.scan("rows", to.scope)
    # Another thread reads the vectors of the next part, and sketches them, while this one takes a part in.
    with contextlib.closing(scan), ThreadPoolExecutor(1, thread_name_prefix="dataplane-load") as beside:
        part = _next_part(scan)
        flat = len(part.records) < LOAD_ROWS  # there are no more
        reading = beside.submit(_read, to, part, sketches, sketched=not flat)
        while part.records:
            following = _next_part(scan)
            ahead = beside.submit(_read, to, following, sketches, sketched=not flat)
            _take_in(to, part, *reading.result())
            part, reading = following, ahead


def _next_part(scan: Iterator[tuple[bytes, bytes]]) -> Part:
    part = Part()
    for key, value in itertools.islice(scan, LOAD_ROWS):
        part.numbers.append(int.from_bytes(key[-8:], "big"))
        part.records.append(records.decode(RowRecord, value))
    return part


def _read(
    to: Collection, part: Part, saved: SavedSketches | None, *, sketched: bool
) -> tuple[Rows, Floats, Sketches | None]:
    """Which of the rows have a vector, the vectors, and their sketches, if these are wanted.

    Where all have a saved sketch, they had a vector when it was made, and no vectors are read. One that was lost since is
    found out by the search that wants it, or by `verify`.
    """
    numbers = np.array(part.numbers, np.uint64)
    if sketched and saved is not None:
        known, sketches = saved.of(numbers)
        if known.all():
            return numbers, np.empty((0, to.dimensions), np.float32), sketches
    have, vectors = to.stored_vectors(numbers)
    return have, vectors, to.sketches_of(vectors) if sketched and len(have) else None


def remake(to: Collection) -> None:
    """Make memory anew from RocksDB, without graph and shards. In the writer's thread, while the keeper is held."""
    made = to.empty()
    _take_in_all(made)
    with to.lock:
        old, (accesses, hours) = to.table.view(), to.table.accessed()
        slots = made.table.view().slots_of(old.rows)
        made.table.set_accessed(slots[slots >= 0], accesses[slots >= 0], hours[slots >= 0])
        to.table, to.attributes, to.delta = made.table, made.attributes, made.delta
        to.sketcher, to.centre_rows, to.graph = made.sketcher, made.centre_rows, None
        to.copies.forget()
        to.problems += made.problems
    to.readers.wait_for_earlier()


def _take_up_snapshot(to: Collection, loading: Future[snapshot.Loaded | None]) -> None:
    """Rows that the snapshot's graph has are HOT. A snapshot that is damaged is noted and removed."""
    try:
        loaded = loading.result()
    except Damaged as error:
        to.problems.append(f"{error} The graph is built anew.")
        snapshot.remove(to.folder)
        return
    if loaded is None:
        return
    if loaded.seq > to.seq:
        to.problems.append(f"the snapshot in {to.folder} knows rows that a loss of power took. It is made anew.")
        snapshot.remove(to.folder)
        return
    view = to.table.view()
    heated = view.slots_of(loaded.heat[0].astype(np.uint64))
    known = heated >= 0
    to.table.set_accessed(heated[known], *loaded.heat[1:, known].astype(np.float32))
    if loaded.graph is None or not len(view):
        return
    slots = view.slots_of(loaded.graph.rows)
    known = slots >= 0
    known[known] = view.place[slots[known]] == LOOSE  # a small collection is in the delta as a whole
    nodes = np.flatnonzero(known)
    # A row that left the graph and came back has two nodes: the later one counts.
    moved, last = np.unique(slots[nodes][::-1], return_index=True)
    nodes = nodes[::-1][last]
    to.table.set_nodes(moved, nodes)
    to.table.move(moved, HOT)
    for node in np.setdiff1d(np.arange(len(slots)), nodes).tolist():
        loaded.graph.end(node)
    to.graph = loaded.graph


def _take_in(to: Collection, part: Part, numbers: Rows, vectors: Floats, sketches: Sketches | None) -> None:
    """Add stored rows to table and attributes; those without sketches into the delta, if there is room."""
    found = part.records
    if len(numbers) < len(found):
        lost = np.setdiff1d(np.array(part.numbers, np.uint64), numbers)
        to.problems += [lost_vector(row) for row in lost.tolist()]
        there = np.isin(np.array(part.numbers, np.uint64), numbers)
        found = list(itertools.compress(found, there))
    if not len(numbers):
        return
    to.memory.took(to.table.growth(len(numbers)))
    slots = to.table.append(
        numbers,
        [record.id for record in found],
        [record.expires_ms for record in found],
        clock.hour(clock.now_ms()),
    )
    to.attributes.append([record.attributes for record in found])
    if sketches is None and to.memory.take(to.delta.growth(len(numbers))):
        to.delta.append(numbers, vectors)
    else:
        to.table.set_sketches(slots, *(sketches or to.sketches_of(vectors)))
        to.table.move(slots, LOOSE)

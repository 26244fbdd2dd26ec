"""Verify: whether what is derived says what RocksDB says, and whether files are what was written.

Runs beside everything else. What looks wrong while rows come and go is looked at a second time, row by row, before it counts.

    rows against index       every row has its id in the index, and every id leads to its row
    rows against vectors     every row has a vector of the right length
    rows against memory      the table's live rows are RocksDB's, and each is where its place says
    full text                built up to the last change
    shards, snapshot         checksums of every file, and the manifest's own

`repair` makes anew what is derived and wrong; what RocksDB itself lacks cannot be made. The functions that it needs tell what
is wrong as values, the others as sentences.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane.collections.collection import Collection
from dataplane.errors import DataPlaneError
from dataplane.hot import snapshot
from dataplane.hot.graph import Graph
from dataplane.hot.table import FRESH, HOT, WARM, Slots, TableView
from dataplane.truth import keys, records
from dataplane.truth.records import RowRecord

MOST = 20  # problems of one kind that are told one by one
LOOKS, LOOK_EVERY_S = 10, 0.02
RANGE = 65_536  # rows that are compared at a time
LOCKED_ROWS = 256  # looked at again at a time
PARTS = 65_536  # of what the index and the rows have
MASK_64 = (1 << 64) - 1

Pair: TypeAlias = tuple[bytes, int]  # an id and its row


class Problem(Struct, frozen=True):
    """Something that is wrong. `where`: what a repair would make anew (index, graph, shards, text), or `rows`: nothing can."""

    collection: str
    where: str
    what: str


def verify(collection: Collection) -> list[Problem]:
    """Everything that is wrong with a collection."""
    name = collection.name
    problems = [
        *_at_most([Problem(name, "index", what) for what in _index(collection)]),
        *_at_most([Problem(name, "rows", what) for what in _vectors(collection)]),
        *_at_most([Problem(name, "graph", what) for what in memory_faults(collection)]),
        *_text(collection),
    ]
    problems += [Problem(name, "shards", what) for what in collection.shards.verify()]
    rows = collection.table.view().rows[misplaced(collection)].tolist()
    problems += _at_most([Problem(name, "shards", f"row {row} is not in its row group of a shard") for row in rows])
    problems += [Problem(name, "graph", what) for what in snapshot.verify(collection.folder)]
    return problems


def index_faults(collection: Collection) -> tuple[list[int], list[bytes]]:
    """Rows that the index does not have under their id, and ids under which it has no row or another's."""
    rocks, scope = collection.rocks, collection.scope

    def indexed() -> Iterator[Pair]:
        return ((key[len(scope) :], int.from_bytes(value, "big")) for key, value in rocks.scan("index", scope))

    def stored() -> Iterator[Pair]:
        for key, value in rocks.scan("rows", scope):
            yield keys.name(records.decode(RowRecord, value).id), int.from_bytes(key[-8:], "big")

    unlike = _parts(indexed()) != _parts(stored())
    if not unlike.any():
        return [], []
    left = {pair for pair in indexed() if unlike[_hash(pair) % PARTS]}
    suspects = []
    for pair in stored():
        if not unlike[_hash(pair) % PARTS]:
            continue
        if pair in left:
            left.remove(pair)
        else:
            suspects.append(pair[1])
    return [row for row in suspects if _misindexed(collection, row)], [
        id_ for id_, _ in sorted(left) if _astray(collection, id_)
    ]


def _parts(pairs: Iterator[Pair]) -> NDArray[np.uint64]:
    """Of pairs of an id and a row, sorted by their hashes into parts, the sum of the hashes in each part.

    Where two sums are the same, the parts hold the same pairs. So memory is needed only for the others.
    """
    sums = np.zeros(PARTS, np.uint64)
    while len(hashes := np.fromiter(map(_hash, itertools.islice(pairs, RANGE)), np.uint64)):
        np.add.at(sums, hashes % np.uint64(PARTS), hashes)  # modulo 2^64
    return sums


def _hash(pair: Pair) -> int:
    """64 bits of an id and a row, in each process others."""
    return hash(pair) & MASK_64


def _misindexed(collection: Collection, row: int) -> bool:
    """Looked at again: it may have ended, or just come."""
    stored = collection.rocks.get("rows", collection.scope + keys.number(row))
    if stored is None:
        return False
    key = collection.scope + keys.name(records.decode(RowRecord, stored).id)
    if collection.rocks.get("index", key) == keys.number(row):
        return False
    return collection.rocks.get("rows", collection.scope + keys.number(row)) is not None


def _astray(collection: Collection, id_: bytes) -> bool:
    """Looked at again: the id may have been given to another row meanwhile."""
    number = collection.rocks.get("index", collection.scope + id_)
    while number is not None:
        stored = collection.rocks.get("rows", collection.scope + number)
        if stored is not None and keys.name(records.decode(RowRecord, stored).id) == id_:
            return False
        before, number = number, collection.rocks.get("index", collection.scope + id_)
        if number == before:
            return True
    return False


def _index(collection: Collection) -> list[str]:
    rows, ids = index_faults(collection)
    return [f"row {row} is not what the index has under its id" for row in rows] + [
        f"the id {id_.decode(errors='replace')!r} leads to no row of that id" for id_ in ids
    ]


def _vectors(collection: Collection) -> list[str]:
    return [f"row {row} has no vector of {collection.dimensions} dimensions" for row in without_vector(collection)]


def without_vector(collection: Collection) -> list[int]:
    """Rows that have no vector of the right length."""
    rocks, scope, size = collection.rocks, collection.scope, 4 * collection.dimensions
    lost = []
    with contextlib.closing(rocks.scan("vectors", scope)) as found:
        whole = (key for key, value in found if len(value) == size)
        have = next(whole, None)
        for key, _ in rocks.scan("rows", scope):  # both are in the order of their numbers
            while have is not None and have < key:
                have = next(whole, None)
            if have == key:
                continue
            vector = rocks.get("vectors", key)
            if (vector is None or len(vector) != size) and rocks.get("rows", key) is not None:
                lost.append(int.from_bytes(key[-8:], "big"))
    return lost


def memory_faults(collection: Collection) -> list[str]:
    """The table against RocksDB, and places against delta and graph. Rows without a vector are not in memory."""
    with collection.lock:  # of one moment, read after it
        view, delta, graph = collection.table.view(), collection.delta.view(), collection.graph
    fresh = view.rows[np.flatnonzero((view.place == FRESH) & view.alive)]
    fresh = np.setdiff1d(fresh, delta.rows)
    suspects = _unlike_stored(collection, view)
    suspects -= set(without_vector(collection)) if suspects else set()
    for _ in range(LOOKS):  # what is written is published a moment later
        suspects = {row for row in suspects if _differs(collection, row)}
        if not suspects:
            break
        time.sleep(LOOK_EVERY_S)
    problems = [
        f"row {row} is not in memory" if _stored(collection, row) else f"row {row} is in memory and not stored"
        for row in sorted(suspects)
    ]
    problems += [f"row {row} is not in the delta" for row in fresh.tolist()]
    problems += [f"row {row} is not at its node of the graph" for row in _wrong_nodes(collection, view, graph)]
    return problems


def _unlike_stored(collection: Collection, view: TableView) -> set[int]:
    """Rows that only one of RocksDB and the view has, by ranges of row numbers."""
    found = collection.rocks.scan("rows", collection.scope)
    numbers = (int.from_bytes(key[-8:], "big") for key, _ in found)
    unlike: set[int] = set()
    start, more = 0, True
    while more:
        stored = np.fromiter(itertools.islice(numbers, RANGE), np.uint64)
        more = len(stored) == RANGE
        end = int(np.searchsorted(view.rows, stored[-1], "right")) if more else len(view)
        alive = view.rows[start:end][view.alive[start:end]]
        unlike.update(np.setxor1d(stored, alive, assume_unique=True).tolist())
        start = end
    return unlike


def _wrong_nodes(collection: Collection, view: TableView, graph: Graph | None) -> list[int]:
    """Hot rows that are not at their nodes. Those that are not where the view has them are looked at again, with the lock."""
    hot = np.flatnonzero((view.place == HOT) & view.alive)
    suspects = view.rows[hot[~_at_node(view, graph, hot)]]
    wrong: list[int] = []
    for start in range(0, len(suspects), LOCKED_ROWS):
        rows = suspects[start : start + LOCKED_ROWS]
        with collection.lock:
            view = collection.table.view()
            slots = view.slots_of(rows)
            slots = slots[(slots >= 0) & view.alive[slots]]
            slots = slots[view.place[slots] == HOT]
            wrong += view.rows[slots[~_at_node(view, collection.graph, slots)]].tolist()
    return wrong


def _stored(collection: Collection, row: int) -> bool:
    return collection.rocks.get("rows", collection.scope + keys.number(row)) is not None


def _differs(collection: Collection, row: int) -> bool:
    """Whether only one of RocksDB and memory has a row."""
    stored = _stored(collection, row)
    with collection.lock:
        view = collection.table.view()
        slot = int(view.slots_of(np.array([row], np.uint64))[0])
        return stored != (slot >= 0 and bool(view.alive[slot]))


def _at_node(view: TableView, graph: Graph | None, hot: Slots) -> NDArray[np.bool_]:
    """Which of these hot rows searches find at their nodes, shape [n]."""
    nodes = view.node[hot].astype(np.int64)
    if graph is None or not len(graph):
        return np.zeros(len(hot), np.bool_)
    inside = (nodes >= 0) & (nodes < len(graph))
    nodes = np.where(inside, nodes, 0)
    right: NDArray[np.bool_] = inside & (graph.rows[nodes] == view.rows[hot]) & graph.shown(nodes)
    return right


def misplaced(collection: Collection) -> Slots:
    """Slots of warm rows that are not in the row group where the table has them. Groups that cannot be read do not count."""
    shards = collection.shards
    turn = collection.readers.enter()  # so that no shard is taken away
    try:
        with collection.lock:
            view = collection.table.view()
            warm = view.alive & (view.place == WARM)
        found = np.zeros(len(view), np.bool_)
        for entry in shards.entries:
            for group in shards.numbers_of(entry.name):
                try:
                    rows = shards.group_vectors(group)[0]
                except DataPlaneError:
                    found |= view.group == group
                    continue
                slots = view.slots_of(rows)
                slots = slots[slots >= 0]
                found[slots[view.group[slots] == group]] = True
        missing: Slots = np.flatnonzero(warm & view.alive & ~found)
        return missing
    finally:
        collection.readers.leave(turn)


def _text(collection: Collection) -> list[Problem]:
    feed = collection.text
    if feed is None:
        return []
    if feed.behind or feed.problem:
        why = feed.problem or f"it is built up to {feed.index.seq}, and the rows to {collection.seq}"
        return [Problem(collection.name, "text", f"the full text is behind: {why}")]
    try:
        feed.index.verify()
    except DataPlaneError as error:
        return [Problem(collection.name, "text", str(error))]
    quiet = collection.published
    rows = sum(
        bool(records.decode(RowRecord, value).text) for _, value in collection.rocks.scan("rows", collection.scope)
    )
    held = feed.index.count()
    # Only while nothing was written do the two tell of the same moment.
    if rows != held and quiet == collection.published == collection.seq == feed.index.seq:
        return [Problem(collection.name, "text", f"the full text holds {held} rows, and {rows} have a text")]
    return []


def _at_most(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MOST:
        return problems
    rest = len(problems) - MOST
    return [*problems[:MOST], Problem(problems[0].collection, problems[MOST].where, f"and {rest} more of this kind")]

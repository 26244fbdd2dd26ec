"""Verify: whether what is derived says what RocksDB says, and whether files are what was written.

Runs beside everything else. What looks wrong while rows come and go is looked at a second time, row by row, before it counts.

    rows against index       every row has its id in the index, and every id leads to its row
    rows against vectors     every row has a vector of the right length
    rows against memory      the table's live rows are RocksDB's, and each is where its place says
    full text                built up to the last change
    shards, snapshot         checksums of every file, and the manifest's own

`repair` throws away what is derived and wrong, and makes it anew from RocksDB; what RocksDB itself lacks cannot be made.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from dataplane import keys, records, snapshot
from dataplane.collection import Collection
from dataplane.errors import DataPlaneError
from dataplane.graph import Graph
from dataplane.records import RowRecord
from dataplane.table import FRESH, HOT, WARM

MOST = 20  # problems of one kind that are told one by one


class Problem(Struct, frozen=True):
    """Something that is wrong. `where`: what a repair would make anew (index, graph, shards, text), or `rows`: nothing can."""

    collection: str
    where: str
    what: str


def verify(collection: Collection) -> list[Problem]:
    """Everything that is wrong with a collection."""
    problems = [*_stored(collection), *_memory(collection), *_text(collection)]
    name = collection.name
    problems += [Problem(name, "shards", what) for what in collection.shards.verify()]
    problems += [Problem(name, "graph", what) for what in snapshot.verify(collection.folder)]
    return problems


def _stored(collection: Collection) -> list[Problem]:
    """Rows, index and vectors against each other."""
    rocks, scope, name = collection.rocks, collection.scope, collection.name
    suspects: set[int] = set()
    lost: list[str] = []
    indexed: dict[int, bytes] = {}
    for key, value in rocks.scan("index", scope):
        indexed[int.from_bytes(value, "big")] = key[len(scope) :]
    for key, value in rocks.scan("rows", scope):
        row = int.from_bytes(key[-8:], "big")
        if indexed.pop(row, None) != keys.name(records.decode(RowRecord, value).id):
            suspects.add(row)
    lost.extend(id_.decode() for row, id_ in indexed.items() if rocks.get("rows", scope + keys.number(row)) is None)
    lost = [id_ for id_ in lost if _leads_nowhere(collection, id_)]
    problems = [
        Problem(name, "index", f"row {row} is not what the index has under its id")
        for row in sorted(suspects)
        if _misindexed(collection, row)
    ]
    problems += [Problem(name, "index", f"the id {id_!r} leads to no row") for id_ in lost]
    size = 4 * collection.dimensions
    with_vector = {int.from_bytes(key[-8:], "big") for key, value in rocks.scan("vectors", scope) if len(value) == size}
    without = [
        row for key, _ in rocks.scan("rows", scope) if (row := int.from_bytes(key[-8:], "big")) not in with_vector
    ]
    for row in without:
        vector = rocks.get("vectors", scope + keys.number(row))
        if rocks.get("rows", scope + keys.number(row)) is not None and (vector is None or len(vector) != size):
            problems.append(Problem(name, "rows", f"row {row} has no vector of {collection.dimensions} dimensions"))
    return _at_most(problems)


def _leads_nowhere(collection: Collection, id_: str) -> bool:
    number = collection.rocks.get("index", collection.scope + keys.name(id_))
    return number is not None and collection.rocks.get("rows", collection.scope + number) is None


def _misindexed(collection: Collection, row: int) -> bool:
    stored = collection.rocks.get("rows", collection.scope + keys.number(row))
    if stored is None:
        return False
    id_ = records.decode(RowRecord, stored).id
    return collection.rocks.get("index", collection.scope + keys.name(id_)) != keys.number(row)


def _memory(collection: Collection) -> list[Problem]:
    """The table against RocksDB, and places against delta, graph and shards."""
    rocks, scope, name = collection.rocks, collection.scope, collection.name
    stored = {int.from_bytes(key[-8:], "big") for key, _ in rocks.scan("rows", scope)}
    with collection.lock:
        view, graph = collection.table.view(), collection.graph
        alive = set(view.rows[view.alive].tolist())
        fresh = set(view.rows[view.alive & (view.place == FRESH)].tolist())
        fresh -= set(collection.delta.view().rows.tolist())
        hot = np.flatnonzero(view.alive & (view.place == HOT))
        wrong_nodes = _wrong_nodes(graph, view.rows[hot], view.node[hot])
        warm = np.flatnonzero(view.alive & (view.place == WARM))
        homeless = view.rows[warm[view.group[warm] < 0]].tolist()
    problems = []
    for row in sorted(alive ^ stored):
        there = rocks.get("rows", scope + keys.number(row)) is not None
        with collection.lock:
            now = collection.table.view()
            slot = int(now.slots_of(np.array([row], np.uint64))[0])
            known = slot >= 0 and bool(now.alive[slot])
        if there != known:
            problems.append(Problem(name, "graph", f"row {row} is {'not ' if there else ''}in memory"))
    problems += [Problem(name, "graph", f"row {row} is not in the delta") for row in sorted(fresh)]
    problems += [Problem(name, "graph", f"row {row} is not at its node of the graph") for row in wrong_nodes]
    problems += [Problem(name, "shards", f"row {row} is in no shard") for row in homeless]
    return _at_most(problems)


def _wrong_nodes(graph: Graph | None, rows: np.ndarray, nodes: np.ndarray) -> list[int]:
    if graph is None:
        return [int(row) for row in rows]
    inside = (nodes >= 0) & (nodes < len(graph))
    right = inside & (graph.rows[np.where(inside, nodes, 0)] == rows) if len(graph) else inside
    return [int(row) for row in rows[~right]]


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
    return []


def _at_most(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MOST:
        return problems
    rest = len(problems) - MOST
    return [*problems[:MOST], Problem(problems[0].collection, problems[MOST].where, f"and {rest} more of this kind")]

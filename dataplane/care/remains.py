"""What is left after an erasure, by what lies there: rows by their records, shards by the ids in them, snapshots by their nodes.

Each tells in lines, one for all of a kind with a few of the names, and notes in `searched` how much it looked through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dataplane.collections.collection import Collection
from dataplane.errors import Damaged, DataPlaneError
from dataplane.hot import snapshot
from dataplane.truth import keys, records
from dataplane.truth.records import RowRecord
from dataplane.truth.rocks import Rocks

if TYPE_CHECKING:
    from dataplane.store import DataPlane

STEP: Final = 128
FEW: Final = 3  # names of one kind


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def by_kind(tier: str, found: Iterable[tuple[str, str]]) -> list[str]:
    """Names, and what is to be said of each: a line for all of which the same is said."""
    kinds: dict[str, list[str]] = {}
    for name, what in found:
        kinds.setdefault(what, []).append(name)
    return [
        f"{tier}: {name}: {what}"
        for what, names in kinds.items()
        for name in (names if len(names) == 1 else [f"{len(names):,} ({listed(names, FEW)})"])
    ]


def history_left(plane: DataPlane, tenant: str, searched: dict[str, int]) -> Iterator[str]:
    """Events of the tenant, by what shards say."""
    try:
        count, searched["history"] = plane.old_events.count(tenant)
    except Damaged as error:
        yield f"history: {error} Then erase again."
        return
    if count:
        yield f"history: {count} events. Erase again."


def count(rocks: Rocks, family: str, prefix: bytes) -> int:
    """Keys with a prefix."""
    with contextlib.closing(rocks.scan(family, prefix)) as found:
        return sum(1 for _ in found)


def rows_left(collection: Collection, ids: frozenset[str], searched: dict[str, int]) -> Iterator[str]:
    """Rows with any of these ids, by what the rows themselves say; and vectors of no row."""
    rocks, scope = collection.rocks, collection.scope
    numbers, again = set(), []
    for key, value in rocks.scan("rows", scope):
        numbers.add(key[-8:])
        if (id_ := records.decode(RowRecord, value).id) in ids:
            again.append((id_, "a row with this id is there; was it stored again? Erase again."))
    yield from by_kind("database", again)
    orphans = [key for key, _ in rocks.scan("vectors", scope) if key[-8:] not in numbers]
    yield from by_kind(
        "database",
        (
            (f"row {int.from_bytes(key[-8:], 'big')}", "has a vector and no record. Run verify.")
            for key in orphans
            if rocks.get("rows", key) is None and rocks.get("vectors", key) is not None
        ),
    )
    searched["database"] = len(numbers)


def derived_left(collection: Collection, ids: frozenset[str], seq: int, searched: dict[str, int]) -> Iterator[str]:
    """Shards by the ids in them, and a snapshot by its nodes: they are of live rows, or of such as ended after `seq`."""
    yield from by_kind("shards", ((name, "holds such rows. Erase again.") for name in collection.shards.holding(ids)))
    searched["shards"] = sum(entry.rows for entry in collection.shards.entries)
    try:
        nodes = snapshot.read_rows(collection.folder)
    except DataPlaneError as error:
        yield f"graph: {error} Erase again."
        return
    searched["graph"] = len(nodes)
    keys_of = [collection.scope + keys.number(row) for row in nodes.tolist()]
    gone = {
        key[-8:]
        for start in range(0, len(keys_of), STEP)
        for key, value in zip(
            keys_of[start : start + STEP],
            collection.rocks.get_many("rows", keys_of[start : start + STEP]),
            strict=True,
        )
        if value is None
    }
    if gone:
        gone -= {value[:8] for _, value in collection.rocks.scan("dead", collection.scope, start=keys.number(seq + 1))}
    if gone:
        yield f"graph: the snapshot has {len(gone)} rows that ended before. Erase again."

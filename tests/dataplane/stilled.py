"""A collection without threads: commands are drafted, written and published at once, and the keeper steps when it is told to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataplane.care.verify import verify
from dataplane.collections import loading, searching
from dataplane.collections.catalog import Create, stored_collections
from dataplane.collections.changes import RowBatch
from dataplane.collections.collection import Collection
from dataplane.collections.commands import Delete, Touch, Upsert
from dataplane.collections.nearest import Found, Wanted, nearest
from dataplane.collections.view import CollectionView
from dataplane.rows import CollectionSpec, Metric, SearchQuery, SearchResult
from dataplane.tiering.keeper import Keeper
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Command, Draft
from tests.dataplane.planes import NAME, TENANT

MIB = 1 << 20
BATCH = 500
Floats = NDArray[np.float32]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def apply(rocks: Rocks, command: Command) -> Any:
    """What the writer does with a command that is alone in its batch."""
    draft = Draft(rocks)
    result = command.draft(draft)
    if len(draft.batch):
        rocks.write(draft.batch)
    command.publish()
    return result


class Stilled:
    """One collection, its RocksDB and its keeper. Row n has the id `r<n>`, the attribute `n` and the text `note n`."""

    def __init__(self, rocks: Rocks, collection: Collection, memory_bytes: int) -> None:
        self.rocks = rocks
        self.collection = collection
        self.keeper = Keeper(lambda: [collection], self.apply, memory_bytes)

    def apply(self, command: Command) -> Any:
        return apply(self.rocks, command)

    def upsert(
        self,
        vectors: Floats,
        start: int = 0,
        *,
        ids: Sequence[str] | None = None,
        texts: Sequence[str | None] | None = None,
        expires_ms: int | None = None,
    ) -> None:
        """Rows from number `start` on."""
        names = [f"r{number}" for number in range(start, start + len(vectors))] if ids is None else ids
        for at in range(0, len(vectors), BATCH):
            part = slice(at, at + BATCH)
            count = len(vectors[part])
            batch = RowBatch(
                names[part],
                self.collection.ready(vectors[part], "rows"),
                [f"note {start + at + n}" for n in range(count)] if texts is None else texts[part],
                [{"n": start + at + n} for n in range(count)],
                [expires_ms] * count,
            )
            self.apply(Upsert(self.collection, batch, now_ms()))

    def delete(self, ids: Sequence[str]) -> int:
        gone: int = self.apply(Delete(self.collection, ids, now_ms()))
        return gone

    def touch(self, ids: Sequence[str], times: int = 1, hour: float | None = None) -> None:
        rows = np.array([self.row(id_) for id_ in ids], np.uint64)
        for _ in range(times):
            self.apply(Touch(self.collection, rows, now_ms() / 3_600_000 if hour is None else hour))

    def row(self, id_: str) -> int:
        """The number of a row, by what RocksDB has."""
        stored = self.rocks.get("index", self.collection.scope + id_.encode())
        assert stored is not None
        return int.from_bytes(stored, "big")

    def slots(self, ids: Sequence[str]) -> NDArray[np.int64]:
        return self.view.table.slots_of(np.array([self.row(id_) for id_ in ids], np.uint64))

    def places(self, ids: Sequence[str]) -> list[int]:
        found: list[int] = self.view.table.place[self.slots(ids)].tolist()
        return found

    @property
    def view(self) -> CollectionView:
        return self.collection.view()

    @property
    def counts(self) -> tuple[int, ...]:
        """Live rows: fresh, hot, loose, warm."""
        return self.collection.counts()

    def work(self) -> int:
        """Everything that is due, at once; returns how many steps that took."""
        self.keeper.hurry(self.collection, on=True)
        steps = 0
        while self.keeper.steps.take_one(self.collection):
            steps += 1
            assert steps < 2000
        self.keeper.hurry(self.collection, on=False)
        return steps

    def index_text(self) -> None:
        """What the indexer's thread would do now."""
        feed = self.collection.text
        assert feed is not None
        while feed.has_work:
            feed.work()

    def search(self, vector: Floats, **options: Any) -> SearchResult:
        return searching.search(self.collection, SearchQuery(vector=vector, **options)).result

    def ids(self, vector: Floats, **options: Any) -> list[str]:
        return [hit.id for hit in self.search(vector, **options).hits]

    def problems(self) -> list[tuple[str, str]]:
        return [(problem.where, problem.what) for problem in verify(self.collection)]


def found_ids(view: CollectionView, vector: Floats, k: int = 10, **options: Any) -> tuple[list[str], Found]:
    """The ids of `nearest` in a view that may be old."""
    wanted = {"matching": None, "exact": False, "now_ms": now_ms(), "deadline": time.monotonic() + 60} | options
    found = nearest(view, Wanted(vector=vector, k=k, **wanted))
    return view.ids_of(found.slots), found


@contextmanager
def stilled(
    folder: Path, dimensions: int, *, metric: Metric = "cosine", text: bool = False, memory_bytes: int = 64 * MIB
) -> Iterator[Stilled]:
    """Open or make it in `folder`; what was there is loaded, as at a start. Without text by default."""
    rocks = Rocks.open(folder / "rocks", memory_bytes=16 * MIB)
    try:
        if not list(stored_collections(rocks)):
            apply(
                rocks, Create(TENANT, NAME, CollectionSpec(dimensions=dimensions, metric=metric, text=text), now_ms())
            )
        ((tenant, record),) = stored_collections(rocks)
        collection = Collection(rocks, tenant, record, folder / "derived", _nothing)
        loading.load(collection)
        try:
            yield Stilled(rocks, collection, memory_bytes)
        finally:
            collection.close()
    finally:
        rocks.close()


def _nothing(_hurry: bool) -> None:
    """There is no thread to wake."""

"""Plane: the DataPlane under measurement, with one collection of the corpus's rows. A row's id is its position.

Everything that the benchmark asks of the data plane passes through here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bench import K
from benchmarks.corpus import DIMENSIONS, Corpus
from dataplane.config import DataPlaneConfig
from dataplane.filters import Attribute, Filter, parse_filter
from dataplane.planestatus import CollectionStatus
from dataplane.rows import CollectionSpec, Row, SearchQuery
from dataplane.store import DataPlane
from dataplane.truth.writer import Wait

TENANT = "bench"
NAME = "rows"
BATCH = 64  # rows an upsert while filling
IN_FLIGHT = 8  # upserts that wait at once while filling
AMPLE_MB = 4096  # memory for everything
ROCKS_MB = 16  # of a small memory, for RocksDB
REST_S = 3.0  # without a promotion, and nothing more is due
REST_AT_MOST_S = 240.0


@dataclass(frozen=True)
class Answer:
    """What a search found: rows, best first; how many of them hot served; how many demoted rows were read for it."""

    rows: list[int]
    hot: int
    read: int


class Plane:
    """An open data plane."""

    def __init__(self, plane: DataPlane, corpus: Corpus) -> None:
        self.plane = plane
        self.corpus = corpus

    @classmethod
    async def open(cls, folder: Path, corpus: Corpus, memory_bytes: int | None = None) -> Plane:
        """Open the data in `folder`; the collection is made if it is not there.

        `memory_bytes` is for what the data plane keeps of its collections, to the byte; the configured memory is that and
        the least that RocksDB gets. None: enough for everything.
        """
        memory_mb = AMPLE_MB if memory_bytes is None else -(-memory_bytes // 2**20) + ROCKS_MB
        plane = await DataPlane.open(DataPlaneConfig(path=str(folder), hot_layer_mem_mb=memory_mb))
        if memory_bytes is not None:
            plane.keeper.memory_bytes = memory_bytes
        if NAME not in plane.collections(TENANT):
            await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=DIMENSIONS, metric="cosine"))
        return cls(plane, corpus)

    def _row(self, at: int) -> Row:
        attributes: dict[str, Attribute] = {"bucket": int(self.corpus.buckets[at])}
        return Row(id=str(at), vector=self.corpus.vectors[at], text=self.corpus.texts[at], attributes=attributes)

    async def insert(self, rows: Sequence[int], wait: Wait) -> None:
        """Insert rows of the corpus, in one call."""
        await self.plane.upsert(TENANT, NAME, [self._row(at) for at in rows], wait=wait)

    async def fill(self, start: int, stop: int) -> None:
        """Insert many, each call acknowledged durable, IN_FLIGHT calls at once."""
        parts = iter([range(at, min(at + BATCH, stop)) for at in range(start, stop, BATCH)])

        async def insert_parts() -> None:
            for part in parts:
                await self.insert(part, "durable")

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(insert_parts())

    async def search(
        self, query: np.ndarray, *, fetch: bool = False, bucket: int | None = None, exact: bool = False
    ) -> Answer:
        """The K nearest rows, of one bucket or of all."""
        wanted: Filter | None = None
        if bucket is not None:
            wanted = parse_filter({"type": "eq", "key": "bucket", "value": bucket})
        asked = SearchQuery(vector=query, k=K, filter=wanted, fetch=fetch, exact=exact)
        result = await self.plane.search(TENANT, NAME, asked)
        hot = sum(hit.tier == "hot" for hit in result.hits)
        return Answer([int(hit.id) for hit in result.hits], hot, result.warm_rows_read)

    async def search_all(self, queries: np.ndarray, *, fetch: bool = False) -> list[Answer]:
        """One after another."""
        return [await self.search(query, fetch=fetch) for query in queries]

    async def settle(self) -> None:
        """Wait until everything is merged, demoted and in a snapshot."""
        await self.plane.settle(TENANT, NAME)

    async def rest(self, quiet_s: float = REST_S) -> None:
        """Settle, and wait until nothing has been promoted for `quiet_s`."""
        deadline = time.monotonic() + REST_AT_MOST_S
        while time.monotonic() < deadline:
            await self.settle()
            promoted = self.plane.status().keeper.promoted
            await asyncio.sleep(quiet_s)
            if self.plane.status().keeper.promoted == promoted:
                return

    def rows(self) -> dict[str, int]:
        """Live rows: those that are "hot" (in the graph, or new), and those that are "demoted"."""
        status = self._status()
        return {"hot": status.fresh + status.hot, "demoted": status.loose + status.warm}

    def memory_bytes(self) -> int:
        """What the data plane says it keeps in memory of the collection."""
        return self._status().memory_bytes

    def _status(self) -> CollectionStatus:
        return next(found for found in self.plane.status().collections if found.name == NAME)

    async def close(self) -> None:
        """Close it in order."""
        await self.plane.close()

"""The memory cap is hard: with three times as much data as memory, what is counted never passes it, whatever goes on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from dataplane.care.verify import verify
from dataplane.rows import CollectionSpec, Row, SearchQuery
from dataplane.store import DataPlane, opened
from tests.dataplane.planes import config, vectors

MIB = 1 << 20
CAP_MB = 32
TENANT = "acme"
WIDE = 2048
ROWS = 3 * CAP_MB * MIB // (4 * WIDE)
BATCH = 64


@contextlib.asynccontextmanager
async def watched(plane: DataPlane) -> AsyncIterator[list[int]]:
    """The memory in use, looked at again and again."""
    seen: list[int] = []

    async def look() -> None:
        while True:
            seen.append(plane.keeper.used_bytes() + plane.rocks.memory_bytes())
            await asyncio.sleep(0.002)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


def numbered(stored: np.ndarray, start: int) -> list[Row]:
    return [Row(id=f"r{number}", vector=vector) for number, vector in enumerate(stored, start)]


async def fill(plane: DataPlane, name: str, count: int, dimensions: int) -> None:
    """Insert `count` rows, and search for each batch's first one."""
    for start in range(0, count, BATCH):
        stored = vectors(min(BATCH, count - start), seed=start, dimensions=dimensions)
        await plane.upsert(TENANT, name, numbered(stored, start))
        if start % (16 * BATCH) == 0:
            hits = (await plane.search(TENANT, name, SearchQuery(vector=stored[0], k=1))).hits
            assert hits[0].id == f"r{start}"


def problems(plane: DataPlane) -> list[str]:
    return [problem.what for collection in plane.open_collections() for problem in verify(collection)]


async def test_the_cap_holds_while_three_times_as_much_is_loaded_searched_and_deleted(tmp_path: Path) -> None:
    async with opened(config(tmp_path, CAP_MB)) as plane, watched(plane) as seen:
        await plane.create_collection(TENANT, "wide", CollectionSpec(dimensions=WIDE, text=False))
        await fill(plane, "wide", ROWS, WIDE)
        print(max(seen) / MIB)
        await plane.delete(TENANT, "wide", [f"r{number}" for number in range(0, ROWS, 3)])
        status = plane.status()
        assert max(seen) <= CAP_MB * MIB
        assert status.memory_bytes <= status.memory_cap_bytes == CAP_MB * MIB
        assert status.collections[0].rows == ROWS - len(range(0, ROWS, 3))
        stored = vectors(BATCH, seed=40 * BATCH, dimensions=WIDE)
        for number in range(40 * BATCH, 40 * BATCH + 6):
            query = SearchQuery(vector=stored[number - 40 * BATCH], k=1)
            (hit,) = (await plane.search(TENANT, "wide", query)).hits
            assert (hit.id == f"r{number}") == (number % 3 != 0)
        print(max(seen) / MIB, status)


async def test_many_small_collections_share_the_cap(tmp_path: Path) -> None:
    async with opened(config(tmp_path, CAP_MB)) as plane, watched(plane) as seen:
        for number in range(20):
            await plane.create_collection(TENANT, f"c{number}", CollectionSpec(dimensions=WIDE, text=False))
            await fill(plane, f"c{number}", 300, WIDE)
        assert max(seen) <= CAP_MB * MIB
        assert sum(status.rows for status in plane.status().collections) == 20 * 300
        stored = vectors(BATCH, seed=0, dimensions=WIDE)
        for number in range(20):
            answer = await plane.search(TENANT, f"c{number}", SearchQuery(vector=stored[3], k=1))
            assert [hit.id for hit in answer.hits] == ["r3"]
        print(max(seen) / MIB, [(s.fresh, s.hot, s.loose, s.warm) for s in plane.status().collections])
    async with opened(config(tmp_path, CAP_MB)) as plane, watched(plane) as seen:
        await asyncio.sleep(0.2)
        assert max(seen) <= CAP_MB * MIB
        assert problems(plane) == []


async def test_a_small_collection_that_is_written_over_and_over_does_not_grow(tmp_path: Path) -> None:
    async with opened(config(tmp_path, CAP_MB)) as plane:
        await plane.create_collection(TENANT, "small", CollectionSpec(dimensions=WIDE, text=False))
        for turn in range(200):
            await plane.upsert(TENANT, "small", numbered(vectors(BATCH, seed=turn, dimensions=WIDE), 0))
        async with asyncio.timeout(10):
            while plane.status().collections[0].memory_bytes > 16 * MIB:
                await asyncio.sleep(0.05)
        assert plane.status().collections[0].rows == BATCH
        query = SearchQuery(vector=vectors(BATCH, seed=199, dimensions=WIDE)[7], k=1)
        assert [hit.id for hit in (await plane.search(TENANT, "small", query)).hits] == ["r7"]
        assert problems(plane) == []


async def test_a_smaller_cap_than_before_has_the_graph_shrunk(tmp_path: Path) -> None:
    count, query = 3000, vectors(BATCH, seed=0, dimensions=WIDE)[5]
    async with opened(config(tmp_path, 256)) as plane:
        await plane.create_collection(TENANT, "wide", CollectionSpec(dimensions=WIDE, text=False))
        await fill(plane, "wide", count, WIDE)
        for _ in range(30):
            await plane.search(TENANT, "wide", SearchQuery(vector=query, k=1))
        await plane.settle(TENANT, "wide")
        assert plane.status().collections[0].hot == count
    async with opened(config(tmp_path, CAP_MB)) as plane:
        plane.keeper.memory_bytes = 16 * MIB
        await plane.settle(TENANT, "wide")
        status = plane.status().collections[0]
        assert plane.keeper.used_bytes() <= 16 * MIB
        assert 0 < status.hot < count
        assert status.rows == count
        (hit,) = (await plane.search(TENANT, "wide", SearchQuery(vector=query, k=1))).hits
        assert (hit.id, hit.tier) == ("r5", "hot")
        assert problems(plane) == []

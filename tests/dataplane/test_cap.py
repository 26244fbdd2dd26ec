"""The memory cap is hard: with three times as much data as memory, what is counted never passes it, whatever goes on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from dataplane.rows import CollectionSpec, Row, SearchQuery
from dataplane.store import DataPlane, opened
from tests.dataplane.planes import config, vectors

MIB = 1 << 20
CAP_MB = 64
TENANT = "acme"
WIDE = 256
ROWS = 3 * CAP_MB * MIB // (4 * WIDE)


@contextlib.asynccontextmanager
async def watched(plane: DataPlane) -> AsyncIterator[list[int]]:
    """The memory in use, looked at again and again."""
    seen: list[int] = []

    async def look() -> None:
        while True:
            seen.append(plane.status().memory_bytes)
            await asyncio.sleep(0.002)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


async def fill(plane: DataPlane, name: str, stored: np.ndarray, start: int = 0) -> None:
    """Insert `stored` from row `start` on."""
    for at in range(0, len(stored), 128):
        await plane.upsert(
            TENANT,
            name,
            [Row(id=f"r{start + number}", vector=stored[number]) for number in range(at, min(at + 128, len(stored)))],
        )


async def test_the_cap_holds_while_three_times_as_much_is_loaded_searched_and_deleted(tmp_path: Path) -> None:
    stored = vectors(ROWS, dimensions=WIDE)
    async with opened(config(tmp_path, CAP_MB)) as plane, watched(plane) as seen:
        await plane.create_collection(TENANT, "wide", CollectionSpec(dimensions=WIDE, text=False))
        for start in range(0, ROWS, ROWS // 8):
            await fill(plane, "wide", stored[start : start + ROWS // 8], start)
            for query in stored[start : start + 5]:
                hits = (await plane.search(TENANT, "wide", SearchQuery(vector=query, k=1))).hits
                assert hits[0].score > 0.999
        await plane.delete(TENANT, "wide", [f"r{number}" for number in range(0, ROWS, 3)])
        await plane.settle(TENANT, "wide")
        print(max(seen)/MIB, plane.status())
        assert max(seen) <= CAP_MB * MIB
        assert plane.status().collections[0].hot > 0
        assert plane.status().collections[0].rows == ROWS - len(range(0, ROWS, 3))

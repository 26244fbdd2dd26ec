"""A process that holds a data plane, and nothing else that grows: `python -m benchmarks.soaking --dir D --rows N --seconds S`.

It fills a collection with N rows as fast as they are taken, and then keeps a mixed load going: inserts, replacements and
deletions that leave about N rows, rows that expire, and searches of every kind, as many at a time as there are lanes. Once a
second it prints a JSON line with what it has counted so far. Rows are made as they are needed, so that no corpus lies in
memory: a row is near one of many topics, and has a few words of a large vocabulary.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from dataplane.config import DataPlaneConfig
from dataplane.errors import DataPlaneError
from dataplane.filters import parse_filter
from dataplane.rows import CollectionSpec, Row, SearchQuery
from dataplane.store import DataPlane
from dataplane.tuning import tune_process

TENANT, NAME = "soak", "rows"
DIMENSIONS = 256
TOPICS = 2000
WORDS = 20_000
BATCH = 64
WRITERS, SEARCHERS = 2, 2
WRITES_S, SEARCHES_S = 4.0, 20.0  # of each lane
TTL_S = 20.0


class Maker:
    """Makes rows. Vectors are float32, shape [n, 256], of length 1."""

    def __init__(self, seed: int) -> None:
        self._topics = np.random.default_rng(0).standard_normal((TOPICS, DIMENSIONS), np.float32)
        self._random = np.random.default_rng(seed)

    def vectors(self, count: int) -> np.ndarray:
        """New ones."""
        noise = self._random.standard_normal((count, DIMENSIONS), np.float32)
        made = self._topics[self._random.integers(0, TOPICS, count)] + np.float32(0.8) * noise
        return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32)

    def text(self) -> str:
        """A few words."""
        ranks = np.minimum(self._random.zipf(1.3, 12), WORDS)
        return " ".join(f"word{rank}" for rank in ranks.tolist())

    def rows(self, numbers: list[int], ttl_s: float | None = None) -> list[Row]:
        """Rows with these numbers."""
        return [
            Row(id=f"r{number}", vector=vector, text=self.text(), attributes={"bucket": number % 20}, ttl_s=ttl_s)
            for number, vector in zip(numbers, self.vectors(len(numbers)), strict=True)
        ]


class Soak:
    """The load, and what it counts."""

    def __init__(self, plane: DataPlane, rows: int) -> None:
        self.plane = plane
        self.rows = rows
        self.maker = Maker(1)
        self.random = random.Random(2)
        self.next = rows
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    async def fill(self) -> None:
        """All rows."""
        for start in range(0, self.rows, BATCH):
            rows = self.maker.rows(list(range(start, min(start + BATCH, self.rows))))
            await self.plane.upsert(TENANT, NAME, rows, wait="visible")
            self.counts["inserted"] += len(rows)

    async def write(self) -> None:
        """One write of some kind."""
        kind = self.random.randrange(4)
        if kind == 0:
            numbers = list(range(self.next, self.next + BATCH))
            self.next += BATCH
            await self.plane.upsert(TENANT, NAME, self.maker.rows(numbers), wait="durable")
            self.counts["inserted"] += BATCH
        elif kind == 1:
            numbers = self.random.sample(range(self.next), BATCH)
            await self.plane.upsert(TENANT, NAME, self.maker.rows(numbers), wait="visible")
            self.counts["replaced"] += BATCH
        elif kind == 2:
            first = self.next - self.rows - BATCH * self.random.randrange(4)
            gone = [f"r{number}" for number in range(first, first + BATCH)]
            self.counts["deleted"] += await self.plane.delete(TENANT, NAME, gone)
        else:
            numbers = [-1 - self.random.randrange(10_000) for _ in range(BATCH // 4)]
            await self.plane.upsert(TENANT, NAME, self.maker.rows(numbers, TTL_S), wait="visible")
            self.counts["expiring"] += len(numbers)

    async def search(self) -> None:
        """One search of some kind."""
        vector = self.maker.vectors(1)[0]
        wanted = parse_filter({"type": "eq", "key": "bucket", "value": self.random.randrange(20)})
        query = self.random.choice(
            (
                SearchQuery(vector=vector),
                SearchQuery(vector=vector),
                SearchQuery(vector=vector, filter=wanted),
                SearchQuery(text=self.maker.text()),
                SearchQuery(vector=vector, text=self.maker.text()),
            )
        )
        result = await self.plane.search(TENANT, NAME, query)
        self.counts["searched"] += 1
        self.counts["incomplete"] += not result.complete

    async def lane(self, what: str, a_second: float) -> None:
        """One kind of call, at most so many a second."""
        while True:
            began = time.monotonic()
            try:
                await (self.write() if what == "write" else self.search())
            except DataPlaneError as error:
                self.errors[type(error).__name__] += 1
            await asyncio.sleep(max(0.0, 1 / a_second - (time.monotonic() - began)))

    async def tell(self, phase: list[str]) -> None:
        """Once a second."""
        while True:
            status = self.plane.status()
            self.say(phase[0], memory=status.memory_bytes, rows=sum(one.rows for one in status.collections))
            await asyncio.sleep(1)

    def say(self, phase: str, **more: Any) -> None:
        """A line for the parent."""
        print(json.dumps({"phase": phase, "counts": self.counts, "errors": self.errors, **more}), flush=True)


async def run(args: argparse.Namespace) -> None:
    """Fill, load, close."""
    before = psutil.Process().memory_info().rss
    config = DataPlaneConfig(path=str(args.dir), hot_layer_mem_mb=args.memory_mb, archive_every_s=None)
    plane = await DataPlane.open(config)
    await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=DIMENSIONS))
    soak, phase = Soak(plane, args.rows), ["filling"]
    soak.say("opened", rss_of_imports=before)
    telling = asyncio.create_task(soak.tell(phase))
    await soak.fill()
    phase[0] = "mixed"
    lanes = [asyncio.create_task(soak.lane("write", WRITES_S)) for _ in range(WRITERS)]
    lanes += [asyncio.create_task(soak.lane("search", SEARCHES_S)) for _ in range(SEARCHERS)]
    await asyncio.wait([telling, *lanes], timeout=args.seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in (telling, *lanes):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    status = plane.status()
    tiers = {name: sum(getattr(one, name) for one in status.collections) for name in ("fresh", "hot", "loose", "warm")}
    soak.say("closing", tiers=tiers, keeper=status.keeper.__class__.__name__, last_error=status.last_error)
    await plane.close()
    soak.say("closed")


def main() -> None:
    """Read the arguments and soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--memory-mb", type=int, required=True)
    tune_process()
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""How long it takes to have a cold shard of demoted vectors in the page cache.

A shard of 20,000 real rows (fewer only if `--rows` is), clustered in groups of 64. Before each measurement its pages are
dropped; the time runs until `prewarm` of all its groups has returned, having waited. Then the kernel is asked (mincore) what
of the file is resident: less than RESIDENT, and the prewarming was not what it said.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.bench import Bench
from benchmarks.corpus import DIMENSIONS
from benchmarks.disk import drop_pages, resident_share
from benchmarks.report import NotMeasured, percentile
from dataplane.warm.clusters import cluster
from dataplane.warm.shards import Shard, ShardEntry, ShardMeta, ShardRows, write_shard

ROWS = 20_000
GROUP = 64
TIMES = 100  # a round
RESIDENT = 0.9  # the texts at the ends of the groups are not asked for
KEYS = ("prewarm_p99_ms",)


def shard_in(folder: Path, bench: Bench) -> ShardEntry:
    """A shard of the first rows, written to `folder`."""
    count = min(ROWS, bench.corpus.rows)
    vectors = np.ascontiguousarray(bench.corpus.vectors[:count])
    rows = ShardRows(
        rownums=np.arange(count, dtype=np.uint64),
        vectors=vectors,
        ids=[str(at) for at in range(count)],
        texts=bench.corpus.texts[:count],
        attributes=[b'{"bucket":%d}' % bucket for bucket in bench.corpus.buckets[:count]],
        expires_at=np.zeros(count, np.int64),
    )
    meta = ShardMeta(collection="bench", seq=count, dimensions=DIMENSIONS, metric="cosine")
    return write_shard(folder, "bench.parquet", rows, cluster(vectors, GROUP).groups, meta)


def measure(bench: Bench) -> None:
    """Rounds of prewarming one shard."""
    with bench.scratch("prewarm") as folder:
        entry = shard_in(folder, bench)
        path = folder / entry.name
        with Shard.open(path, entry) as shard:
            for number in range(bench.rounds):
                took = []
                fetched = 0
                for _ in range(TIMES):
                    drop_pages([path])
                    if (left := resident_share(path)) > 1 - RESIDENT:
                        raise NotMeasured(f"{left:.0%} of a shard stays in memory, though its pages were dropped")
                    began = time.perf_counter()
                    fetched = shard.prewarm(range(len(entry.groups)), wait=True)
                    took.append(time.perf_counter() - began)
                    if (share := resident_share(path)) < RESIDENT:
                        raise NotMeasured(f"only {share:.0%} of a shard is in memory after it was prewarmed")
                bench.add(prewarm_p50_ms=percentile(took, 0.5) * 1000, prewarm_p99_ms=percentile(took, 0.99) * 1000)
                bench.add(prewarm_mb=fetched / 2**20)
                bench.say(f"prewarmed {TIMES} times, round {number + 1}")
    bench.notes["rows of the prewarmed shard"] = str(entry.rows)

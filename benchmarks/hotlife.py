"""A round of everything that is hot: fill, search, stand beside the peers, and carry a mixed load.

Each round has a data plane and a raw graph of its own, built one after the other; which comes first turns every round.
A ratio is ours over theirs of the same round, in rows or searches a second.

- Ingest: every upsert (64 rows, 8 at once) is acknowledged durable, and the time ends when all is merged into the graph
  and in a snapshot. The raw graph gets the same rows in the same batches on one thread. `ingest_cpu_ratio` is of CPU time.
- Search: one query at a time on each side, in alternating blocks, the raw graph at the smallest ef that reaches our
  recall. `search_c2_ratio` is the same with two at a time: two callers of ours, two threads on the raw graph.
- Peers: the same queries and then the same inserts, one at a time. An insert is visible at the start of the first search
  that finds it. `vs_*` is how many times faster ours is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from benchmarks.bench import Bench, K
from benchmarks.mixedload import carry_load
from benchmarks.nearest import nearest, recall
from benchmarks.plane import BATCH, Plane
from benchmarks.report import NotMeasured, percentile
from benchmarks.vectorpeers import FILL_TIMEOUT_S, Peer

QUERIES = 1000
BLOCK = 100  # queries on one side before it is the other's turn
EFS = (16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 512)  # of the raw graph, to choose from
FILTERED = 200
BUCKET = 7  # the attribute's value that filtered searches ask for
PEER_QUERIES = 100
PEER_INSERTS = 100
VISIBLE_WITHIN_S = 10.0
INGEST = ("ingest_ratio", "bytes_per_vector")
SEARCH = ("search_ratio", "search_full_ratio", "recall_hot")
LOAD = ("visible_p50_ms", "visible_p99_ms", "durable_p99_ratio", "loop_lag_p99_ms")
KEYS = (*INGEST, *SEARCH, *LOAD, "recall_filtered")


async def play_round(bench: Bench, number: int, raw: Peer, stores: list[Peer]) -> None:
    """One round."""
    with bench.scratch("hot") as folder:
        plane = await Plane.open(folder, bench.corpus)
        try:
            await fill(bench, plane, raw, number)
            if bench.wants(*SEARCH):
                await compare_searches(bench, plane, raw)
                bench.say(f"round {number + 1}: searched")
            if bench.wants("recall_filtered"):
                await filtered(bench, plane, "recall_filtered")
            if stores:
                await beside_stores(bench, plane, stores, number)
                bench.say(f"round {number + 1}: stood beside the peers")
            if bench.wants(*LOAD):
                await carry_load(bench, plane, folder)
                bench.say(f"round {number + 1}: carried the load")
        finally:
            await plane.close()


async def fill(bench: Bench, plane: Plane, raw: Peer, number: int) -> None:
    """Both sides get all rows; the raw graph only if something of it is wanted."""
    rows = bench.corpus.rows

    async def fill_raw() -> dict[str, Any]:
        seen = await asyncio.to_thread(raw.ask, FILL_TIMEOUT_S, do="build", rows=rows, batch=BATCH)
        bench.say(f"round {number + 1}: hnswlib filled, {rows / seen['wall_s']:.0f} rows/s")
        return seen

    async def fill_ours() -> None:
        await plane.fill(0, rows)
        await plane.settle()

    wanted = bench.wants(*INGEST, *SEARCH)
    theirs = await fill_raw() if wanted and number % 2 else None
    ours = await timed(fill_ours)
    bench.say(f"round {number + 1}: filled, {rows / ours['wall_s']:.0f} rows/s")
    bench.add(
        ingest_us=ours["wall_s"] / rows * 1e6,
        ingest_cpu_us=ours["cpu_s"] / rows * 1e6,
        bytes_per_vector=plane.memory_bytes() / rows,
    )
    if wanted and theirs is None:
        theirs = await fill_raw()
    if theirs is not None:
        bench.add(
            ingest_ratio=theirs["wall_s"] / ours["wall_s"],
            ingest_cpu_ratio=theirs["cpu_s"] / ours["cpu_s"],
            raw_ingest_us=theirs["wall_s"] / rows * 1e6,
        )


async def timed(work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """Seconds of wall time, and of this process's CPU in all its threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


async def compare_searches(bench: Bench, plane: Plane, raw: Peer) -> None:
    """Recall, and both sides' time at the same recall."""
    queries = bench.corpus.queries(QUERIES)
    first = len(bench.corpus.texts) - QUERIES
    truth = nearest(bench.corpus.row_vectors, queries, K)
    ours = recall([answer.rows for answer in await plane.search_all(queries)], truth)

    async def ask_raw(start: int, stop: int, ef: int, threads: int = 1) -> dict[str, Any]:
        return await asyncio.to_thread(
            raw.ask, do="search", start=first + start, stop=first + stop, ef=ef, threads=threads
        )

    ef, reached = EFS[0], 0.0
    for ef in EFS:
        reached = recall((await ask_raw(0, QUERIES, ef))["found"], truth)
        if reached >= ours:
            break
    bench.add(recall_hot=ours, raw_recall=reached, raw_ef=ef)

    async def pair(start: int, stop: int) -> None:
        await asyncio.gather(*(plane.search_all(half) for half in np.array_split(queries[start:stop], 2)))

    seen = await alternate(
        {
            "ours": lambda start, stop: timed(lambda: plane.search_all(queries[start:stop])),
            "raw": lambda start, stop: ask_raw(start, stop, ef),
            "full": lambda start, stop: timed(lambda: plane.search_all(queries[start:stop], fetch=True)),
            "ours_c2": lambda start, stop: timed(lambda: pair(start, stop)),
            "raw_c2": lambda start, stop: ask_raw(start, stop, ef, threads=2),
        }
    )
    wall, cpu = ({side: found[what] for side, found in seen.items()} for what in ("wall_s", "cpu_s"))
    bench.add(
        search_ratio=wall["raw"] / wall["ours"],
        search_full_ratio=wall["raw"] / wall["full"],
        search_cpu_ratio=cpu["raw"] / cpu["ours"],
        search_full_cpu_ratio=cpu["raw"] / cpu["full"],
        search_c2_ratio=wall["raw_c2"] / wall["ours_c2"],
        search_us=wall["ours"] / QUERIES * 1e6,
        raw_search_us=wall["raw"] / QUERIES * 1e6,
    )


Side = Callable[[int, int], Awaitable[dict[str, Any]]]  # searches queries from, and up to; {"wall_s", "cpu_s"}


async def alternate(sides: dict[str, Side]) -> dict[str, dict[str, float]]:
    """All queries on each side, in blocks that take turns: the sums by side."""
    sums = {name: {"wall_s": 0.0, "cpu_s": 0.0} for name in sides}
    names = list(sides)
    for turn, start in enumerate(range(0, QUERIES, BLOCK)):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            seen = await sides[name](start, start + BLOCK)
            for what in sums[name]:
                sums[name][what] += seen[what]
    return sums


async def filtered(bench: Bench, plane: Plane, key: str) -> None:
    """Recall of searches whose filter lets one bucket of rows through."""
    corpus = bench.corpus
    queries = corpus.queries(FILTERED)
    truth = nearest(corpus.row_vectors, queries, K, corpus.buckets[: corpus.rows] == BUCKET)
    answers = []
    took = []
    for query in queries:
        began = time.perf_counter()
        answers.append((await plane.search(query, bucket=BUCKET)).rows)
        took.append(time.perf_counter() - began)
    bench.add(**{key: recall(answers, truth), f"{key}_p50_ms": percentile(took, 0.5) * 1000})


async def beside_stores(bench: Bench, plane: Plane, stores: list[Peer], number: int) -> None:
    """The same queries, and then the same inserts, on each store; the order turns every round."""
    total = len(bench.corpus.texts)
    queries = range(total - PEER_QUERIES, total)
    first = bench.corpus.rows + number * PEER_INSERTS
    inserts = range(first, first + PEER_INSERTS)
    seen: dict[str, dict[str, Any]] = {}
    turns: list[Peer | None] = [None, *stores]
    shift = number % len(turns)
    for store in turns[shift:] + turns[:shift]:
        if store is None:
            seen["ours"] = await ours_in_turn(plane, queries, inserts)
        else:
            searched = await asyncio.to_thread(store.ask, do="search", start=queries.start, stop=queries.stop)
            inserted = await asyncio.to_thread(store.ask, do="insert", start=inserts.start, stop=inserts.stop)
            seen[store.name] = searched | inserted
    truth = nearest(bench.corpus.row_vectors, bench.corpus.vectors[queries.start :], K)
    for name, found in seen.items():
        for what in ("search", "visible"):
            mine, theirs = (percentile(seen[side][f"{what}_s"], 0.5) for side in ("ours", name))
            bench.add(**{f"{name}_{what}_p50_ms": theirs * 1000})
            if name != "ours":
                bench.add(**{f"vs_{name}_{what}": theirs / mine})
        bench.add(**{f"{name}_visible_p99_ms": percentile(found["visible_s"], 0.99) * 1000})
        if number == 0:  # later the others hold rows that the truth knows nothing of
            bench.add(**{f"{name}_recall": recall(found["found"], truth)})


async def ours_in_turn(plane: Plane, queries: range, inserts: range) -> dict[str, Any]:
    """What peerstore's Session does, on ours."""
    vectors = plane.corpus.vectors
    searched: list[float] = []
    found: list[list[int]] = []
    for row in queries:
        began = time.perf_counter()
        found.append((await plane.search(vectors[row])).rows)
        searched.append(time.perf_counter() - began)
    visible: list[float] = []
    for row in inserts:
        began = time.perf_counter()
        await plane.insert([row], "visible")
        while True:
            asked = time.perf_counter() - began
            if row in (await plane.search(vectors[row])).rows:
                break
            if asked > VISIBLE_WITHIN_S:
                raise NotMeasured(f"row {row} is not found {asked:.0f} s after its insert")
        visible.append(asked)
    return {"search_s": searched, "found": found, "visible_s": visible}

"""The data plane with memory for 60 % of its vectors: recall, what is read for it, and how well it chooses what is hot.

The rows are first stored with memory for all, and opened again, which tells what they take with nothing to spare. A second
data plane gets that much less 40 % of the rows' nodes in the graph (vector, links, row number), and the same rows from
empty, so that it demotes while it grows; tables and sketches of all rows are in memory on either side. How many rows it keeps
hot in the end is `hot_rows_share`. Queries are uniform and never the same twice, since an answer makes its rows hotter.

- `warm_read_share`: demoted rows whose vectors were read, over all demoted rows, the mean of the queries.
- `search_60_*`: the page cache of the whole folder is dropped before every single query. Beside it the same with nothing
  dropped (`cached`), and `exact: true`, which reads every demoted row (`scan`), dropped before each too.
- `hot_share_vs_oracle`: callers ask with texts that are not rows, Zipf(1.0) over all of these. First comes a history of
  0.4 queries a row, from which the data plane learns, and time until it moves nothing any more (the history takes a minute
  here, and hours elsewhere; what may be promoted in a minute is bounded). Then 0.1 queries a row are measured: the share of
  results that came from hot, over the share that the best fixed set of as many rows would have served, chosen by somebody
  who knows all results of the measured queries (oracle.py). `lfu_share` is what plain counting would have served.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.bench import Bench, K
from benchmarks.corpus import DIMENSIONS
from benchmarks.disk import PageCache
from benchmarks.hotlife import filtered
from benchmarks.nearest import nearest, recall
from benchmarks.oracle import best_fixed_share, lfu_share, zipf_draws
from benchmarks.plane import Answer, Plane
from benchmarks.report import NotMeasured, percentile
from dataplane.hot.graph import node_bytes

SHARE = 0.6  # of the vectors that memory holds
DROPPED = 100  # queries a round, the page cache dropped before each
SCANS = 10  # a round
CACHED = 400  # queries a round, nothing dropped
ASKING = 2  # callers at once while the choice is measured
QUIET_S = 100.0  # after the history: between two exchanges of hot and warm rows there is a pause of about that
REBALANCE = 500  # queries after which plain counting chooses anew
KEYS = ("recall_60", "warm_read_share", "search_60_p50_ms", "search_60_p99_ms", "hot_share_vs_oracle")


async def measure(bench: Bench) -> None:
    """All of it, on one data plane."""
    with bench.scratch("demoted") as folder:
        plane = await demoted_plane(bench, folder)
        try:
            rows = plane.rows()
            if not rows["demoted"]:
                raise NotMeasured("nothing was demoted, though memory holds 60 % of the vectors")
            bench.add(hot_rows_share=rows["hot"] / bench.corpus.rows)
            bench.say(f"60 %: {rows['hot']} rows are hot and {rows['demoted']} demoted")
            await uniform_rounds(bench, plane, PageCache(folder))
            if bench.wants("recall_filtered"):
                await filtered(bench, plane, "recall_filtered_60")
            if bench.wants("hot_share_vs_oracle"):
                await choice(bench, plane)
        finally:
            await plane.close()


async def demoted_plane(bench: Bench, folder: Path) -> Plane:
    """Filled with too little memory, and settled."""
    rows = bench.corpus.rows
    with bench.scratch("sized") as other:
        await (await filled(bench, other, None)).close()
        plane = await Plane.open(
            other, bench.corpus
        )  # arrays that grew have room to spare, those that were loaded do not
        try:
            await plane.settle()
            needed = plane.memory_bytes() - round((1 - SHARE) * rows) * node_bytes(DIMENSIONS)
        finally:
            await plane.close()
    bench.add(memory_60_mb=needed / 2**20)
    bench.say(f"60 %: {rows} rows have {needed / 2**20:.0f} MiB")
    return await filled(bench, folder, needed)


async def filled(bench: Bench, folder: Path, memory_bytes: int | None) -> Plane:
    """A data plane with all rows, that moves nothing any more."""
    plane = await Plane.open(folder, bench.corpus, memory_bytes)
    try:
        await plane.fill(0, bench.corpus.rows)
        await plane.rest()
    except BaseException:
        await plane.close()
        raise
    return plane


async def uniform_rounds(bench: Bench, plane: Plane, cache: PageCache) -> None:
    """Rounds of queries that come once each."""
    each = DROPPED + CACHED + SCANS
    queries = bench.corpus.queries(each * bench.rounds)
    truth = nearest(bench.corpus.row_vectors, queries, K)
    cache.drop_everything()
    bench.notes["page cache dropped by"] = cache.how
    bench.notes["in memory after that"] = f"{cache.resident_share():.1%} of the bytes"
    for number in range(bench.rounds):
        ours = slice(number * each, (number + 1) * each)
        dropped, cached, scanned = np.split(queries[ours], [DROPPED, DROPPED + CACHED])
        demoted = plane.rows()["demoted"]
        cold, cold_s = await timed(plane, dropped, cache)
        warm, warm_s = await timed(plane, cached, None)
        scans, scan_s = await timed(plane, scanned, cache, exact=True)
        answers = cold + warm
        bench.add(
            recall_60=recall([answer.rows for answer in answers], truth[ours][: len(answers)]),
            recall_60_scan=recall([answer.rows for answer in scans], truth[ours][len(answers) :]),
            warm_read_share=statistics.mean(answer.read for answer in answers) / demoted,
            search_60_p50_ms=percentile(cold_s, 0.5) * 1000,
            search_60_p99_ms=percentile(cold_s, 0.99) * 1000,
            search_60_cached_p50_ms=percentile(warm_s, 0.5) * 1000,
            search_60_cached_p99_ms=percentile(warm_s, 0.99) * 1000,
            scan_60_p50_ms=percentile(scan_s, 0.5) * 1000,
        )
        bench.say(f"60 %: round {number + 1} done")


async def timed(
    plane: Plane, queries: np.ndarray, cache: PageCache | None, *, exact: bool = False
) -> tuple[list[Answer], list[float]]:
    """The answers and the seconds each took; with `cache`, that is dropped before each."""
    answers, took = [], []
    for query in queries:
        if cache is not None:
            await asyncio.to_thread(cache.drop)
        began = time.perf_counter()
        answers.append(await plane.search(query, exact=exact))
        took.append(time.perf_counter() - began)
    return answers, took


async def choice(bench: Bench, plane: Plane) -> None:
    """How well what is hot was chosen."""
    corpus = bench.corpus
    rng = np.random.default_rng(5)
    asked = corpus.vectors[corpus.rows :][: max(1000, corpus.rows // 6)]
    draws = zipf_draws(len(asked), corpus.rows // 2, 1.0, rng)
    history, measured = np.split(draws, [corpus.rows * 4 // 10])
    learnt, _ = await ask_all(plane, asked, history)
    await plane.rest(QUIET_S)
    bench.say("60 %: the history of Zipf(1.0) has been asked")
    hot_rows = plane.rows()["hot"]
    results, served = await ask_all(plane, asked, measured)
    share = served / results.size
    oracle = best_fixed_share(results, corpus.rows, hot_rows)
    start = np.zeros(corpus.rows, bool)
    start[rng.permutation(corpus.rows)[:hot_rows]] = True
    counted = lfu_share(learnt, results, start, REBALANCE)
    bench.add(hot_share_vs_oracle=share / oracle, hot_share=share, oracle_share=oracle, lfu_share=counted)


async def ask_all(plane: Plane, queries: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, int]:
    """The rows that were found, (draws, K), and how many of them hot served. Raises NotMeasured for an answer too short."""
    found = np.empty((len(draws), K), np.int64)
    served = 0
    turns = iter(range(len(draws)))

    async def ask() -> None:
        nonlocal served
        for turn in turns:
            answer = await plane.search(queries[draws[turn]])
            if len(answer.rows) != K:
                raise NotMeasured(f"a search found {len(answer.rows)} rows of {K}")
            found[turn] = answer.rows
            served += answer.hot

    async with asyncio.TaskGroup() as group:
        for _ in range(ASKING):
            group.create_task(ask())
    return found, served

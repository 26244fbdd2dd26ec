"""A mixed load on the data plane: 1,000 single inserts a second, and 200 searches a second, with the loop's lag watched.

Calls begin at their due time whether those before have ended or not. Inserts wait for `visible` and for `durable` in turn;
their time runs from the call. Every second search looks for the row that was last acknowledged as visible, which must be
among the answers. Before and after, the same disk's fdatasync is measured with nothing else going on: one append of a
row's size every millisecond; and so is the control (control.py).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.control import control_s
from benchmarks.disk import fdatasync_s
from benchmarks.lateness import paced, watched_loop
from benchmarks.plane import Plane
from benchmarks.report import percentile
from dataplane.truth.writer import Wait

INSERTS_S = 1000
SEARCHES_S = 200
SYNCS = 1000  # before, and again after
CONTROL_S = 4.0  # the same


class Load:
    """One round's load, and what it saw; times in seconds."""

    def __init__(self, plane: Plane, first: int, spare: int) -> None:
        self.plane = plane
        self.first = first  # the first row to insert
        self.spare = spare  # so many rows can be inserted before the first is inserted again
        self.queries = plane.corpus.queries(1000)
        self.took: dict[Wait, list[float]] = {"visible": [], "durable": []}
        self.searched: list[float] = []
        self.own = 0  # searches for what had been acknowledged
        self.missed = 0  # of these, how many did not find it
        self._newest: int | None = None

    async def insert(self, number: int) -> None:
        """The `number`th insert."""
        wait: Wait = "durable" if number % 2 else "visible"
        row = self.first + number % self.spare
        began = time.perf_counter()
        await self.plane.insert([row], wait)
        self.took[wait].append(time.perf_counter() - began)
        self._newest = row

    async def search(self, number: int) -> None:
        """The `number`th search: for the newest row, or with a text that is no row."""
        wanted = self._newest if number % 2 else None
        query = self.queries[number % len(self.queries)] if wanted is None else self.plane.corpus.vectors[wanted]
        began = time.perf_counter()
        answer = await self.plane.search(query)
        self.searched.append(time.perf_counter() - began)
        if wanted is not None:
            self.own += 1
            self.missed += wanted not in answer.rows


async def carry_load(bench: Bench, plane: Plane, folder: Path) -> None:
    """One round. Figures in milliseconds."""
    first = bench.corpus.rows + 1000  # what stands before was inserted beside the peers
    load = Load(plane, first, len(bench.corpus.texts) - 1000 - first)
    syncs = await asyncio.to_thread(fdatasync_s, folder, SYNCS, every_s=0.001)
    control = await control_s(INSERTS_S, CONTROL_S)
    lags: list[float] = []
    began, spent = time.perf_counter(), time.process_time()
    async with watched_loop(lags), asyncio.TaskGroup() as group:
        inserts = group.create_task(paced(INSERTS_S, int(INSERTS_S * bench.seconds), load.insert))
        group.create_task(paced(SEARCHES_S, int(SEARCHES_S * bench.seconds), load.search))
    wall, cpu = time.perf_counter() - began, time.process_time() - spent
    control += await control_s(INSERTS_S, CONTROL_S)
    syncs += await asyncio.to_thread(fdatasync_s, folder, SYNCS, every_s=0.001)
    raw_p99 = percentile(syncs, 0.99)
    bench.add(
        visible_p50_ms=percentile(load.took["visible"], 0.5) * 1000,
        visible_p99_ms=percentile(load.took["visible"], 0.99) * 1000,
        durable_p99_ratio=percentile(load.took["durable"], 0.99) / raw_p99,
        loop_lag_p99_ms=percentile(lags, 0.99) * 1000,
        visible_p90_ms=percentile(load.took["visible"], 0.9) * 1000,
        control_p50_ms=percentile(control, 0.5) * 1000,
        control_p90_ms=percentile(control, 0.9) * 1000,
        control_p99_ms=percentile(control, 0.99) * 1000,
        durable_p50_ms=percentile(load.took["durable"], 0.5) * 1000,
        durable_p99_ms=percentile(load.took["durable"], 0.99) * 1000,
        fdatasync_p50_ms=percentile(syncs, 0.5) * 1000,
        fdatasync_p99_ms=raw_p99 * 1000,
        load_inserts_s=INSERTS_S * bench.seconds / wall,
        load_searches_s=len(load.searched) / wall,
        load_search_p50_ms=percentile(load.searched, 0.5) * 1000,
        load_search_p99_ms=percentile(load.searched, 0.99) * 1000,
        load_late_p99_ms=percentile(inserts.result(), 0.99) * 1000,
        load_cores=cpu / wall,
        own_writes_missed=load.missed / max(1, load.own),
    )

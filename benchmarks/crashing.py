"""A process with a data plane under mixed load, which says what it does and is killed: `python -m benchmarks.crashing ...`.

Each line of its output is a JSON list: ["opening"], ["ready"]; ["begin", lane, call, changes] before a call, and
["done", lane, call] after it was acknowledged (crashmodel.py has what a lane, a cell and a change are). A lane says the one
before it goes on. SIGTERM has it close in order, in which it may be killed as well; then it says ["closed"].

Lanes insert, replace and delete rows (some expire), make, fill and drop a second collection, put and swap records, append to
logs and trim them. Beside them others search, take memory away so that rows are demoted and give it back, have snapshots
written, and archive into a folder. What a search gives back is checked on the spot for what is wrong at any time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import crashrows
from benchmarks.crashrows import DRAFTS, NOTES, ROWS, SPECS, TENANT
from dataplane.cold.archive import Archiver
from dataplane.cold.bucket import Bucket
from dataplane.cold_config import ColdConfig
from dataplane.config import DataPlaneConfig
from dataplane.errors import VersionConflict
from dataplane.filters import parse_filter
from dataplane.rows import SearchQuery
from dataplane.store import DataPlane
from dataplane.truth.records import EventRecord
from dataplane.truth.writer import Wait

LANES = 4  # over the rows of the first collection
MEMORY_MB = 64
VERSIONS = 1_000_000  # of one life
LONG_TTL_S = 3600.0


def say(*line: Any) -> None:
    """A line for the parent. It is in the pipe when this returns, whatever happens to this process."""
    left = (json.dumps(line) + "\n").encode()
    while left:
        left = left[os.write(1, left) :]


class Life:
    """One process's life. `life` numbers it: versions rise over all of them."""

    def __init__(self, plane: DataPlane, seed: int, life: int, cold: Path) -> None:
        self.plane = plane
        self.random = random.Random(seed)
        self.calls = self.version = life * VERSIONS
        self.archiver = Archiver(plane.rocks, Bucket(ColdConfig(folder=str(cold)), cold))
        self.ample = plane.keeper.memory_bytes

    async def call(self, lane: str, changes: dict[str, Any], doing: Awaitable[Any], *, sure: bool = True) -> None:
        """Say it, do it, say that it is done. `sure` false: nobody waits until it is visible."""
        self.calls += 1
        number = self.calls
        say("begin", lane, number, changes)
        await doing
        if sure:
            say("done", lane, number)

    def wait(self) -> Wait:
        """How long to wait for a write."""
        return self.random.choice(("visible", "visible", "durable", "nothing"))

    # Rows

    async def write_rows(self, lane: str, collection: str, rows: list[int], wait: Wait) -> None:
        """Insert or replace some rows, in one call."""
        self.version += 1
        version, now_ms = self.version, int(time.time() * 1000)
        ttls = {row: self.random.choice((None, None, None, LONG_TTL_S, 1.0)) for row in rows}
        changes = {
            f"{collection}/{row}": [version, None if ttl is None else now_ms + int(ttl * 1000)]
            for row, ttl in ttls.items()
        }
        made = [crashrows.made(collection, row, version, ttl) for row, ttl in ttls.items()]
        await self.call(lane, changes, self.plane.upsert(TENANT, collection, made, wait), sure=wait != "nothing")
        if wait != "nothing" and self.random.random() < 0.2 and ttls[rows[0]] != 1.0:
            await self.find(collection, rows[0], version)

    async def find(self, collection: str, row: int, version: int) -> None:
        """What was acknowledged is the answer to its own vector."""
        query = SearchQuery(vector=crashrows.vector(collection, row, version), k=3)
        hits = (await self.plane.search(TENANT, collection, query)).hits
        if not hits or hits[0].id != f"r{row}" or hits[0].attributes["version"] != version:
            raise AssertionError(f"row {row} version {version} was acknowledged, and its vector finds {hits}")

    async def change_rows(self, number: int) -> None:
        """A lane over a share of the rows."""
        lane = f"rows{number}"
        mine = list(range(number, ROWS[NOTES], LANES))
        while True:
            rows = self.random.sample(mine, self.random.choice((1, 1, 5, 40, 100)))
            if self.random.random() < 0.75:
                await self.write_rows(lane, NOTES, rows, self.wait())
            else:
                rows, wait = rows[:20], self.wait()
                gone = self.plane.delete(TENANT, NOTES, [f"r{row}" for row in rows], wait)
                await self.call(lane, dict.fromkeys(f"{NOTES}/{row}" for row in rows), gone, sure=wait != "nothing")
            await asyncio.sleep(self.random.random() * 0.02)

    async def make_and_drop(self) -> None:
        """The second collection comes and goes."""
        lane, rows = "drafts", list(range(ROWS[DRAFTS]))
        while True:
            if DRAFTS not in self.plane.collections(TENANT):
                making = self.plane.create_collection(TENANT, DRAFTS, SPECS[DRAFTS])
                await self.call(lane, {DRAFTS: "there"}, making)
            for _ in range(self.random.randrange(12)):
                await self.write_rows(lane, DRAFTS, self.random.sample(rows, 40), self.wait())
                await asyncio.sleep(self.random.random() * 0.05)
            gone = dict.fromkeys([DRAFTS, *(f"{DRAFTS}/{row}" for row in rows)])
            await self.call(lane, gone, self.plane.drop_collection(TENANT, DRAFTS))
            await asyncio.sleep(self.random.random() * 0.1)

    # State

    async def change_state(self) -> None:
        """Records are put, swapped and deleted, logs grow and are trimmed."""
        lane, state = "state", self.plane.state
        while True:
            name, kind = f"n{self.random.randrange(20)}", self.random.randrange(5)
            if kind == 0:
                await self.call(lane, {f"record/{name}": None}, state.delete(TENANT, "run", name))
            elif kind == 1:
                stream = f"log{self.random.randrange(3)}"
                last = await state.last_seq(TENANT, stream)
                count = self.random.choice((1, 3, 50))
                events = [EventRecord("token", 1, f"{stream} {last + at}".encode()) for at in range(1, count + 1)]
                appending = state.append(TENANT, stream, events, expected_last=last)
                await self.call(lane, {f"log/{stream}": last + count}, appending)
                if last > 500:
                    await state.trim(TENANT, stream, last - 400)
            else:
                self.version += 1
                version, value = self.version, crashrows.payload(name, self.version)
                stored = await state.get(TENANT, "run", name)
                doing: Awaitable[int] = state.put(TENANT, "run", name, value, wait="visible")
                if kind == 2:
                    doing = self.swap(name, stored.version if stored else 0, value)
                await self.call(lane, {f"record/{name}": version}, doing)
            await asyncio.sleep(self.random.random() * 0.01)

    async def swap(self, name: str, expected: int, value: bytes) -> int:
        """Compare and swap, after one that must fail."""
        with contextlib.suppress(VersionConflict):
            await self.plane.state.compare_and_swap(TENANT, "run", name, expected + 7, b"never")
            raise AssertionError("a swap with the wrong version succeeded")
        return await self.plane.state.compare_and_swap(TENANT, "run", name, expected, value)

    # Beside the lanes

    async def search(self) -> None:
        """All kinds of searches; an answer has no row twice, is in order, and its filter holds."""
        while True:
            row = self.random.randrange(ROWS[NOTES])
            group = self.random.randrange(crashrows.GROUPS)
            wanted = parse_filter({"type": "eq", "key": "group", "value": group})
            vector, text = crashrows.vector(NOTES, row, 0), f"group{group}"
            query = self.random.choice(
                (
                    SearchQuery(vector=vector),
                    SearchQuery(vector=vector, k=100, exact=True),
                    SearchQuery(vector=vector, filter=wanted),
                    SearchQuery(text=text),
                    SearchQuery(vector=vector, text=text, filter=wanted),
                )
            )
            hits = (await self.plane.search(TENANT, NOTES, query)).hits
            ids, scores = [hit.id for hit in hits], [hit.score for hit in hits]
            if len(set(ids)) < len(ids) or scores != sorted(scores, reverse=True):
                raise AssertionError(f"an answer that cannot be: {hits}")
            if query.filter and any(hit.attributes["group"] != group for hit in hits):
                raise AssertionError(f"not all are of group {group}: {hits}")
            await asyncio.sleep(self.random.random() * 0.01)

    async def stir(self) -> None:
        """Take memory away and give it back; have everything done at once that would wait, snapshots above all."""
        while True:
            used = self.plane.keeper.used_bytes()
            self.plane.keeper.memory_bytes = int(used * self.random.uniform(0.6, 1.0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.random.random()):
                    await self.plane.settle(TENANT, NOTES)
            self.plane.keeper.memory_bytes = self.ample
            await asyncio.sleep(self.random.random() * 0.3)

    async def archive(self) -> None:
        """Into a folder, again and again."""
        while True:
            await self.archiver.archive()
            await asyncio.sleep(self.random.random() * 0.3)

    async def fill(self) -> None:
        """The first life: every row."""
        await self.call("notes", {NOTES: "there"}, self.plane.create_collection(TENANT, NOTES, SPECS[NOTES]))
        for number in range(LANES):
            mine = list(range(number, ROWS[NOTES], LANES))
            for start in range(0, len(mine), 100):
                await self.write_rows(f"rows{number}", NOTES, mine[start : start + 100], "visible")
        await self.plane.settle(TENANT, NOTES)


async def live(args: argparse.Namespace) -> None:
    """Until it is killed, or told to close."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    say("opening")
    plane = await DataPlane.open(DataPlaneConfig(path=str(args.dir), hot_layer_mem_mb=MEMORY_MB, archive_every_s=None))
    life = Life(plane, args.seed, args.life, args.cold)
    if args.fill:
        await life.fill()
    say("ready")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(life.change_rows(number)) for number in range(LANES)]
        tasks += [group.create_task(life.make_and_drop()), group.create_task(life.change_state())]
        tasks += [group.create_task(life.search()), group.create_task(life.stir()), group.create_task(life.archive())]
        await told.wait()
        for task in tasks:
            task.cancel()
    say("closing")
    await plane.close()
    say("closed")


def main() -> None:
    """Read the arguments and live."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--cold", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--life", type=int, required=True)
    parser.add_argument("--fill", action="store_true")
    uvloop.run(live(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Finds: many searches share a command, nobody waits for room, and what waits is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from dataplane.collections.finds import MOST_ROWS, PER_COMMAND, Finds
from dataplane.truth.writer import Writer
from tests.dataplane.planes import vectors
from tests.dataplane.stilled import Stilled, stilled
from tests.dataplane.truth.orders import Put


class Searched:
    """A collection of two rows, a writer that has not started, and what searches find."""

    def __init__(self, still: Stilled, writer: Writer) -> None:
        self.collection = still.collection
        self.writer = writer
        self.finds = Finds(writer)
        self._still = still

    def find(self, *ids: str, times: int = 1) -> None:
        rows = np.array([self._still.row(id_) for id_ in ids], np.uint64)
        for _ in range(times):
            self.finds.add(self.collection, rows)

    def times(self) -> list[float]:
        """How often a and b were found, as the table has it."""
        accesses, _ = self.collection.table.accessed()
        times: list[float] = (accesses[self._still.slots(["a", "b"])] - 1).tolist()
        return times

    @property
    def waiting(self) -> int:
        return sum(map(len, self.collection.touched))


@pytest.fixture
async def searched(tmp_path: Path) -> AsyncIterator[Searched]:
    with stilled(tmp_path, 4) as still:
        still.upsert(vectors(2, dimensions=4), ids=["a", "b"])
        writer = Writer(still.rocks, 1)
        yield Searched(still, writer)
        await writer.close()


async def test_the_finds_of_many_searches_are_taken_up_together(searched: Searched) -> None:
    searched.writer.start()
    searched.find("a", times=PER_COMMAND - 1)
    await searched.writer.barrier()
    assert (searched.times(), searched.waiting, searched.writer.written) == ([0, 0], PER_COMMAND - 1, 0)
    searched.find("a", "b")
    await searched.writer.barrier()
    assert (searched.times(), searched.waiting) == ([PER_COMMAND, 1], 0)


async def test_what_waits_is_taken_up_at_once_for_who_settles(searched: Searched) -> None:
    searched.writer.start()
    await searched.finds.settle(searched.collection)
    assert searched.writer.written == 0
    searched.find("b", times=3)
    await searched.finds.settle(searched.collection)
    assert (searched.times(), searched.waiting) == ([0, 3], 0)


async def test_without_room_the_latest_wait_for_it_and_no_search_does(searched: Searched) -> None:
    assert searched.writer.submit_now(Put(b"full"))
    other = asyncio.create_task(searched.writer.submit(Put(b"waits for room")))
    await asyncio.sleep(0)
    searched.find(*["a"] * MOST_ROWS, times=PER_COMMAND - 1)
    searched.find("b")
    assert searched.waiting == MOST_ROWS
    searched.writer.start()
    await other
    await searched.finds.settle(searched.collection)
    assert searched.times() == [MOST_ROWS - 1, 1]

"""A full disk: writes are refused and leave nothing, reads go on, and everything recovers by itself once there is space."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataplane.care.verify import verify
from dataplane.errors import DataPlaneError, StorageFull, Unavailable
from dataplane.hot import snapshot
from dataplane.rows import Row, SearchQuery
from dataplane.store import DataPlane, opened
from tests.dataplane.keeping import demote_for_good
from tests.dataplane.planes import NAME, TENANT, config, filled, only, recall, rows, vectors
from tests.smalldisk import fill_up, free, room, small_disk

RECOVERY_S = 30


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with small_disk(tmp_path / "disk", 80) as made:
        yield made


async def refused(plane: DataPlane, disk: Path, stored: np.ndarray, first: int) -> tuple[int, int]:
    """Write until nothing is taken any more. Returns how many rows were stored, and the number of the first that was not."""
    number = first
    while True:
        try:
            await plane.upsert(TENANT, NAME, rows(stored[number : number + 20], start=number), wait="durable")
        except StorageFull as error:
            assert "full" in str(error) or "room" in str(error)
            return number - first, number
        number += 20
        assert number < len(stored), "the disk never was full"


async def written_again(plane: DataPlane, row: Row) -> None:
    """A write, tried until it is taken."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                await plane.upsert(TENANT, NAME, [row], wait="durable")
            except Unavailable as error:
                await asyncio.sleep(min(error.retry_after_s, 0.5))
            else:
                return


def problems(plane: DataPlane) -> list[str]:
    return [problem.what for collection in plane.open_collections() for problem in verify(collection)]


async def test_a_full_disk_refuses_writes_whole_goes_on_reading_and_recovers_by_itself(disk: Path) -> None:
    stored, queries = vectors(60_000), vectors(10, seed=9)
    async with opened(config(disk / "data")) as plane:
        await filled(plane, stored[:3000])
        await plane.settle(TENANT, NAME)
        fill_up(disk)
        taken, number = await refused(plane, disk, stored, 3000)
        assert await plane.get(TENANT, NAME, [f"r{number + at}" for at in range(20)]) == [None] * 20
        with pytest.raises(Unavailable):
            await plane.delete(TENANT, NAME, ["r1"])
        with pytest.raises(Unavailable):
            await plane.state.put(TENANT, "run", "one", b"value")
        assert only(plane).rows == 3000 + taken
        assert plane.status().last_error
        alive = np.arange(len(stored)) < 3000 + taken
        share, results = await recall(plane, stored, queries, alive=alive)
        assert share >= 0.98
        assert all(result.complete for result in results)
        assert "r1" in {hit.id for hit in (await plane.search(TENANT, NAME, SearchQuery(text="word1", k=100))).hits}
        free(disk)
        await written_again(plane, Row(id="late", vector=queries[0], text="after the flood"))
        await plane.settle(TENANT, NAME)
        assert [hit.id for hit in (await plane.search(TENANT, NAME, SearchQuery(text="flood"))).hits] == ["late"]
        assert await plane.delete(TENANT, NAME, ["r1"]) == 1
        await plane.settle(TENANT, NAME)
        assert plane.status().last_error is None
        assert problems(plane) == []
        assert only(plane).rows == 3000 + taken


async def test_demotion_and_snapshots_pause_on_a_full_disk_and_say_so(disk: Path) -> None:
    stored, queries = vectors(3000), vectors(10, seed=9)
    async with opened(config(disk / "data")) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
        before = {path.name for path in (disk / "data" / "derived").glob("*/*")}
        fill_up(disk)
        ample, plane.keeper.memory_bytes = plane.keeper.memory_bytes, plane.keeper.used_bytes() // 2
        plane.keeper.hurry(plane.open_collections()[0], on=True)
        async with asyncio.timeout(RECOVERY_S):
            while not plane.status().last_error:
                await asyncio.sleep(0.05)
        assert "room" in str(plane.status().last_error) or "full" in str(plane.status().last_error)
        share, _ = await recall(plane, stored, queries)
        assert share >= 0.98
        assert only(plane).rows == 3000
        left = {path.name for path in (disk / "data" / "derived").glob("*/*")}
        assert left <= before | {"text.sqlite-wal", "text.sqlite-shm"}, (
            "what was begun is removed, for nobody has space for it"
        )
        free(disk)
        async with asyncio.timeout(RECOVERY_S):
            await plane.settle(TENANT, NAME)
        assert plane.status().last_error is None
        assert 0 < only(plane).hot < 3000
        plane.keeper.memory_bytes = ample
        share, _ = await recall(plane, stored, queries, exact=True)
        assert share == 1.0
        assert problems(plane) == []


async def test_what_cannot_be_written_is_taken_back_and_what_is_removed_gives_space(disk: Path) -> None:
    stored, queries = vectors(3000), vectors(10, seed=9)
    async with opened(config(disk / "data")) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
        (collection,) = plane.open_collections()
        with plane.keeper.held():
            await asyncio.to_thread(demote_for_good, plane.keeper, collection, np.arange(0, 3000, 2))
            await asyncio.to_thread(collection.touch, np.arange(1, 3000, dtype=np.uint64), 500_000.0)
            before = {path.name for path in collection.folder.iterdir()}
            fill_up(disk)
            with pytest.raises(StorageFull):
                await asyncio.to_thread(plane.keeper.moves.save_snapshot, collection)
            assert {path.name for path in collection.folder.iterdir()} == before
            assert snapshot.verify(collection.folder) == []
            (entry,) = collection.shards.entries
            await asyncio.to_thread(plane.keeper.moves.abandon_shard, collection, entry.name, "")
            assert collection.shards.entries == ()
            assert room(disk) > 0
            free(disk)
        share, _ = await recall(plane, stored, queries)
        assert share >= 0.98
        await plane.settle(TENANT, NAME)
        assert problems(plane) == []


async def test_a_restart_on_a_full_disk_without_a_reserve_says_what_is_needed_and_opens_once_there_is_space(
    disk: Path,
) -> None:
    stored = vectors(3000)
    async with opened(config(disk / "data")) as plane:
        await filled(plane, stored)
        fill_up(disk)
    (disk / "data" / "reserve").unlink(missing_ok=True)
    fill_up(disk)
    with pytest.raises(StorageFull) as refusal:
        await DataPlane.open(config(disk / "data"))
    assert "reads go on" not in str(refusal.value)
    assert f"the disk of {disk / 'data' / 'rocks'} is full" in str(refusal.value)
    free(disk)
    async with opened(config(disk / "data")) as plane:
        assert only(plane).rows == 3000


async def test_a_restart_on_a_full_disk_opens_and_answers(disk: Path) -> None:
    stored, queries = vectors(3000), vectors(10, seed=9)
    async with opened(config(disk / "data")) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
        fill_up(disk)
        await plane.upsert(TENANT, NAME, rows(stored[:1]), wait="nothing")
    for _ in range(3):
        fill_up(disk)
        async with opened(config(disk / "data")) as plane:
            assert only(plane).rows == 3000
            share, _ = await recall(plane, stored, queries)
            assert share >= 0.98
            with contextlib.suppress(DataPlaneError):
                await plane.upsert(TENANT, NAME, rows(stored[:1]), wait="durable")
    async with opened(config(disk / "data")) as plane:
        free(disk)
        await written_again(plane, Row(id="late", vector=queries[0], text="after the flood"))
        await plane.settle(TENANT, NAME)
        assert [hit.id for hit in (await plane.search(TENANT, NAME, SearchQuery(text="flood"))).hits] == ["late"]
        assert problems(plane) == []

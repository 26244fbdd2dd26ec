"""Collections come and go while others call: whoever gives up waiting, or comes too late, leaves nothing half done."""

import asyncio
import contextlib
from pathlib import Path

import numpy as np

from dataplane import clock
from dataplane.care.verify import verify
from dataplane.collections.catalog import stored_collections
from dataplane.errors import NotFound
from dataplane.rows import CollectionSpec, SearchQuery
from dataplane.store import opened
from tests.dataplane.keeping import demote_for_good
from tests.dataplane.planes import DIMENSIONS, NAME, TENANT, config, filled, rows, vectors


async def test_a_caller_who_gives_up_leaves_the_collection_made_or_dropped_whole(tmp_path: Path) -> None:
    spec = CollectionSpec(dimensions=DIMENSIONS)
    async with opened(config(tmp_path)) as plane:
        for turn in range(30):
            making = asyncio.create_task(plane.create_collection(TENANT, f"c{turn}", spec))
            for _ in range(turn % 6):
                await asyncio.sleep(0)
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await making
        async with asyncio.timeout(10):
            while plane._unfinished:
                await asyncio.sleep(0.01)
        there = set(plane.collections(TENANT))
        assert there == {record.name for _, record in stored_collections(plane.rocks)}
        for name in there:
            assert await plane.upsert(TENANT, name, rows(vectors(3))) == 3
            dropping = asyncio.create_task(plane.drop_collection(TENANT, name))
            await asyncio.sleep(0)
            dropping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await dropping
    async with opened(config(tmp_path)) as plane:
        assert plane.collections(TENANT) == {}
        assert list((tmp_path / "derived").iterdir()) == []


async def test_searches_of_a_collection_that_is_dropped_end_well_or_say_that_it_is_gone(tmp_path: Path) -> None:
    found, ids = vectors(2000), {f"r{number}" for number in range(2000)}
    answered: list[int] = []
    async with opened(config(tmp_path)) as plane:
        for _ in range(3):
            await filled(plane, found)
            collection = plane.open_collections()[0]
            with plane.keeper.held():
                await asyncio.to_thread(
                    demote_for_good,
                    plane.keeper,
                    collection,
                    collection.table.view().slots_of(collection.table.view().rows),
                )

            async def search(number: int) -> None:
                await asyncio.sleep(number * 0.001)
                query = SearchQuery(vector=found[number], text="note", exact=number % 2 == 0)
                with contextlib.suppress(NotFound):
                    hits = (await plane.search(TENANT, NAME, query)).hits
                    assert {hit.id for hit in hits} <= ids
                    answered.append(number)

            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    group.create_task(search(number))
                await asyncio.sleep(0.01)
                await plane.drop_collection(TENANT, NAME)
    assert answered


async def test_a_collection_that_is_made_again_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        for turn in range(5):
            await filled(plane, vectors(1500, seed=turn))
            await plane.settle(TENANT, NAME)
            (status,) = plane.status().collections
            assert (status.rows, status.hot) == (1500, 1500)
            assert [problem.what for one in plane.open_collections() for problem in verify(one)] == []
            await plane.drop_collection(TENANT, NAME)
        assert list(plane.rocks.scan("dead", b"")) == []


async def test_a_row_that_left_the_graph_and_came_back_is_there_once_after_a_restart(tmp_path: Path) -> None:
    stored = vectors(2000)
    async with opened(config(tmp_path)) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
        (collection,) = plane.open_collections()
        with plane.keeper.held():
            await asyncio.to_thread(plane.keeper.moves.demote, collection, np.arange(500))
            for _ in range(5):
                collection.touch(collection.table.view().rows[:500], clock.hour(clock.now_ms()))
        async with asyncio.timeout(20):
            while collection.counts()[3]:  # warm ones become hot again, for there is room
                await asyncio.sleep(0.05)
        assert collection.graph is not None
        assert len(collection.graph) == 2500
        with plane.keeper.held():
            await asyncio.to_thread(plane.keeper.moves.save_snapshot, collection)
    async with opened(config(tmp_path)) as plane:
        (status,) = plane.status().collections
        assert (status.rows, status.hot, status.graph_masked) == (2000, 2000, 500)
        for number in range(0, 500, 25):
            hits = (await plane.search(TENANT, NAME, SearchQuery(vector=stored[number], k=20))).hits
            assert len({hit.id for hit in hits}) == 20
            assert hits[0].id == f"r{number}"
        assert [problem.what for one in plane.open_collections() for problem in verify(one)] == []


async def test_the_full_text_never_claims_a_command_that_it_has_not_seen(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=DIMENSIONS))
        (collection,) = plane.open_collections()
        assert collection.text is not None
        await asyncio.to_thread(plane.indexer.stop)
        async with asyncio.TaskGroup() as group:  # many commands in one batch of the writer
            for number in range(20):
                group.create_task(plane.upsert(TENANT, NAME, rows(vectors(2, seed=number), start=2 * number)))
        pending = list(collection.text._pending)
        assert [seq for _, _, seq in pending] == [max(row for row, _ in added) for added, _, _ in pending]
        assert pending[-1][2] == collection.published == 40


async def test_what_ended_is_forgotten_once_the_full_text_has_it(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        await filled(plane, vectors(300))
        await plane.delete(TENANT, NAME, [f"r{number}" for number in range(100)])
        assert len(list(plane.rocks.scan("dead", b""))) == 100
        collection = plane.open_collections()[0]
        async with asyncio.timeout(10):
            while list(plane.rocks.scan("dead", b"")):
                plane.keeper.hurry(collection, on=True)
                await asyncio.sleep(0.02)
        plane.keeper.hurry(collection, on=False)
        assert (await plane.search(TENANT, NAME, SearchQuery(text="word7", k=100))).hits
        assert [problem.what for problem in verify(collection)] == []
    async with opened(config(tmp_path)) as plane:
        hits = (await plane.search(TENANT, NAME, SearchQuery(text="word7", k=100))).hits
        assert {hit.id for hit in hits} == {f"r{number}" for number in range(100, 300) if number % 50 == 7}
        assert [problem.what for one in plane.open_collections() for problem in verify(one)] == []


async def test_what_ended_is_kept_for_an_archive_until_that_has_it(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        await filled(plane, vectors(200))
        collection = plane.open_collections()[0]
        await plane.cold.archive_now()
        await plane.delete(TENANT, NAME, ["r1", "r2", "r3"])
        plane.keeper.hurry(collection, on=True)
        await plane.search(TENANT, NAME, SearchQuery(text="word7"))
        await asyncio.sleep(0.5)
        assert len(list(plane.rocks.scan("dead", b""))) == 3
        await plane.cold.archive_now()
        async with asyncio.timeout(10):
            while list(plane.rocks.scan("dead", b"")):
                await asyncio.sleep(0.02)

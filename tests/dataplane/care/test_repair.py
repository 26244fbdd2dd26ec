"""Repair: what is derived is made anew from RocksDB while searches stay right; what RocksDB lacks is told and left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from dataplane.care.repair import repair
from dataplane.care.verify import Problem, verify
from dataplane.collections.collection import Collection
from dataplane.errors import NotFound
from dataplane.hot.table import HOT, WARM
from dataplane.rows import Row, SearchQuery
from dataplane.store import DataPlane, opened
from dataplane.truth import keys, records
from dataplane.truth.records import RowRecord
from tests.dataplane import damage
from tests.dataplane.keeping import demote_for_good
from tests.dataplane.planes import DIMENSIONS, NAME, TENANT, config, exact, filled, rows, vectors

COUNT = 1300
STORED = vectors(COUNT)
QUERIES = vectors(4, seed=9)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[DataPlane]:
    """Rows r0 to r1199 hot but for 100 of them, which are warm, and 100 fresh."""
    async with opened(config(tmp_path)) as made:
        await filled(made, STORED[:1200])
        await made.settle(TENANT, NAME)
        await asyncio.to_thread(demote, made)
        await made.upsert(TENANT, NAME, rows(STORED[1200:], start=1200))
        yield made


def only(plane: DataPlane) -> Collection:
    (collection,) = plane.open_collections()
    return collection


def demote(plane: DataPlane) -> None:
    with plane.keeper.held():
        demote_for_good(plane.keeper, only(plane), np.arange(100))


async def problems(plane: DataPlane) -> list[Problem]:
    return await asyncio.to_thread(verify, only(plane))


async def right(plane: DataPlane, query: np.ndarray = QUERIES[0]) -> None:
    result = await plane.search(TENANT, NAME, SearchQuery(vector=query, exact=True))
    assert [hit.id for hit in result.hits] == exact(STORED, query)
    words = await plane.search(TENANT, NAME, SearchQuery(text="word7", k=60, deadline_s=30))
    assert {hit.id for hit in words.hits} == {f"r{n}" for n in range(COUNT) if n % 50 == 7}
    assert words.complete


def put(plane: DataPlane, family: str, key: bytes, value: bytes | None) -> None:
    batch = plane.rocks.batch()
    if value is None:
        batch.delete(family, key)
    else:
        batch.put(family, key, value)
    plane.rocks.write(batch)


def index_key(plane: DataPlane, id_: str) -> bytes:
    return only(plane).scope + id_.encode()


def row_of(plane: DataPlane, id_: str) -> int:
    number = plane.rocks.get("index", index_key(plane, id_))
    assert number is not None
    return int.from_bytes(number, "big")


# What is done to a collection, and what verify calls it


def index_lacks_a_row(plane: DataPlane) -> str:
    put(plane, "index", index_key(plane, "r8"), None)
    return "index"


def index_leads_nowhere(plane: DataPlane) -> str:
    put(plane, "index", index_key(plane, "ghost"), keys.number(99_999))
    return "index"


def index_leads_to_another(plane: DataPlane) -> str:
    put(plane, "index", index_key(plane, "r6"), keys.number(row_of(plane, "r5")))
    put(plane, "index", index_key(plane, "alias"), keys.number(row_of(plane, "r7")))
    return "index"


def memory_lacks_rows(plane: DataPlane) -> str:
    collection = only(plane)
    with collection.lock:
        collection._end(np.array([row_of(plane, "r3"), row_of(plane, "r50")], np.uint64))
    return "graph"


def memory_has_a_wrong_node(plane: DataPlane) -> str:
    collection = only(plane)
    with plane.keeper.held(), collection.lock:
        view = collection.table.view()
        hot = np.flatnonzero(view.place == HOT)[:5]
        collection.table.set_nodes(hot, view.node[hot][::-1].astype(np.int64))
    return "graph"


def snapshot_is_flipped(plane: DataPlane) -> str:
    flip(plane, "graph-*.faiss")
    return "graph"


def pointer_is_flipped(plane: DataPlane) -> str:
    flip(plane, "snapshot.json")
    return "graph"


def shard_is_flipped(plane: DataPlane) -> str:
    flip(plane, "shard-*.parquet")
    return "shards"


def shard_manifest_is_flipped(plane: DataPlane) -> str:
    flip(plane, "shards.json")
    return "shards"


def warm_rows_are_misplaced(plane: DataPlane) -> str:
    collection = only(plane)
    with plane.keeper.held(), collection.lock:
        view = collection.table.view()
        warm = np.flatnonzero(view.place == WARM)
        collection.table.set_groups(warm[:7], -1)
    return "shards"


def text_lacks_a_row(plane: DataPlane) -> str:
    feed = only(plane).text
    assert feed is not None
    feed.index.add([], [(row_of(plane, "r7"), "note 7 word7")], 0)
    return "text"


def flip(plane: DataPlane, pattern: str) -> None:
    (file,) = only(plane).folder.glob(pattern)
    damage.flip(file, share=1 / 3)


HARMS = [
    index_lacks_a_row,
    index_leads_nowhere,
    index_leads_to_another,
    memory_lacks_rows,
    memory_has_a_wrong_node,
    snapshot_is_flipped,
    pointer_is_flipped,
    shard_is_flipped,
    shard_manifest_is_flipped,
    warm_rows_are_misplaced,
    text_lacks_a_row,
]


@pytest.mark.parametrize("harm", HARMS)
async def test_what_is_derived_is_made_anew(plane: DataPlane, harm: Callable[[DataPlane], str]) -> None:
    await right(plane)
    where = harm(plane)
    assert {problem.where for problem in await problems(plane)} == {where}
    assert await repair(plane, TENANT, NAME) == []
    assert only(plane).problems == only(plane).shards.problems == []
    await right(plane)
    found = await plane.get(TENANT, NAME, ["r6", "r7", "r8", "ghost", "alias"])
    assert [row and row.id for row in found] == ["r6", "r7", "r8", None, None]
    await plane.settle(TENANT, NAME)
    for query in QUERIES:
        await right(plane, query)
    assert await problems(plane) == []


async def test_everything_at_once_is_repaired_and_stays_so_after_a_restart(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        await filled(plane, STORED)
        await plane.settle(TENANT, NAME)
        await asyncio.to_thread(demote, plane)
        await right(plane)
        for harm in HARMS:
            if harm not in (pointer_is_flipped, shard_manifest_is_flipped):
                harm(plane)
        assert {problem.where for problem in await problems(plane)} == {"index", "graph", "shards", "text"}
        assert await repair(plane, TENANT, NAME) == []
        await right(plane)
    async with opened(config(tmp_path)) as plane:
        await right(plane)
        await plane.settle(TENANT, NAME)
        assert await problems(plane) == []
        assert only(plane).problems == only(plane).shards.problems == []


async def test_of_two_rows_with_one_id_the_later_stays(plane: DataPlane) -> None:
    number = keys.number(50)  # before them all but 49
    twin = RowRecord("r1250", "an older one", {}, 0)
    await plane.delete(TENANT, NAME, ["r49"])
    put(plane, "rows", only(plane).scope + number, records.encode(twin))
    put(plane, "vectors", only(plane).scope + number, STORED[49].tobytes())
    assert {problem.where for problem in await problems(plane)} >= {"index"}
    assert await repair(plane, TENANT, NAME) == []
    (row,) = await plane.get(TENANT, NAME, ["r1250"])
    assert row is not None
    assert row.text == "note 1250 word0"
    assert plane.rocks.get("rows", only(plane).scope + number) is None
    put(plane, "index", index_key(plane, "r1251"), None)
    await plane.upsert(TENANT, NAME, [Row(id="r1251", vector=STORED[1251], text="the later")])  # now there are two
    assert await repair(plane, TENANT, NAME) == []
    (row,) = await plane.get(TENANT, NAME, ["r1251"])
    assert row is not None
    assert row.text == "the later"
    result = await plane.search(TENANT, NAME, SearchQuery(vector=STORED[1251], k=2, exact=True))
    assert [hit.id for hit in result.hits].count("r1251") == 1


async def test_a_row_without_its_vector_is_told_and_left(plane: DataPlane) -> None:
    put(plane, "vectors", only(plane).scope + keys.number(row_of(plane, "r5")), None)
    flip(plane, "graph-*.faiss")
    left = await repair(plane, TENANT, NAME)
    assert [(problem.where, problem.what) for problem in left] == [
        ("rows", f"row {row_of(plane, 'r5')} has no vector of {DIMENSIONS} dimensions")
    ]
    (row,) = await plane.get(TENANT, NAME, ["r5"])
    assert row is not None
    assert row.text == "note 5 word5"
    assert await plane.upsert(TENANT, NAME, [Row(id="r5", vector=STORED[5], text="note 5 word5")]) == 0
    assert await repair(plane, TENANT, NAME) == []
    await right(plane)


async def test_searches_and_writes_go_on_while_memory_is_made_anew(plane: DataPlane) -> None:
    memory_lacks_rows(plane)
    far = [Row(id=f"far{n}", vector=-STORED[n] - 2, text="far") for n in range(40)]

    async def write() -> None:
        for _ in range(10):
            await plane.upsert(TENANT, NAME, far)
            await plane.delete(TENANT, NAME, [row.id for row in far[::2]])

    writing = asyncio.create_task(write())
    repairing = asyncio.create_task(repair(plane, TENANT, NAME))
    while not repairing.done():
        result = await plane.search(TENANT, NAME, SearchQuery(vector=QUERIES[1], exact=True))
        wanted = exact(STORED, QUERIES[1], k=12)
        assert [hit.id for hit in result.hits] == [id_ for id_ in wanted if id_ in {hit.id for hit in result.hits}]
        assert len(result.hits) == 10
    assert await repairing == []
    await writing
    await right(plane)
    await plane.settle(TENANT, NAME)
    assert await problems(plane) == []
    assert sum(only(plane).counts()) == COUNT + 20


async def test_what_was_hot_is_remembered(plane: DataPlane) -> None:
    collection = only(plane)
    for _ in range(70):
        await plane.search(TENANT, NAME, SearchQuery(vector=STORED[9], k=1))
    await plane.settle(TENANT, NAME)
    memory_lacks_rows(plane)
    await repair(plane, TENANT, NAME)
    slot = collection.table.view().slots_of(np.array([row_of(plane, "r9")], np.uint64))
    assert collection.table.accessed()[0][slot][0] > 50


async def test_a_collection_that_is_not_there_cannot_be_repaired(plane: DataPlane) -> None:
    for tenant, name in (("other", NAME), (TENANT, "other")):
        with pytest.raises(NotFound):
            await repair(plane, tenant, name)

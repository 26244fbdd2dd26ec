"""The data plane through its one door: what is stored is found, wherever it lies, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from dataplane.care.verify import verify
from dataplane.collections.derived import Derived
from dataplane.errors import (
    AlreadyExists,
    Closed,
    Damaged,
    DimensionMismatch,
    InvalidFilter,
    InvalidInput,
    Locked,
    NotFound,
)
from dataplane.filters import parse_filter
from dataplane.hot import snapshot
from dataplane.rows import CollectionSpec, Metric, Row, SearchQuery
from dataplane.store import DataPlane, opened
from tests.dataplane.planes import DIMENSIONS, NAME, TENANT, config, exact, filled, only, recall, rows, vectors

MIB = 1 << 20


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[DataPlane]:
    async with opened(config(tmp_path / "data")) as made:
        yield made


def problems(plane: DataPlane) -> list[str]:
    return [problem.what for collection in plane.open_collections() for problem in verify(collection)]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
async def test_the_nearest_rows_come_in_order_with_exact_scores(plane: DataPlane, metric: Metric) -> None:
    stored, query = vectors(300), vectors(1, seed=9)[0]
    await filled(plane, stored, metric=metric)
    result = await plane.search(TENANT, NAME, SearchQuery(vector=query))
    assert [hit.id for hit in result.hits] == exact(stored, query, metric=metric)
    best = stored[int(result.hits[0].id[1:])]
    expected = -((best - query) ** 2).sum() if metric == "l2" else best @ query
    assert result.hits[0].score == pytest.approx(float(expected), abs=1e-5)
    assert result.hits[0].text == f"note {result.hits[0].id[1:]} word{int(result.hits[0].id[1:]) % 50}"
    assert result.complete
    assert result.tiers == ("hot",)


async def test_a_search_sees_every_write_that_was_put_in_before_it(plane: DataPlane) -> None:
    stored = vectors(200)
    await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=DIMENSIONS))
    for row in rows(stored):
        await plane.upsert(TENANT, NAME, [row], wait="nothing")
        result = await plane.search(TENANT, NAME, SearchQuery(vector=row.vector, k=1))
        assert [hit.id for hit in result.hits] == [row.id]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
async def test_a_large_collection_goes_into_the_graph_and_keeps_its_recall(plane: DataPlane, metric: Metric) -> None:
    stored, queries = vectors(4000), vectors(40, seed=9)
    await filled(plane, stored, metric=metric)
    await plane.settle(TENANT, NAME)
    assert only(plane).hot == 4000
    found = 0
    for query in queries:
        result = await plane.search(TENANT, NAME, SearchQuery(vector=query, fetch=False))
        found += len({hit.id for hit in result.hits} & set(exact(stored, query, metric=metric)))
    assert found / 400 >= 0.99
    result = await plane.search(TENANT, NAME, SearchQuery(vector=queries[0], exact=True))
    assert [hit.id for hit in result.hits] == exact(stored, queries[0], metric=metric)
    assert problems(plane) == []


async def test_a_row_that_is_stored_again_replaces_the_old_one_everywhere(plane: DataPlane) -> None:
    stored = vectors(2000)
    await filled(plane, stored)
    await plane.settle(TENANT, NAME)
    other = -stored[5]
    assert await plane.upsert(TENANT, NAME, [Row(id="r5", vector=other, text="quite another")]) == 0
    result = await plane.search(TENANT, NAME, SearchQuery(vector=stored[5], k=20))
    assert "r5" not in {hit.id for hit in result.hits}
    result = await plane.search(TENANT, NAME, SearchQuery(vector=other, k=1))
    assert [(hit.id, hit.text) for hit in result.hits] == [("r5", "quite another")]
    assert (await plane.search(TENANT, NAME, SearchQuery(text="note 5 word5", k=50))).hits != ()
    assert "r5" not in {hit.id for hit in (await plane.search(TENANT, NAME, SearchQuery(text="word5", k=100))).hits}
    assert only(plane).rows == 2000
    assert problems(plane) == []


async def test_all_ids_are_given_in_pages_and_those_of_other_collections_are_not(plane: DataPlane) -> None:
    wanted = ["a", "a\x00", "b", "b" * 500, "\u00e9", "\U0001f600"]
    for name, ids in ((NAME, wanted), ("other", ["x"])):
        await plane.create_collection(TENANT, name, CollectionSpec(dimensions=DIMENSIONS))
        await plane.upsert(TENANT, name, [Row(id=id_, vector=vectors(1)[0]) for id_ in ids], wait="nothing")
    await plane.delete(TENANT, NAME, ["b"])
    wanted.remove("b")
    assert await plane.ids(TENANT, NAME) == wanted
    found: list[str] = []
    while page := await plane.ids(TENANT, NAME, after=found[-1] if found else None, limit=2):
        found += page
    assert found == wanted
    assert await plane.ids(TENANT, NAME, after="c", limit=1) == ["\u00e9"]


async def test_two_rows_with_one_id_in_a_call_leave_the_later(plane: DataPlane) -> None:
    stored = vectors(2)
    await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=DIMENSIONS))
    assert await plane.upsert(TENANT, NAME, [Row(id="a", vector=stored[0]), Row(id="a", vector=stored[1])]) == 1
    (row,) = await plane.get(TENANT, NAME, ["a"], vectors=True)
    assert row is not None
    assert row.vector is not None
    np.testing.assert_allclose(row.vector, stored[1], atol=1e-6)


async def test_deleted_rows_are_never_found_and_their_memory_comes_back(plane: DataPlane) -> None:
    stored, queries = vectors(4000), vectors(30, seed=9)
    await filled(plane, stored)
    await plane.settle(TENANT, NAME)
    before = only(plane).memory_bytes
    gone = [f"r{number}" for number in range(0, 4000, 2)]
    assert await plane.delete(TENANT, NAME, [*gone, "never there"]) == 2000
    alive = np.arange(4000) % 2 == 1
    share, results = await recall(plane, stored, queries, alive=alive)
    assert share >= 0.98
    assert not {hit.id for result in results for hit in result.hits} & set(gone)
    await plane.settle(TENANT, NAME)
    share, _ = await recall(plane, stored, queries, alive=alive)
    assert share >= 0.99
    assert only(plane).memory_bytes < 0.7 * before
    assert only(plane).hot == 2000
    assert problems(plane) == []


async def test_no_tenant_sees_what_another_stored(plane: DataPlane) -> None:
    await filled(plane, vectors(20))
    with pytest.raises(NotFound):
        await plane.search("other", NAME, SearchQuery(vector=vectors(1)[0]))
    with pytest.raises(NotFound):
        await plane.delete("other", NAME, ["r1"])
    assert plane.collections("other") == {}
    await plane.create_collection("other", NAME, CollectionSpec(dimensions=DIMENSIONS))
    assert (await plane.search("other", NAME, SearchQuery(vector=vectors(1)[0]))).hits == ()
    assert (await plane.search("other", NAME, SearchQuery(text="note"))).hits == ()
    assert await plane.get("other", NAME, ["r1"]) == [None]
    assert await plane.delete("other", NAME, ["r1"]) == 0
    assert only_of(plane, TENANT).rows == 20
    await plane.drop_collection("other", NAME)
    assert only(plane).rows == 20


def only_of(plane: DataPlane, tenant: str):  # type: ignore[no-untyped-def]
    return next(status for status in plane.status().collections if status.tenant == tenant)


@pytest.mark.parametrize(
    ("filter_", "keeps"),
    [
        ({"type": "eq", "key": "n", "value": 3}, lambda n: n == 3),
        ({"type": "lt", "key": "n", "value": 14}, lambda n: n < 14),
        ({"type": "in", "key": "n", "value": [1, 2]}, lambda n: (n == 1) | (n == 2)),
        ({"type": "eq", "key": "n", "value": "3"}, lambda n: n < 0),
    ],
)
@pytest.mark.parametrize("settled", [False, True])
async def test_filters_keep_recall(plane: DataPlane, filter_, keeps, settled: bool) -> None:  # type: ignore[no-untyped-def]
    stored, queries = vectors(8000), vectors(15, seed=9)
    await filled(plane, stored)
    if settled:
        await plane.settle(TENANT, NAME)
    matching = keeps(np.arange(8000) % 20)
    found = wanted = 0
    for query in queries:
        true = np.argsort(-np.where(matching, stored @ query, -np.inf))[: min(10, int(matching.sum()))]
        result = await plane.search(TENANT, NAME, SearchQuery(vector=query, filter=parse_filter(filter_)))
        assert all(matching[int(hit.id[1:])] for hit in result.hits)
        found += len({hit.id for hit in result.hits} & {f"r{number}" for number in true})
        wanted += len(true)
    assert found >= 0.99 * wanted


async def test_vectors_and_words_are_fused_and_chinese_is_found(plane: DataPlane) -> None:
    stored = vectors(3)
    await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=DIMENSIONS))
    texts = ["上海的天气很好", "the weather in Paris", "a recipe"]
    await plane.upsert(TENANT, NAME, [Row(id=f"r{n}", vector=stored[n], text=text) for n, text in enumerate(texts)])
    found = await plane.search(TENANT, NAME, SearchQuery(text="上海明天天气怎么样", k=3))
    assert [hit.id for hit in found.hits] == ["r0"]
    fused = await plane.search(TENANT, NAME, SearchQuery(text="recipe", vector=stored[2], k=3))
    assert fused.hits[0].id == "r2"
    assert fused.hits[0].score == pytest.approx(1.0)
    assert len(fused.hits) == 3


async def test_expired_rows_are_gone_at_once_and_removed_by_themselves(plane: DataPlane) -> None:
    stored = vectors(10)
    await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=DIMENSIONS))
    await plane.upsert(TENANT, NAME, [Row(id=f"r{n}", vector=stored[n], text="t", ttl_s=0.2) for n in range(5)])
    await plane.upsert(TENANT, NAME, [Row(id=f"r{n}", vector=stored[n], text="t", ttl_s=3600) for n in range(5, 10)])
    await asyncio.sleep(0.25)
    assert {hit.id for hit in (await plane.search(TENANT, NAME, SearchQuery(vector=stored[0], k=10))).hits} == {
        f"r{n}" for n in range(5, 10)
    }
    assert {hit.id for hit in (await plane.search(TENANT, NAME, SearchQuery(text="t", k=10))).hits} == {
        f"r{n}" for n in range(5, 10)
    }
    assert await plane.get(TENANT, NAME, ["r0"]) == [None]
    await plane.settle(TENANT, NAME)
    async with asyncio.timeout(20):
        while only(plane).rows > 5:
            plane.keeper.hurry(plane._collection(TENANT, NAME), on=True)
            await asyncio.sleep(0.05)
    assert problems(plane) == []


# Tiers


async def squeezed(plane: DataPlane, stored: np.ndarray, share: float) -> None:
    """A collection with memory for about `share` of its rows."""
    await filled(plane, stored)
    await plane.settle(TENANT, NAME)
    table = plane._collection(TENANT, NAME).table.nbytes
    collection = plane._collection(TENANT, NAME)
    slots = np.arange(int(len(stored) * share), len(stored))
    with plane.keeper.held():
        await asyncio.to_thread(plane.keeper.moves.demote, collection, slots)
        await asyncio.to_thread(plane.keeper.steps.rebuild_if_masked, collection)
    plane.keeper.memory_bytes = int(table * 1.3 + 4 * DIMENSIONS * 1.4 * len(stored) * share)
    await plane.upsert(TENANT, NAME, rows(vectors(300, seed=77), start=len(stored)))
    await plane.settle(TENANT, NAME)


async def test_with_memory_for_part_of_the_rows_the_rest_is_warm_and_still_found(plane: DataPlane) -> None:
    stored, queries = vectors(8000), vectors(40, seed=9)
    await squeezed(plane, stored, 0.6)
    status = only(plane)
    assert status.warm > 2000
    assert status.hot + status.warm + status.loose + status.fresh == 8300
    assert status.memory_bytes <= plane.keeper.memory_bytes
    every = np.concatenate([stored, vectors(300, seed=77)])
    share, results = await recall(plane, every, queries)
    assert share >= 0.989
    assert 0 < sum(result.warm_rows_read for result in results) / len(results) < status.warm
    assert {tier for result in results for tier in result.tiers} == {"hot", "warm"}
    share, results = await recall(plane, every, queries[:5], exact=True)
    assert share == 1.0
    assert all(result.complete for result in results)
    assert problems(plane) == []


async def test_a_deadline_gives_what_there_is_and_says_that_it_is_not_all(plane: DataPlane) -> None:
    stored = vectors(8000)
    await squeezed(plane, stored, 0.6)
    result = await plane.search(TENANT, NAME, SearchQuery(vector=stored[0], deadline_s=0.0, exact=True))
    assert not result.complete
    assert len(result.hits) == 10


async def test_locate_tells_where_the_answer_is(plane: DataPlane) -> None:
    stored = vectors(8000)
    await squeezed(plane, stored, 0.6)
    located = await plane.locate(TENANT, NAME, SearchQuery(vector=stored[7]))
    assert located.hot_rows + located.warm_rows >= 50
    assert located.warm_groups > 0
    assert located.warm_bytes >= located.warm_groups * 8 * DIMENSIONS


async def test_rows_that_are_asked_for_become_hot_again(plane: DataPlane) -> None:
    stored = vectors(8000)
    await squeezed(plane, stored, 0.6)
    collection = plane._collection(TENANT, NAME)
    view = collection.table.view()
    warm = int(np.flatnonzero(view.alive & (view.place == 3))[0])
    row = view.rows[warm]
    wanted = stored[int(view_id(plane, warm)[1:])]
    async with asyncio.timeout(30):
        while collection.table.view().place[warm] != 1:
            for _ in range(5):
                await plane.search(TENANT, NAME, SearchQuery(vector=wanted, k=1))
            await asyncio.sleep(0.2)
    assert collection.table.view().rows[warm] == row
    result = await plane.search(TENANT, NAME, SearchQuery(vector=wanted, k=1))
    assert result.hits[0].tier == "hot"
    assert problems(plane) == []


def view_id(plane: DataPlane, slot: int) -> str:
    return plane._collection(TENANT, NAME).view().ids_of(np.array([slot]))[0]


# Ends and starts


async def test_everything_is_there_after_a_restart_and_the_graph_comes_from_its_snapshot(tmp_path: Path) -> None:
    stored, queries = vectors(4000), vectors(20, seed=9)
    async with opened(config(tmp_path)) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
        await plane.delete(TENANT, NAME, ["r1", "r2"])
        await plane.upsert(TENANT, NAME, [Row(id="new", vector=queries[0], text="brand new")])
    async with opened(config(tmp_path)) as plane:
        assert only(plane).hot >= 3998, "all but the new row, which may have come too late for the snapshot"
        assert only(plane).rows == 3999
        result = await plane.search(TENANT, NAME, SearchQuery(vector=queries[0], k=1))
        assert [(hit.id, hit.text) for hit in result.hits] == [("new", "brand new")]
        alive = ~np.isin(np.arange(4000), [1, 2])
        share, results = await recall(plane, stored, queries[1:], alive=alive)
        assert share >= 0.99
        assert not {"r1", "r2"} & {hit.id for result in results for hit in result.hits}
        assert [hit.id for hit in (await plane.search(TENANT, NAME, SearchQuery(text="brand"))).hits] == ["new"]
        assert problems(plane) == []


@pytest.mark.parametrize("which", ["graph-*.faiss", "rows-*.npy", "heat-*.npy", "snapshot.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut"])
async def test_a_damaged_snapshot_is_named_and_built_anew_while_searches_stay_right(
    tmp_path: Path, which: str, damage: str
) -> None:
    stored, queries = vectors(2500), vectors(15, seed=9)
    async with opened(config(tmp_path)) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
    (file,) = (tmp_path / "derived").glob(f"*/{which}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    async with opened(config(tmp_path)) as plane:
        share, _ = await recall(plane, stored, queries)
        assert share >= 0.99
        assert any(str(file.parent) in problem for problem in only(plane).problems)
        await plane.settle(TENANT, NAME)
        assert only(plane).hot == 2500
        share, _ = await recall(plane, stored, queries)
        assert share >= 0.99
        assert problems(plane) == []
        assert snapshot.verify(file.parent) == []


@pytest.mark.parametrize("which", ["shard-*.parquet", "shards.json"])
async def test_a_damaged_shard_is_named_and_its_rows_are_still_found(tmp_path: Path, which: str) -> None:
    stored, queries = vectors(8000), vectors(15, seed=9)
    async with opened(config(tmp_path)) as plane:
        await squeezed(plane, stored, 0.6)
        memory = plane.keeper.memory_bytes
    file = min((tmp_path / "derived").glob(f"*/{which}"))
    content = bytearray(file.read_bytes())
    for at in range(1000, len(content) - 1000, 5000):
        content[at] ^= 0x01
    if which == "shards.json":
        content[len(content) // 3] ^= 0x01
    file.write_bytes(content)
    every = np.concatenate([stored, vectors(300, seed=77)])
    async with opened(config(tmp_path)) as plane:
        plane.keeper.memory_bytes = memory
        await plane.settle(TENANT, NAME)
        share, _ = await recall(plane, every, queries, exact=True)
        assert share == 1.0
        assert any(file.name in problem for problem in only(plane).problems)


async def test_rows_are_in_rocksdb_alone_after_all_that_is_derived_was_removed(tmp_path: Path) -> None:
    stored, queries = vectors(3000), vectors(15, seed=9)
    async with opened(config(tmp_path)) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
    for file in (tmp_path / "derived").glob("*/*"):
        file.unlink()
    async with opened(config(tmp_path)) as plane:
        share, _ = await recall(plane, stored, queries)
        assert share >= 0.99
        hits = (await plane.search(TENANT, NAME, SearchQuery(text="word7", k=60))).hits
        assert {hit.id for hit in hits} == {f"r{n}" for n in range(3000) if n % 50 == 7}
        assert problems(plane) == []


@pytest.mark.parametrize("lost", ["rocks/CURRENT", "rocks"])
async def test_a_lost_database_is_told_and_the_files_of_it_stay(tmp_path: Path, lost: str) -> None:
    async with opened(config(tmp_path / "data")) as plane:
        await filled(plane, vectors(20))
    upload = tmp_path / "data" / "library" / "files" / "a" / "file"
    upload.parent.mkdir(parents=True)
    upload.touch()
    (tmp_path / "data" / lost).rename(tmp_path / "away")

    for _ in range(3):
        with pytest.raises(Damaged, match="is lost: "):
            await DataPlane.open(config(tmp_path / "data"))

    (tmp_path / "away").rename(tmp_path / "data" / lost)
    async with opened(config(tmp_path / "data")) as again:
        assert only(again).rows == 20
    assert upload.exists()


async def test_a_second_process_is_told_that_the_folder_is_in_use(plane: DataPlane, tmp_path: Path) -> None:
    with pytest.raises(Locked, match="open in another process"):
        await DataPlane.open(config(tmp_path / "data"))


async def test_the_folder_is_closed_to_others(plane: DataPlane, tmp_path: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "data", tmp_path / "data" / "derived")} == {0o700}


# Bad input


async def test_bad_input_is_refused_with_its_place_and_changes_nothing(plane: DataPlane) -> None:
    good = vectors(3)
    await filled(plane, good)
    bad: list[tuple[Row, type[Exception], str]] = [
        (Row(id="x", vector=np.zeros(DIMENSIONS, np.float32)), InvalidInput, "zeros"),
        (Row(id="x", vector=np.full(DIMENSIONS, np.nan, np.float32)), InvalidInput, "NaN"),
        (Row(id="x", vector=np.ones(5, np.float32)), DimensionMismatch, "48 dimensions"),
        (Row(id="", vector=good[0]), InvalidInput, "id must have"),
        (Row(id="y" * 600, vector=good[0]), InvalidInput, "id must have"),
        (Row(id="\ud800", vector=good[0]), InvalidInput, "surrogate"),
        (Row(id="x", vector=good[0], attributes={"k" * 80: 1}), InvalidInput, "attribute"),
        (Row(id="x", vector=good[0], text="x" * (2 << 20)), InvalidInput, "text"),
    ]
    for row, error, words in bad:
        with pytest.raises(error, match=words):
            await plane.upsert(TENANT, NAME, [Row(id="fine", vector=good[1]), row])
    assert only(plane).rows == 3
    with pytest.raises(InvalidInput):
        await plane.search(TENANT, NAME, SearchQuery())
    with pytest.raises(DimensionMismatch):
        await plane.search(TENANT, NAME, SearchQuery(vector=np.ones(4, np.float32)))
    with pytest.raises(InvalidFilter):
        parse_filter({"type": "like", "key": "n", "value": 1})
    with pytest.raises(AlreadyExists):
        await plane.create_collection(TENANT, NAME, CollectionSpec(dimensions=3))
    with pytest.raises(NotFound):
        await plane.drop_collection(TENANT, "other")


async def test_a_dropped_collection_leaves_nothing_and_its_name_is_free(plane: DataPlane, tmp_path: Path) -> None:
    await filled(plane, vectors(50))
    folder = plane._collection(TENANT, NAME).folder
    await plane.drop_collection(TENANT, NAME)
    assert not folder.exists()
    for family in ("rows", "vectors", "index", "dead"):
        assert list(plane.rocks.scan(family, b"")) == []
    with pytest.raises(NotFound):
        await plane.search(TENANT, NAME, SearchQuery(text="note"))
    await filled(plane, vectors(5, dimensions=8))
    assert only(plane).rows == 5
    assert len((await plane.search(TENANT, NAME, SearchQuery(text="note"))).hits) == 5


async def test_after_close_every_call_says_so(tmp_path: Path) -> None:
    plane = await DataPlane.open(config(tmp_path))
    await filled(plane, vectors(5))
    await plane.close()
    await plane.close()
    with pytest.raises(Closed):
        await plane.search(TENANT, NAME, SearchQuery(text="note"))
    with pytest.raises(Closed):
        await plane.upsert(TENANT, NAME, rows(vectors(1)))


async def test_a_close_that_is_cancelled_goes_on_and_can_be_waited_for(tmp_path: Path) -> None:
    plane = await DataPlane.open(config(tmp_path / "data"))
    await filled(plane, vectors(300))
    closing = asyncio.create_task(plane.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await plane.close()
    async with opened(config(tmp_path / "data")) as again:
        assert list(again.collections(TENANT)) == [NAME]


def open_files() -> list[str]:
    """What this process has open."""
    return [str(number.readlink()) for number in Path("/proc/self/fd").iterdir() if number.is_symlink()]


async def test_a_data_plane_that_cannot_be_loaded_lets_go_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(config(tmp_path / "data")) as plane:
        await filled(plane, vectors(20))

    def fail(_derived: Derived, _known: object) -> None:
        raise OSError("no more")

    with monkeypatch.context() as failing:
        failing.setattr(Derived, "remove_stray", fail)
        with pytest.raises(OSError, match="no more"):
            await DataPlane.open(config(tmp_path / "data"))
    assert [path for path in open_files() if path.startswith(str(tmp_path))] == []
    async with opened(config(tmp_path / "data")) as again:
        assert list(again.collections(TENANT)) == [NAME]

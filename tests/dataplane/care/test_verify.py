"""Verify: nothing is wrong where nothing was done, and each kind of damage done by hand is found and named."""

from __future__ import annotations

import asyncio
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane.care import verify as verifying
from dataplane.care.verify import MOST, Problem, verify
from dataplane.errors import Damaged, StorageFull
from dataplane.hot.table import FRESH, HOT, LOOSE, WARM
from dataplane.store import opened
from dataplane.truth import keys, records
from dataplane.truth.records import RowRecord
from tests.dataplane.damage import flip
from tests.dataplane.planes import DIMENSIONS, NAME, TENANT, config, filled, rows, vectors
from tests.dataplane.stilled import Stilled, stilled

COUNT = 1400
STORED = vectors(COUNT)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with stilled(folder, DIMENSIONS, text=True) as made:
        made.upsert(STORED[:1200])
        made.work()
        made.upsert(STORED[1200:1300], 1200)
        made.keeper.moves.demote(made.collection, np.arange(1200, 1300))
        made.index_text()
    return folder


@pytest.fixture
def still(prepared: Path, tmp_path: Path) -> Iterator[Stilled]:
    """Rows r0 to r1199 hot, to r1299 warm, to r1399 fresh; all in the full text. Nothing is loose."""
    shutil.copytree(prepared, tmp_path / "copy")
    with stilled(tmp_path / "copy", DIMENSIONS, text=True) as made:
        made.keeper.steps.adopt(made.collection)
        made.upsert(STORED[1300:], 1300)
        made.index_text()
        assert made.counts == (100, 1200, 0, 100)
        yield made


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many."""
    monkeypatch.setattr(verifying, "RANGE", 100)
    monkeypatch.setattr(verifying, "PARTS", 64)
    monkeypatch.setattr(verifying, "LOCKED_ROWS", 70)


def key(still: Stilled, id_: str) -> bytes:
    """Under which row and vector are stored."""
    return still.collection.scope + keys.number(still.row(id_))


def put(still: Stilled, family: str, at: bytes, value: bytes | None) -> None:
    batch = still.rocks.batch()
    if value is None:
        batch.delete(family, at)
    else:
        batch.put(family, at, value)
    still.rocks.write(batch)


def index_key(still: Stilled, id_: str) -> bytes:
    return still.collection.scope + id_.encode()


def test_nothing_is_wrong_with_rows_at_all_places(still: Stilled) -> None:
    assert verify(still.collection) == []
    still.delete(["r0", "r1250", "r1350"])
    still.upsert(STORED[1:2], 1)
    still.index_text()
    assert verify(still.collection) == []
    still.keeper.moves.drop_graph(still.collection)
    assert still.counts[LOOSE] == 1198
    assert verify(still.collection) == []


def test_an_empty_collection_is_right(tmp_path: Path) -> None:
    with stilled(tmp_path, 4, text=True) as empty:
        assert verify(empty.collection) == []


# In RocksDB


@pytest.mark.parametrize("vector", [None, b"", b"\0" * (4 * DIMENSIONS + 4)])
def test_a_row_without_a_whole_vector_is_named(still: Stilled, vector: bytes | None) -> None:
    put(still, "vectors", key(still, "r5"), vector)
    assert verify(still.collection) == [Problem(NAME, "rows", f"row {still.row('r5')} has no vector of 48 dimensions")]


def test_a_row_that_the_index_does_not_have_is_named(still: Stilled) -> None:
    row = still.row("r5")
    put(still, "index", index_key(still, "r5"), None)
    assert still.problems() == [("index", f"row {row} is not what the index has under its id")]


def test_an_id_that_leads_nowhere_is_named(still: Stilled) -> None:
    put(still, "index", index_key(still, "ghost"), keys.number(99_999))
    assert still.problems() == [("index", "the id 'ghost' leads to no row of that id")]


def test_an_id_that_leads_to_the_row_of_another_is_named_with_the_row_that_it_hides(still: Stilled) -> None:
    row = still.row("r6")
    put(still, "index", index_key(still, "r6"), keys.number(still.row("r5")))
    assert still.problems() == [
        ("index", f"row {row} is not what the index has under its id"),
        ("index", "the id 'r6' leads to no row of that id"),
    ]


def test_a_second_id_of_a_row_is_named(still: Stilled) -> None:
    put(still, "index", index_key(still, "alias"), keys.number(still.row("r5")))
    assert still.problems() == [("index", "the id 'alias' leads to no row of that id")]


# Memory


def test_a_row_that_memory_has_and_rocksdb_has_not_is_named(still: Stilled) -> None:
    row = still.row("r1250")
    for family in ("rows", "vectors"):
        put(still, family, key(still, "r1250"), None)
    put(still, "index", index_key(still, "r1250"), None)
    assert ("graph", f"row {row} is in memory and not stored") in still.problems()


def test_a_row_that_memory_lacks_is_named(still: Stilled) -> None:
    record = RowRecord("late", None, {}, 0)
    at = still.collection.scope + keys.number(5000)
    put(still, "rows", at, records.encode(record))
    put(still, "vectors", at, STORED[0].tobytes())
    put(still, "index", index_key(still, "late"), keys.number(5000))
    assert still.problems() == [("graph", "row 5000 is not in memory")]


def test_a_fresh_row_that_the_delta_lacks_is_named(still: Stilled) -> None:
    still.collection.delta.drop(1)
    assert still.problems() == [("graph", f"row {still.row('r1300')} is not in the delta")]


@pytest.mark.parametrize("node", [-1, 7, 100_000])
def test_a_hot_row_at_a_wrong_node_is_named(still: Stilled, node: int) -> None:
    still.collection.table.set_nodes(still.slots(["r5"]), np.array([node]))
    assert still.problems() == [("graph", f"row {still.row('r5')} is not at its node of the graph")]


def test_a_hot_row_whose_node_is_masked_is_named(still: Stilled) -> None:
    assert still.collection.graph is not None
    still.collection.graph.end(int(still.view.table.node[still.slots(["r5"])[0]]))
    assert still.problems() == [("graph", f"row {still.row('r5')} is not at its node of the graph")]


def test_without_a_graph_every_hot_row_is_wrong_and_they_are_counted(still: Stilled) -> None:
    still.collection.graph = None
    found = still.problems()
    assert len(found) == MOST + 1
    assert found[-1] == ("graph", f"and {1200 - MOST} more of this kind")


@pytest.mark.parametrize("group", [-1, 0, 1])
def test_a_warm_row_in_a_wrong_row_group_is_named(still: Stilled, group: int) -> None:
    slot = still.slots(["r1250"])
    wrong = group if group != still.view.table.group[slot[0]] else 2
    still.collection.table.set_groups(slot, wrong)
    assert still.problems() == [("shards", f"row {still.row('r1250')} is not in its row group of a shard")]


def traced(call: Callable[[], object]) -> int:
    """Bytes that it takes at most, beyond what there was."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_is_compared_takes_no_memory_for_each_row(still: Stilled) -> None:
    verify(still.collection)
    assert traced(lambda: verifying.index_faults(still.collection)) < 30 * COUNT
    assert traced(lambda: verifying.without_vector(still.collection)) < 30 * COUNT
    assert traced(lambda: verifying.memory_faults(still.collection)) < 60 * COUNT


def test_under_the_lock_only_some_rows_are_looked_at_again(still: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    at_node = verifying._at_node

    def noting(*args: Any) -> Any:
        looked.append((still.collection.lock.locked(), len(args[-1])))
        return at_node(*args)

    monkeypatch.setattr(verifying, "_at_node", noting)
    assert verifying.memory_faults(still.collection) == []
    still.collection.table.set_nodes(np.arange(100), np.full(100, -1))
    assert len(verifying.memory_faults(still.collection)) == 100
    assert looked == [(False, 1200), (False, 1200), (True, 70), (True, 30)]


# Files


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        ("shard-*.parquet", "shards"),
        ("shards.json", "shards"),
        ("graph-*.faiss", "graph"),
        ("rows-*.npy", "graph"),
        ("heat-*.npy", "graph"),
        ("snapshot.json", "graph"),
    ],
)
def test_a_flipped_file_is_named(still: Stilled, pattern: str, where: str) -> None:
    (file,) = still.collection.folder.glob(pattern)
    flip(file)
    found = verify(still.collection)
    assert {problem.where for problem in found} == {where}
    assert file.name in found[0].what


# Full text


def lacks_a_row(still: Stilled) -> str:
    assert still.collection.text is not None
    still.collection.text.index.add([], [(still.row("r5"), "note 5")], 0)
    return "holds 1399 rows, and 1400"


def is_damaged(still: Stilled) -> str:
    def damaged() -> None:
        raise Damaged("the index is damaged.")

    assert still.collection.text is not None
    still.collection.text.index.verify = damaged  # type: ignore[method-assign]
    return "is damaged"


def is_behind(still: Stilled) -> str:
    assert still.collection.text is not None
    still.collection.text._throw_away()
    return "behind"


def is_stuck(still: Stilled) -> str:
    def full(*_: object) -> None:
        raise StorageFull("no room for it.")

    assert still.collection.text is not None
    still.collection.text.index.add = full  # type: ignore[method-assign]
    still.upsert(STORED[:1], 3000)
    still.index_text()
    return "no room for it."


@pytest.mark.parametrize("harm", [lacks_a_row, is_damaged, is_behind, is_stuck])
def test_a_full_text_that_is_not_what_it_should_be_is_named(still: Stilled, harm: Callable[[Stilled], str]) -> None:
    words = harm(still)
    ((where, what),) = still.problems()
    assert where == "text"
    assert words in what


# Beside everything else


async def test_nothing_is_wrong_while_rows_come_and_go(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        await filled(plane, STORED[:1300])
        stop = asyncio.Event()

        async def churn() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                await plane.upsert(TENANT, NAME, rows(STORED[:60], start=1300 + turn % 3 * 60))
                await plane.delete(TENANT, NAME, [f"r{1300 + n}" for n in range(0, 120, 2)])

        churning = asyncio.create_task(churn())
        (collection,) = plane.open_collections()
        for _ in range(6):
            assert await asyncio.to_thread(verify, collection) == []
        stop.set()
        await churning
        await plane.settle(TENANT, NAME)
        assert verify(collection) == []
        assert collection.counts()[FRESH] + collection.counts()[HOT] + collection.counts()[WARM] > 1300

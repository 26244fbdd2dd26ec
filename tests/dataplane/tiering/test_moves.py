"""Moves: shards that come and go, rows that are where they were after a start, and rows that lost their vector."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane.collections.collection import Collection, Sketches
from dataplane.collections.loading import LOAD_ROWS
from dataplane.errors import Unavailable
from dataplane.filters import Comparison
from dataplane.hot import snapshot
from dataplane.hot.attributes import AttributeColumns
from dataplane.hot.graph import Graph, node_bytes
from dataplane.hot.table import LOOSE, Table
from tests.dataplane.keeping import (
    COUNT,
    QUERY,
    STORED,
    due_again,
    promote_nothing,
    right,
    step,
    warm_up,
)
from tests.dataplane.planes import DIMENSIONS, exact
from tests.dataplane.stilled import Stilled, stilled

# Shards


def test_a_shard_of_which_most_rows_have_ended_is_removed(hot: Stilled) -> None:
    hot.keeper.moves.demote(hot.collection, np.arange(600))
    hot.delete([f"r{n}" for n in range(290)])
    hot.work()
    assert len(hot.collection.shards.entries) == 1
    hot.delete([f"r{n}" for n in range(290, 320)])
    hot.work()
    assert hot.collection.shards.entries == ()
    assert list(hot.collection.folder.glob("shard-*")) == []
    assert hot.counts == (0, COUNT - 320, 0, 0)
    right(hot, np.arange(COUNT) >= 320)


def test_after_a_start_rows_are_where_they_were(all_in_the_graph: Path, tmp_path: Path) -> None:
    shutil.copytree(all_in_the_graph, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        promote_nothing(still)
        still.keeper.moves.demote(still.collection, np.arange(600))
        still.keeper.moves.drop_graph(still.collection)
        still.work()
        assert still.counts == (0, 1200, 0, 600)
    with stilled(tmp_path, DIMENSIONS) as still:
        promote_nothing(still)
        assert still.counts == (0, 1200, 600, 0)
        still.keeper.steps.adopt(still.collection)
        assert still.counts == (0, 1200, 0, 600)
        assert still.keeper.settled(still.collection) is False, "a snapshot of now is still to be written"
        still.work()
        assert still.counts == (0, 1200, 0, 600)
        right(still)


def test_rows_that_were_demoted_and_promoted_again_are_there_once_after_a_start(
    all_in_the_graph: Path, tmp_path: Path
) -> None:
    shutil.copytree(all_in_the_graph, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        for _ in range(2):
            still.keeper.moves.demote(still.collection, np.arange(200))
            warm_up(still, [f"r{n}" for n in range(200)])
            due_again(still)
            still.work()
        assert still.counts == (0, COUNT, 0, 0)
        assert still.collection.graph is not None
        assert len(still.collection.graph) == COUNT + 400
    with stilled(tmp_path, DIMENSIONS) as still:
        assert still.counts == (0, COUNT, 0, 0)
        for number in range(0, 200, 20):
            assert still.ids(STORED[number]) == exact(STORED[:COUNT], STORED[number])
        right(still)


def test_a_damaged_shard_is_removed_at_the_start_or_when_a_search_meets_it(
    all_in_the_graph: Path, tmp_path: Path
) -> None:
    shutil.copytree(all_in_the_graph, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        still.keeper.moves.demote(still.collection, np.arange(600))
        group = int(still.view.table.group[0])
        still.collection.damaged[group] = "as a search noted"
        assert step(still)
        assert still.counts == (0, COUNT - 600, 600, 0)
        assert still.collection.shards.entries == ()
        assert still.collection.shards.problems == ["as a search noted"]
        still.collection.damaged[group] = "again, of a group that has gone"
        assert step(still)
        right(still)
        still.keeper.moves.demote(still.collection, np.flatnonzero(still.view.table.place == LOOSE))
        (entry,) = still.collection.shards.entries
        snapshot.remove(still.collection.folder)
    file = tmp_path / "derived" / entry.name
    content = bytearray(file.read_bytes())
    content[entry.groups[2].offset + 300] ^= 1
    file.write_bytes(content)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.keeper.steps.adopt(still.collection)
        assert still.collection.shards.entries == ()
        assert entry.name in still.collection.shards.problems[0]
        assert still.counts == (0, 0, COUNT, 0)
        right(still)


def test_what_knows_rows_that_a_loss_of_power_took_is_thrown_away_at_the_start(
    all_in_the_graph: Path, tmp_path: Path
) -> None:
    shutil.copytree(all_in_the_graph, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        still.keeper.moves.demote(still.collection, np.arange(COUNT - 50, COUNT))
        batch = still.rocks.batch()
        for number in range(COUNT - 10, COUNT):
            key = still.collection.scope + still.row(f"r{number}").to_bytes(8, "big")
            batch.delete("index", still.collection.scope + f"r{number}".encode())
            batch.delete("rows", key)
            batch.delete("vectors", key)
        batch.put("meta", still.collection.seq_key, (COUNT - 10).to_bytes(8, "big"))
        still.rocks.write(batch)
    with stilled(tmp_path, DIMENSIONS) as still:
        assert still.counts == (0, 0, COUNT - 10, 0)
        assert still.collection.shards.entries == ()
        told = [*still.collection.problems, *still.collection.shards.problems]
        assert [problem.count("loss of power") for problem in told] == [1, 1]
        still.upsert(STORED[COUNT : COUNT + 10], COUNT)  # their numbers are given out again
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        alive = np.r_[np.arange(COUNT) < COUNT - 10, np.ones(10, np.bool_)]
        right(still, alive)
        assert still.ids(STORED[COUNT + 3], k=1) == [f"r{COUNT + 3}"]


# Rows that lost their vector


@pytest.mark.parametrize("count", [50, COUNT])
def test_a_row_without_a_vector_leaves_memory_and_holds_nobody_up(tmp_path: Path, count: int) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:count])
        lost = still.row("r7")
        batch = still.rocks.batch()
        batch.delete("vectors", still.collection.scope + lost.to_bytes(8, "big"))
        batch.put("vectors", still.collection.scope + still.row("r8").to_bytes(8, "big"), b"short")
        still.rocks.write(batch)
    alive = np.ones(count, np.bool_)
    alive[[7, 8]] = False
    for _ in range(2):
        with stilled(tmp_path, DIMENSIONS) as still:
            assert still.work() < 30
            assert still.keeper.settled(still.collection)
            assert sum(still.counts) == count - 2
            wanted = [id_ for id_ in exact(STORED[:count], QUERY, k=20) if alive[int(id_[1:])]][:10]
            assert still.ids(QUERY, exact=True) == wanted
            assert [where for where, _ in still.problems()] == ["rows", "rows"]
            assert f"row {lost} has lost its vector" in still.collection.problems[0]


def test_a_row_that_loses_its_vector_while_it_is_loose_leaves_memory(hot: Stilled) -> None:
    hot.keeper.moves.drop_graph(hot.collection)
    batch = hot.rocks.batch()
    batch.delete("vectors", hot.collection.scope + hot.row("r3").to_bytes(8, "big"))
    hot.rocks.write(batch)
    assert hot.work() < 30
    assert hot.counts == (0, COUNT - 1, 0, 0)
    assert [where for where, _ in hot.problems()] == ["rows"]


# Beside the writer


def without_lock(
    still: Stilled, call: Callable[..., Any], then: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """The call, which must not be made under the lock, and what happens before it returns."""

    def checked(*args: Any) -> Any:
        assert not still.collection.lock.locked()
        found = call(*args)
        if then is not None:
            then()
        return found

    return checked


def test_what_is_written_while_the_table_is_made_anew_is_there_afterwards(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot.delete([f"r{n}" for n in range(200)])
    rounds = iter([(COUNT, 200), (COUNT + 200, 50), (COUNT + 250, 1)])
    view = hot.view  # of a search that goes on

    def writing() -> None:
        """Rows come, among them one that goes at once and one that replaces another; and some go."""
        if (more := next(rounds, None)) is None:
            return
        start, count = more
        hot.upsert(STORED[start : start + count], start)
        hot.delete([f"r{start}", f"r{start - COUNT + 300}"])
        hot.upsert(STORED[700:701], 700)

    monkeypatch.setattr(Table, "kept", without_lock(hot, Table.kept, writing))
    monkeypatch.setattr(Table, "follow", without_lock(hot, Table.follow, writing))
    monkeypatch.setattr(AttributeColumns, "keep", without_lock(hot, AttributeColumns.keep))
    hot.keeper.moves.compact_table(hot.collection, share=0)
    assert next(rounds, None) is None
    alive = np.arange(COUNT + 251) >= 200
    alive[[COUNT, COUNT + 200, COUNT + 250, 300, 500, 550]] = False
    assert len(hot.view.table) == COUNT - 200 + 251 + 3, "rows that ended meanwhile keep their slots"
    assert hot.collection.table.live == np.count_nonzero(alive)
    assert sorted(hot.view.table.rows[hot.view.table.alive].tolist()) == sorted(
        hot.row(f"r{n}") for n in np.flatnonzero(alive)
    )
    assert len(hot.collection.attributes) == len(hot.view.table)
    for n in (250, 700, COUNT - 1, COUNT + 1, COUNT + 249):
        assert hot.ids(QUERY, filter=Comparison("eq", "n", n)) == [f"r{n}"]
    assert hot.ids(QUERY, filter=Comparison("eq", "n", 300)) == []
    assert view.ids_of(np.array([0]))[0] == "r0"
    hot.work()
    right(hot, alive)


def test_a_table_that_cannot_be_made_anew_stays_and_is_made_anew_the_next_time(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise Unavailable("the disk does not answer.", retry_after_s=1)

    hot.delete([f"r{n}" for n in range(200)])
    with monkeypatch.context() as patch:
        patch.setattr(AttributeColumns, "keep", fail)
        with pytest.raises(Unavailable):
            hot.keeper.moves.compact_table(hot.collection, share=0)
    assert len(hot.view.table) == COUNT
    hot.delete(["r200"])
    hot.keeper.moves.compact_table(hot.collection, share=0)
    assert len(hot.view.table) == COUNT - 201
    right(hot, np.arange(COUNT) > 200)


def test_vectors_are_read_without_the_lock_when_a_collection_becomes_small(hot: Stilled) -> None:
    hot.delete([f"r{n}" for n in range(1000)])
    hot.keeper.moves.drop_graph(hot.collection)

    def writing() -> None:
        hot.upsert(STORED[COUNT : COUNT + 5], COUNT)
        hot.delete(["r1000", f"r{COUNT}"])

    read = hot.collection.stored_vectors
    hot.collection.stored_vectors = without_lock(hot, read, writing)  # type: ignore[method-assign]
    hot.keeper.moves.into_delta(hot.collection)
    hot.collection.stored_vectors = read  # type: ignore[method-assign]
    alive = np.arange(COUNT + 5) > 1000
    alive[COUNT] = False
    assert hot.counts == (int(alive.sum()), 0, 0, 0)
    numbers = hot.view.delta.rows
    assert (np.diff(numbers.astype(np.int64)) > 0).all()
    assert hot.ids(STORED[1500], k=1) == ["r1500"]
    right(hot, alive)


def test_heat_is_copied_for_a_snapshot_without_the_lock(hot: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    hot.touch(["r5", "r5"])
    monkeypatch.setattr("dataplane.tiering.moves.np.flatnonzero", without_lock(hot, np.flatnonzero))
    hot.keeper.moves.save_snapshot(hot.collection)
    loaded = snapshot.load(hot.collection.folder, Graph(DIMENSIONS, "cosine"))
    assert loaded is not None
    at = loaded.heat[0].tolist().index(hot.row("r5"))
    assert loaded.heat[1, at - 1 : at + 2].tolist() == [1, 3, 1]


def test_a_start_sketches_only_the_rows_that_no_snapshot_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:COUNT])
        still.work()
        still.keeper.moves.save_snapshot(still.collection)
        still.delete(["r3"])
        still.upsert(STORED[COUNT : COUNT + 2], COUNT)
    sketched: list[int] = []
    sketches_of = Collection.sketches_of

    def noted(self: Collection, vectors: np.ndarray) -> Sketches:
        sketched.append(len(vectors))
        return sketches_of(self, vectors)

    monkeypatch.setattr(Collection, "sketches_of", noted)
    with stilled(tmp_path, DIMENSIONS) as still:
        assert sum(sketched) < LOAD_ROWS  # of the last part
        assert still.ids(STORED[COUNT + 1], k=1) == [f"r{COUNT + 1}"]
        still.work()
        alive = np.arange(COUNT + 2) != 3
        assert (
            still.view.table.sketches[still.view.table.alive]
            == still.collection.sketches_of(STORED[: COUNT + 2][alive])[0]
        ).all()


def test_a_centre_of_erased_or_of_few_rows_is_in_no_snapshot(tmp_path: Path) -> None:
    def saved(still: Stilled) -> bool:
        still.keeper.moves.save_snapshot(still.collection)
        return snapshot.load_sketches(still.collection.folder, DIMENSIONS, still.collection.seq) is not None

    with stilled(tmp_path / "many", DIMENSIONS) as still:
        still.upsert(STORED[:COUNT])
        still.work()
        assert saved(still)
        still.delete(["r3"])
        still.keeper.moves.purge(still.collection, ())
        assert not saved(still)
    with stilled(tmp_path / "many", DIMENSIONS) as still:
        assert saved(still)
    with stilled(tmp_path / "few", DIMENSIONS) as still:
        still.upsert(STORED[:3])
        still.keeper.moves.empty_delta(still.collection)
        assert not saved(still)


def test_many_rows_move_part_by_part_and_searches_between_find_them_all(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.tiering.moves.MOVE_ROWS", 500)
    moved: list[int] = []
    move = Table.move

    def noting(table: Table, slots: np.ndarray, place: int) -> None:
        hot.collection.lock.release()  # as if a search had come just before
        assert hot.ids(QUERY, exact=True) == exact(STORED[:COUNT], QUERY)
        assert len(set(hot.ids(QUERY)) & set(exact(STORED[:COUNT], QUERY))) >= 9
        hot.collection.lock.acquire()
        moved.append(len(slots))
        move(table, slots, place)

    monkeypatch.setattr(Table, "move", noting)
    hot.keeper.moves.demote(hot.collection, np.arange(600))
    assert moved == [500, 100]
    hot.keeper.moves.drop_graph(hot.collection)
    assert moved == [500, 100, 500, 500, 200]
    assert hot.counts == (0, 0, COUNT - 600, 600)
    right(hot)


def test_the_old_graph_is_gone_before_memory_is_taken_for_the_new_one(hot: Stilled) -> None:
    old = weakref.ref(hot.collection.graph)  # type: ignore[arg-type]
    reserve, gone = hot.keeper.moves._reserved_graph, list[bool]()

    def reserved(collection: Collection, most: int | None = None) -> Graph:
        gone.append(old() is None)
        return reserve(collection, most)

    hot.keeper.moves._reserved_graph = reserved  # type: ignore[method-assign]
    assert hot.collection.graph is not None
    count = hot.collection.graph.spare + 1
    hot.keeper.memory_bytes = hot.keeper.used_bytes() + COUNT * node_bytes(DIMENSIONS)  # not for both side by side
    assert hot.keeper.moves.make_room(hot.collection, count, spare=0)
    assert gone == [True]

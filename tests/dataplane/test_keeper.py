"""The keeper, step by step: which step is due, what it moves, and that memory stays within its bounds."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dataplane import keeper as keeper_module
from dataplane import snapshot
from dataplane.collection import FLAT_ROWS
from dataplane.errors import StorageFull
from dataplane.graph import node_bytes
from dataplane.table import FRESH, HOT, LOOSE, WARM
from tests.dataplane.planes import DIMENSIONS, exact, vectors
from tests.dataplane.stilled import Stilled, now_ms, stilled

COUNT = 1800
STORED = vectors(2400)
QUERY = vectors(1, seed=9)[0]
NODE = node_bytes(DIMENSIONS)


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Stilled]:
    with stilled(tmp_path, DIMENSIONS) as made:
        yield made


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with stilled(folder, DIMENSIONS) as made:
        made.upsert(STORED[:COUNT])
        made.work()
    return folder


@pytest.fixture
def hot(prepared: Path, tmp_path: Path) -> Iterator[Stilled]:
    """COUNT rows in the graph, and nothing is due."""
    shutil.copytree(prepared, tmp_path / "hot")
    with stilled(tmp_path / "hot", DIMENSIONS) as made:
        made.work()
        assert made.counts == (0, COUNT, 0, 0)
        yield made


def step(still: Stilled) -> bool:
    return still.keeper.step(still.collection)


def hurried(still: Stilled) -> bool:
    still.keeper.hurry(still.collection, on=True)
    try:
        return step(still)
    finally:
        still.keeper.hurry(still.collection, on=False)


def warm_up(still: Stilled, ids: list[str]) -> None:
    """These are read often, and the others have not been for a day."""
    everything = np.arange(len(still.view.table))
    hour = now_ms() / 3_600_000
    ones = np.ones(len(everything), np.float32)
    still.collection.table.set_accessed(everything, ones, ones * np.float32(hour - 24))
    still.touch(ids, times=20)


def due_again(still: Stilled) -> None:
    """As if time had passed."""
    due = still.keeper._due_of(still.collection)
    due.promoted_at = due.discarded_at = due.reshuffled_at = 0.0


def right(still: Stilled, alive: np.ndarray | None = None) -> None:
    """A search finds what is there, and everything derived agrees with what is stored."""
    ids = exact(STORED[: len(alive) if alive is not None else COUNT], QUERY, k=2400)
    wanted = [id_ for id_ in ids if alive is None or alive[int(id_[1:])]][:10]
    assert still.ids(QUERY, exact=True) == wanted
    assert len(set(still.ids(QUERY)) & set(wanted)) >= 9
    assert still.problems() == []


# Merging


def test_a_small_collection_stays_in_the_delta(still: Stilled) -> None:
    still.upsert(STORED[:FLAT_ROWS])
    assert still.work() <= 1
    assert still.counts == (FLAT_ROWS, 0, 0, 0)
    assert still.collection.graph is None
    assert still.keeper.settled(still.collection)


def test_new_rows_are_merged_in_parts_once_they_are_many_or_old(hot: Stilled) -> None:
    hot.upsert(STORED[COUNT : COUNT + 300], COUNT)
    assert not hot.keeper.settled(hot.collection)
    assert step(hot)
    assert hot.counts == (300 - keeper_module.MERGE_ROWS, COUNT + keeper_module.MERGE_ROWS, 0, 0)
    assert not hot.keeper._merge(hot.collection), "44 rows that have just come are too few"
    hot.collection.changed_at -= keeper_module.MERGE_AFTER_S * 2
    assert step(hot)
    assert hot.counts == (0, COUNT + 300, 0, 0)
    right(hot, np.ones(COUNT + 300, np.bool_))


def test_rows_that_end_before_they_are_merged_become_nothing(hot: Stilled) -> None:
    hot.upsert(STORED[COUNT : COUNT + 100], COUNT)
    hot.delete([f"r{n}" for n in range(COUNT, COUNT + 90)])
    hot.work()
    assert hot.counts == (0, COUNT + 10, 0, 0)
    assert hot.collection.graph is not None
    assert len(hot.collection.graph) == COUNT + 10
    right(hot, np.r_[np.ones(COUNT, np.bool_), np.zeros(90, np.bool_), np.ones(10, np.bool_)])


def test_rows_for_which_there_is_no_room_are_found_by_their_sketches(hot: Stilled) -> None:
    graph = hot.collection.graph
    assert graph is not None
    hot.keeper.memory_bytes = hot.keeper.used_bytes() + 10 * NODE
    count = graph.spare + 300
    extra = vectors(count, seed=4)
    hot.upsert(extra, 5000)
    hot.keeper.memory_bytes = hot.keeper.used_bytes() + 10 * NODE
    hot.work()
    assert hot.counts[LOOSE] > 0
    assert hot.counts[FRESH] == 0
    assert sum(hot.counts) == COUNT + count
    assert hot.ids(extra[-1], k=1) == [f"r{5000 + count - 1}"]
    assert hot.problems() == []


# Memory


def test_with_a_smaller_cap_the_coldest_rows_become_warm_and_the_rest_fits(hot: Stilled) -> None:
    warm_up(hot, [f"r{n}" for n in range(0, COUNT, 3)])
    hot.keeper.memory_bytes = hot.keeper.used_bytes() - 500 * NODE
    assert step(hot)
    hot.work()
    assert hot.counts[WARM] >= 500
    assert hot.counts[HOT] > 0
    assert hot.keeper.used_bytes() <= hot.keeper.memory_bytes
    assert WARM not in hot.places([f"r{n}" for n in range(0, COUNT, 3)]), "they are hotter"
    right(hot)


def test_a_cap_that_only_the_table_fits_into_leaves_nothing_in_the_graph(hot: Stilled) -> None:
    hot.keeper.memory_bytes = 1
    hot.work()
    assert hot.counts[HOT] == hot.counts[FRESH] == 0
    right(hot)
    hot.keeper.memory_bytes = 1 << 26
    due_again(hot)
    hot.work()
    assert hot.counts[HOT] > 0
    right(hot)


def test_many_loose_rows_overflow_into_a_shard(still: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "OVERFLOW_ROWS", 1000)
    still.upsert(STORED[:COUNT])
    still.keeper.memory_bytes = still.collection.table.nbytes + 300 * NODE
    still.work()
    assert still.counts[WARM] >= 1000
    assert still.counts[LOOSE] < 1000
    assert still.keeper.settled(still.collection)
    right(still)


def test_a_graph_whose_array_cannot_move_is_built_anew_with_a_reserve(still: Stilled) -> None:
    still.upsert(STORED[:1100])
    still.work()
    graph = still.collection.graph
    assert graph is not None
    still.upsert(STORED[1100:2400], 1100)
    # Room for the rows, but not for both arrays while the vectors move into the larger one.
    still.keeper.memory_bytes = int((still.keeper.used_bytes() + 1100 * NODE) * 1.06)
    used_at_most = 0
    still.keeper.hurry(still.collection, on=True)
    while step(still):
        used_at_most = max(used_at_most, still.keeper.used_bytes())
    assert used_at_most <= still.keeper.memory_bytes
    assert still.counts[HOT] > 1100
    right(still, np.ones(2400, np.bool_))


# Graph and table made anew


def test_a_graph_of_which_many_nodes_are_masked_is_built_anew_and_its_memory_comes_back(hot: Stilled) -> None:
    before = hot.collection.nbytes
    alive = np.arange(COUNT) % 5 < 2
    hot.delete([f"r{n}" for n in np.flatnonzero(~alive)])
    assert hot.collection.graph is not None
    assert hot.collection.graph.masked == (~alive).sum()
    hot.work()
    assert hot.counts[HOT] + hot.counts[FRESH] == alive.sum()
    assert len(hot.collection.table) == alive.sum(), "the slots of rows that ended are forgotten"
    assert hot.collection.nbytes < 0.7 * before
    right(hot, alive)


def test_ended_rows_that_no_graph_had_are_forgotten_too(still: Stilled) -> None:
    still.upsert(STORED[:1000])
    for _ in range(3):  # the same ids again and again
        still.upsert(STORED[:1000])
    still.work()
    assert still.counts == (1000, 0, 0, 0)
    assert len(still.collection.table) < 2500
    assert still.ids(QUERY) == exact(STORED[:1000], QUERY)
    assert still.problems() == []


# Demotion and promotion


def test_demoted_rows_lie_in_groups_of_similar_ones_and_promoted_ones_need_no_new_shard(hot: Stilled) -> None:
    hot.keeper.demote(hot.collection, np.arange(600))
    assert hot.counts == (0, COUNT - 600, 0, 600)
    (entry,) = hot.collection.shards.entries
    assert entry.rows == 600
    assert hot.collection.graph is not None
    assert hot.collection.graph.masked == 600
    right(hot)
    warm_up(hot, [f"r{n}" for n in range(100)])
    due_again(hot)
    assert step(hot)
    assert hot.places([f"r{n}" for n in range(100)]) == [HOT] * 100
    assert hot.counts[WARM] == 500
    assert hot.keeper.counts.promoted == 100
    hot.keeper.demote(hot.collection, np.arange(600))
    assert hot.counts[WARM] == 600
    assert hot.collection.shards.entries == (entry,), "a shard has them already"
    right(hot)


def test_rows_that_are_not_clearly_hotter_stay_where_they_are(hot: Stilled) -> None:
    hot.keeper.demote(hot.collection, np.arange(600))
    due_again(hot)
    hot.work()
    assert hot.counts[WARM] == 600


def test_promotion_is_bounded_in_rate(hot: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "PROMOTE_ROWS", 50)
    hot.keeper.demote(hot.collection, np.arange(600))
    warm_up(hot, [f"r{n}" for n in range(600)])
    due_again(hot)
    hot.work()
    assert hot.counts[WARM] == 550


def test_without_room_hot_and_warm_rows_are_exchanged_once_many_are_on_the_wrong_side(hot: Stilled) -> None:
    hot.keeper.demote(hot.collection, np.arange(900))
    hot.keeper._drop_graph(hot.collection)
    hot.keeper.memory_bytes = int((hot.keeper.used_bytes() + 950 * NODE) * 1.2)
    hot.work()
    assert hot.counts[HOT] >= 700
    assert hot.counts[WARM] == 900
    wanted = [f"r{n}" for n in range(500)]
    warm_up(hot, wanted)
    taken = hot.keeper.used_bytes() + hot.collection.growing
    hot.keeper.memory_bytes = int(taken / (1 - keeper_module.SHARD_SHARE)) + 1000  # even what is promoted has no room
    assert hot.collection.graph is not None
    due_again(hot)
    before = hot.keeper.counts.promoted
    for _ in range(20):
        if not hurried(hot):
            break
    places = hot.places(wanted)
    assert places.count(WARM) <= 20
    assert hot.keeper.counts.promoted - before >= 480
    right(hot)


# Shards


def test_a_shard_of_which_most_rows_have_ended_is_removed(hot: Stilled) -> None:
    hot.keeper.demote(hot.collection, np.arange(600))
    hot.delete([f"r{n}" for n in range(290)])
    hot.work()
    assert len(hot.collection.shards.entries) == 1
    hot.delete([f"r{n}" for n in range(290, 320)])
    hot.work()
    assert hot.collection.shards.entries == ()
    assert list(hot.collection.folder.glob("shard-*")) == []
    assert hot.counts == (0, COUNT - 320, 0, 0)
    right(hot, np.arange(COUNT) >= 320)


def test_after_a_start_rows_are_where_they_were(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        still.keeper.demote(still.collection, np.arange(600))
        still.keeper._drop_graph(still.collection)
        still.work()
        assert still.counts == (0, 1200, 0, 600)
    with stilled(tmp_path, DIMENSIONS) as still:
        assert still.counts == (0, 1200, 600, 0)
        still.keeper._adopt(still.collection, still.keeper._due_of(still.collection))
        assert still.counts == (0, 1200, 0, 600)
        assert still.keeper.settled(still.collection) is False, "a snapshot of now is still to be written"
        still.work()
        assert still.counts == (0, 1200, 0, 600)
        right(still)


def test_rows_that_were_demoted_and_promoted_again_are_there_once_after_a_start(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        for _ in range(2):
            still.keeper.demote(still.collection, np.arange(200))
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


def test_a_damaged_shard_is_removed_at_the_start_or_when_a_search_meets_it(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        still.keeper.demote(still.collection, np.arange(600))
        group = int(still.view.table.group[0])
        still.collection.damaged[group] = "as a search noted"
        assert step(still)
        assert still.counts == (0, COUNT - 600, 600, 0)
        assert still.collection.shards.entries == ()
        assert still.collection.shards.problems == ["as a search noted"]
        still.collection.damaged[group] = "again, of a group that has gone"
        assert step(still)
        right(still)
        still.keeper.demote(still.collection, np.flatnonzero(still.view.table.place == LOOSE))
        (entry,) = still.collection.shards.entries
        snapshot.remove(still.collection.folder)
    file = tmp_path / "derived" / entry.name
    content = bytearray(file.read_bytes())
    content[entry.groups[2].offset + 300] ^= 1
    file.write_bytes(content)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.keeper._adopt(still.collection, still.keeper._due_of(still.collection))
        assert still.collection.shards.entries == ()
        assert entry.name in still.collection.shards.problems[0]
        assert still.counts == (0, 0, COUNT, 0)
        right(still)


def test_what_knows_rows_that_a_loss_of_power_took_is_thrown_away_at_the_start(prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        still.keeper.demote(still.collection, np.arange(COUNT - 50, COUNT))
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
    hot.keeper._drop_graph(hot.collection)
    batch = hot.rocks.batch()
    batch.delete("vectors", hot.collection.scope + hot.row("r3").to_bytes(8, "big"))
    hot.rocks.write(batch)
    assert hot.work() < 30
    assert hot.counts == (0, COUNT - 1, 0, 0)
    assert [where for where, _ in hot.problems()] == ["rows"]


# Time


def test_rows_whose_time_has_come_are_deleted(still: Stilled) -> None:
    still.upsert(STORED[:300], expires_ms=now_ms() - 1)
    still.upsert(STORED[300:500], 300, expires_ms=now_ms() + 3_600_000)
    still.upsert(STORED[500:600], 500)
    assert step(still), "at the start, shards are looked for"
    assert not step(still), "it is not due yet"
    assert sum(still.counts) == 600
    still.work()
    assert sum(still.counts) == 300
    assert still.keeper.counts.expired == 300
    assert still.ids(QUERY, k=300) == [f"r{int(id_[1:]) + 300}" for id_ in exact(STORED[300:600], QUERY, k=300)]
    assert len(list(still.rocks.scan("index", still.collection.scope))) == 300
    assert still.problems() == []


def test_a_snapshot_is_written_when_enough_has_changed_or_it_is_quiet(hot: Stilled) -> None:
    assert snapshot.read(hot.collection.folder).seq == hot.collection.published  # type: ignore[union-attr]
    due, before = hot.keeper._due_of(hot.collection), hot.keeper.counts.snapshots
    hot.delete(["r0"])
    assert not step(hot)
    assert not hot.keeper.settled(hot.collection)
    hot.collection.changed_at -= 60
    due.snapshot_at -= 2 * keeper_module.SNAPSHOT_IDLE_S
    assert step(hot)
    assert due.snapshot_seq == hot.collection.published
    assert hot.keeper.settled(hot.collection)
    hot.delete([f"r{n}" for n in range(1, 300)])
    due.snapshot_at -= 2 * keeper_module.SNAPSHOT_EVERY_S
    assert step(hot), "a sixth of the graph has changed"
    assert hot.keeper.counts.snapshots == before + 2


# Failures, and the thread


def test_a_step_that_fails_is_told_and_tried_again_after_a_pause(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StorageFull("no room.")

    hot.keeper.memory_bytes = 1
    monkeypatch.setattr(hot.collection.shards, "demote", full)
    assert not hot.keeper._guarded_step(hot.collection)
    assert hot.keeper.last_error == "no room."
    assert hot.keeper.counts.failures == 1
    assert not hot.keeper._guarded_step(hot.collection), "it pauses"
    assert hot.keeper.counts.failures == 1
    right(hot)
    monkeypatch.undo()
    hot.keeper._due_of(hot.collection).paused_until = 0.0
    hot.keeper._guarded_step(hot.collection)
    assert hot.keeper.last_error is None
    hot.work()
    right(hot)
    assert "the keeper pauses" in caplog.text


def test_a_defect_in_a_step_does_not_end_the_thread(hot: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot.keeper, "_merge", lambda *_: 1 // 0)
    hot.keeper.start()
    wait_for(lambda: hot.keeper.counts.failures == 1)
    assert "see the log" in (hot.keeper.last_error or "")
    monkeypatch.undo()
    hot.upsert(STORED[COUNT : COUNT + 300], COUNT)
    hot.keeper._due_of(hot.collection).paused_until = 0.0
    wait_for(lambda: hot.counts == (0, COUNT + 300, 0, 0))
    hot.keeper.stop()


def test_nothing_is_done_while_the_keeper_is_held_nor_for_a_collection_that_was_dropped(hot: Stilled) -> None:
    hot.keeper.start()
    with hot.keeper.held():
        hot.upsert(STORED[COUNT : COUNT + 300], COUNT)
        hot.collection.changed_at -= 60
        hot.keeper.hurry(hot.collection, on=True)
        time.sleep(0.2)
        assert hot.counts == (300, COUNT, 0, 0)
    wait_for(lambda: hot.counts == (0, COUNT + 300, 0, 0))
    with hot.keeper.held():
        hot.collection.dropped = True
        hot.keeper.forget(hot.collection)
    time.sleep(0.1)
    hot.keeper.stop()
    assert hot.keeper._due == {}


def test_a_keeper_that_never_began_can_be_stopped(still: Stilled) -> None:
    still.keeper.stop()


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)

"""Steps: which is due, what it moves, and that memory stays within its bounds."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from dataplane.collections.collection import FLAT_ROWS
from dataplane.hot import snapshot
from dataplane.hot.table import FRESH, HOT, LOOSE, WARM, heat_of
from dataplane.tiering import heats, steps
from dataplane.tiering.room import MERGE_ROWS
from tests.dataplane.keeping import (
    COUNT,
    NODE,
    QUERY,
    STORED,
    due_again,
    heated,
    right,
    step,
    warm_up,
)
from tests.dataplane.planes import exact, vectors
from tests.dataplane.stilled import Stilled, now_ms, stilled

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
    assert hot.counts == (300 - MERGE_ROWS, COUNT + MERGE_ROWS, 0, 0)
    hot.collection.changed_at = time.monotonic() + 60  # however long this test was kept waiting
    assert not hot.keeper.steps.merge(hot.collection), "44 rows that have just come are too few"
    hot.collection.changed_at = time.monotonic() - steps.MERGE_AFTER_S * 2
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
    monkeypatch.setattr(steps, "OVERFLOW_ROWS", 1000)
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


@pytest.mark.parametrize("count", [300, 1200])  # at 1200, slots are to be forgotten after each
def test_slots_are_forgotten_and_rows_merged_while_others_are_replaced_without_a_pause(
    hot: Stilled, count: int
) -> None:
    slots, merged = list[int](), list[int]()
    for turn in range(24):
        hot.upsert(STORED[:count])
        assert hot.keeper.steps.take_one(hot.collection)
        slots.append(len(hot.collection.table))
        merged.append(hot.keeper.counts.merged)
        assert len(hot.collection.delta) < 4096, f"turn {turn}"
    assert max(slots) < COUNT + 2 * FLAT_ROWS + 2 * count
    assert sum(later > earlier for earlier, later in itertools.pairwise(merged)) >= 11
    hot.work()
    right(hot)


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
    due, before = hot.keeper.due.of(hot.collection), hot.keeper.counts.snapshots
    hot.delete(["r0"])
    assert not step(hot)
    assert not hot.keeper.settled(hot.collection)
    hot.collection.changed_at -= 60
    due.snapshot_at -= 2 * steps.SNAPSHOT_IDLE_S
    assert step(hot)
    assert due.snapshot_seq == hot.collection.published
    assert hot.keeper.settled(hot.collection)
    hot.delete([f"r{n}" for n in range(1, 300)])
    due.snapshot_at -= 2 * steps.SNAPSHOT_EVERY_S
    assert step(hot), "a sixth of the graph has changed"
    assert hot.keeper.counts.snapshots == before + 2


def test_heat_is_reckoned_without_the_lock(
    all_in_the_graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reckoned: list[int] = []

    def unlocked(accesses: np.ndarray, hours: np.ndarray) -> np.ndarray:
        assert not made.collection.lock.locked()
        reckoned.append(len(accesses))
        return heat_of(accesses, hours)

    monkeypatch.setattr(heats, "heat_of", unlocked)
    with heated(all_in_the_graph, tmp_path / "hot") as made:
        made.keeper.moves.demote(made.collection, np.arange(20))
        warm_up(made, [f"r{n}" for n in range(20)])
        due_again(made)
        assert made.keeper.steps.promote(made.collection)
        assert made.counts == (0, COUNT, 0, 0)
        made.keeper.memory_bytes = made.collection.nbytes - 300 * NODE
        assert made.keeper.steps.shrink(made.collection)
        assert made.places([f"r{n}" for n in range(20)]) != [WARM] * 20
    assert reckoned == [1, COUNT, 1, COUNT]  # the hottest there could be, and all, in parts


# Trimming


def test_what_ended_is_kept_while_the_full_text_cannot_be_opened_and_goes_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stilled(tmp_path, 4, text=True) as still:
        still.upsert(vectors(3, dimensions=4))
    path = tmp_path / "derived" / "text.sqlite"
    path.unlink()
    path.mkdir()
    with monkeypatch.context() as held:
        held.setattr(shutil, "rmtree", _refused)
        again = stilled(tmp_path, 4, text=True)
        still = again.__enter__()
    try:
        still.delete(["r0", "r1"])
        still.work()
        assert len(list(still.rocks.scan("dead", still.collection.scope))) == 2
        still.index_text()
        still.work()
        assert list(still.rocks.scan("dead", still.collection.scope)) == []
    finally:
        again.__exit__(None, None, None)


def _refused(path: Path, **_: object) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_graph_that_is_built_anew_takes_the_hottest_rows_first(hot: Stilled) -> None:
    asked = [f"r{number}" for number in range(COUNT - 300, COUNT - 200)]
    hot.touch(asked, times=3)
    hot.keeper.moves.drop_graph(hot.collection)
    assert hot.keeper.steps.gather(hot.collection)
    assert set(hot.places(asked)) == {HOT}
    assert hot.counts[HOT] < COUNT / 2

"""What collections share memory by: who gives it back, who takes it again, and when a graph is worth being built anew."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataplane.collections import loading
from dataplane.collections.catalog import Create, stored_collections
from dataplane.collections.collection import Collection
from dataplane.hot.table import FRESH, HOT, KEPT_OUT, LOOSE, WARM
from dataplane.rows import CollectionSpec
from dataplane.tiering import moves, steps
from dataplane.tiering.keeper import Keeper
from dataplane.tiering.room import MARGIN_SHARE, MERGE_ROWS, READ_S, SPARE_SHARE, UNREAD_S
from tests.dataplane.keeping import COUNT, NODE, QUERY, STORED, due_again, promote_nothing, right, step
from tests.dataplane.planes import DIMENSIONS, TENANT, exact, vectors
from tests.dataplane.stilled import Stilled, apply, now_ms

SMALL = 200
OTHERS = vectors(1600, seed=3)


def leave(still: Stilled, nodes: int) -> None:
    """There is memory for so many nodes more in a graph that is built anew, beyond the margin that is left then."""
    keeper = still.keeper
    keeper.memory_bytes = 1 << 26
    for _ in range(50):  # what is kept free is a share of it
        keeper.memory_bytes -= (
            keeper.steps._room.free_bytes() - nodes * NODE - int((SPARE_SHARE + MARGIN_SHARE) * keeper.memory_bytes)
        )


def turns(*collections: Stilled) -> None:
    """The keeper takes them in turn, until nothing is due."""
    for still in collections:
        promote_nothing(still)
    for _ in range(500):
        for still in collections:
            still.keeper.hurry(still.collection, on=True)
        worked = [step(still) for still in collections]
        if not any(worked):
            return
    raise AssertionError("there is always something due")


# One collection


@pytest.mark.parametrize(("nodes", "anew"), [(100, 0), (700, 1)])
def test_a_graph_is_built_anew_only_for_many_more_rows_and_the_others_stay_loose(
    hot: Stilled, nodes: int, anew: int
) -> None:
    before = hot.keeper.counts.rebuilds
    assert hot.collection.graph is not None
    assert hot.collection.graph.spare == 0
    hot.upsert(STORED[COUNT : COUNT + 50], COUNT)
    leave(hot, nodes)
    turns(hot)
    assert hot.keeper.counts.rebuilds - before == anew
    assert hot.counts == ((0, COUNT + 50, 0, 0) if anew else (0, COUNT, 50, 0))
    assert hot.keeper.settled(hot.collection)
    right(hot, np.ones(COUNT + 50, np.bool_))


def test_what_a_graph_gave_back_it_does_not_take_again_for_a_while(hot: Stilled) -> None:
    hot.keeper.memory_bytes = hot.keeper.used_bytes() - 300 * NODE
    turns(hot)
    rebuilds, kept = hot.keeper.counts.rebuilds, hot.counts[HOT]
    free = hot.keeper.steps._room.free_bytes()
    assert free >= MARGIN_SHARE * hot.keeper.memory_bytes, "a margin is left"
    assert hot.collection.graph is not None
    hot.upsert(STORED[COUNT : COUNT + 300], COUNT)  # more than the graph has spare nodes for
    leave(hot, 600)
    turns(hot)
    due_again(hot)
    turns(hot)
    assert hot.keeper.counts.rebuilds == rebuilds
    assert hot.counts[LOOSE] > 0
    assert hot.keeper.settled(hot.collection)
    due = hot.keeper.due.of(hot.collection)
    due.shrunk_at = due.packed_until = -math.inf  # a while later
    turns(hot)
    assert hot.keeper.counts.rebuilds == rebuilds + 1
    assert hot.counts[HOT] >= kept + 300
    right(hot, np.ones(COUNT + 300, np.bool_))


def test_a_graph_that_got_all_memory_is_given_up_at_once_only_for_very_many_more_rows(hot: Stilled) -> None:
    leave(hot, 600)
    due = hot.keeper.due.of(hot.collection)
    due.packed_until = time.monotonic() + moves.PACKED_S
    assert not hot.keeper.moves.worth_anew(hot.collection), "a third"
    due.packed_until = -math.inf
    assert hot.keeper.moves.worth_anew(hot.collection)
    due.packed_until = time.monotonic() + moves.PACKED_S
    leave(hot, 1200)
    assert hot.keeper.moves.worth_anew(hot.collection), "two thirds"


def test_what_the_delta_takes_comes_back_by_merging_and_costs_no_graph(hot: Stilled) -> None:
    before = hot.keeper.counts.rebuilds
    taken = hot.keeper.used_bytes()
    leave(hot, 0)
    hot.upsert(OTHERS, 5000)
    hot.keeper.memory_bytes += hot.keeper.used_bytes() - taken - len(OTHERS) * 4 * DIMENSIONS
    assert hot.keeper.steps._room.free_bytes() < 0
    while hot.counts[FRESH]:
        assert hot.keeper.step(hot.collection) or step(hot)
        hot.collection.changed_at = -math.inf
    assert hot.keeper.steps._room.free_bytes() >= 0
    assert hot.keeper.counts.rebuilds == before
    assert hot.counts == (0, COUNT, len(OTHERS), 0)


@pytest.mark.parametrize("cap", [800_000, 1_000_000])
def test_a_collection_that_is_filled_ends_with_a_full_graph_that_was_built_anew_but_once(
    still: Stilled, cap: int
) -> None:
    still.keeper.memory_bytes = cap
    still.collection.memory = still.keeper.memory
    still.upsert(STORED[:2400])
    turns(still)
    assert still.keeper.counts.rebuilds == 1
    room = still.keeper.steps._room
    assert room.more_nodes(still.collection) < max(moves.ANEW_SHARE * still.counts[HOT], MERGE_ROWS)
    assert still.counts[HOT] > 1500
    assert still.keeper.used_bytes() <= cap
    right(still, np.ones(2400, np.bool_))


def test_rows_of_a_small_collection_that_found_no_memory_come_into_the_delta_later_in_their_order(
    still: Stilled,
) -> None:
    still.collection.memory = still.keeper.memory
    still.upsert(STORED[:100])
    still.keeper.memory_bytes = 1
    still.upsert(STORED[100:150], 100)
    assert still.counts == (100, 0, 50, 0)
    still.keeper.memory_bytes = 1 << 26
    turns(still)
    assert still.counts == (150, 0, 0, 0)
    assert still.collection.graph is None
    assert (np.diff(still.view.delta.rows.astype(np.int64)) > 0).all()
    right(still, np.ones(150, np.bool_))


# Two


@pytest.fixture
def other(hot: Stilled, tmp_path: Path) -> Iterator[Stilled]:
    """Another collection, which shares keeper and memory with `hot`."""
    apply(hot.rocks, Create(TENANT, "other", CollectionSpec(dimensions=DIMENSIONS, text=False), now_ms()))
    (record,) = [record for _, record in stored_collections(hot.rocks) if record.name == "other"]
    made = Stilled(hot.rocks, Collection(hot.rocks, TENANT, record, tmp_path / "other", lambda _: None), 1 << 26)
    loading.load(made.collection)
    made.keeper = hot.keeper = Keeper(lambda: [hot.collection, made.collection], made.apply, 1 << 26)
    made.collection.memory = hot.collection.memory = made.keeper.memory
    turns(hot, made)
    assert hot.counts == (0, COUNT, 0, 0)
    yield made
    made.collection.close()


@pytest.mark.parametrize("nodes", [0, 300])
def test_a_small_collection_whose_rows_come_and_go_costs_another_its_graph_once_at_most(
    hot: Stilled, other: Stilled, nodes: int
) -> None:
    leave(hot, nodes)
    before = hot.keeper.counts.rebuilds
    for _ in range(8):
        for start in range(0, SMALL, 50):
            other.upsert(OTHERS[start : start + 50], start)
            turns(hot, other)
        assert sum(other.counts) == SMALL
        assert other.ids(QUERY, exact=True) == exact(OTHERS[:SMALL], QUERY)
        assert hot.keeper.used_bytes() <= hot.keeper.memory_bytes
        other.delete([f"r{n}" for n in range(SMALL)])
        due_again(hot)
        turns(hot, other)
    assert hot.keeper.counts.rebuilds - before <= 1
    assert hot.counts[HOT] > 0.6 * COUNT
    right(hot)


@pytest.fixture
def crowded(hot: Stilled, other: Stilled) -> Stilled:
    """`other`, which was just searched: its rows came while `hot` had all the memory."""
    leave(hot, -400)
    hot.keeper.memory_bytes += other.collection.table.growth(2 * len(OTHERS))
    other.upsert(OTHERS)
    turns(hot, other)
    assert other.counts[HOT] < 300
    assert hot.counts[HOT] > 1000
    other.collection.searched_at = time.monotonic()
    hot.keeper.due.of(hot.collection).gave_way_at = -math.inf
    return other


def test_a_collection_that_nobody_reads_gives_way_to_one_that_is_read(hot: Stilled, crowded: Stilled) -> None:
    before, small = hot.counts[HOT], crowded.counts[HOT]
    hot.collection.searched_at = time.monotonic() - UNREAD_S - 1
    turns(hot, crowded)
    assert crowded.counts[HOT] > small + 500
    assert COUNT * steps.LEFT_SHARE <= hot.counts[HOT] < before - 500
    assert hot.counts[WARM] > 500
    assert hot.keeper.used_bytes() <= hot.keeper.memory_bytes
    left = hot.counts
    due_again(hot)
    hot.upsert(STORED[:300])
    turns(hot, crowded)
    assert hot.counts[HOT] < left[HOT] + 10, "it takes nothing back beyond its spare nodes"
    assert not hot.keeper.steps.give_way(hot.collection), "a minute has not passed"
    right(hot)
    assert crowded.ids(QUERY, exact=True) == exact(OTHERS, QUERY)
    assert crowded.problems() == []


@pytest.mark.parametrize(("ago", "others_ago"), [(UNREAD_S - 60, 0), (UNREAD_S + 1, READ_S + 1)])
def test_one_that_was_read_or_where_nobody_reads_the_other_gives_nothing(
    hot: Stilled, crowded: Stilled, ago: float, others_ago: float
) -> None:
    hot.collection.searched_at = time.monotonic() - ago
    crowded.collection.searched_at = time.monotonic() - others_ago
    assert not hot.keeper.steps.give_way(hot.collection)


def test_what_gives_way_keeps_a_tenth_of_its_rows_however_much_is_lacking(
    hot: Stilled, crowded: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot.keeper.steps._room, "lacking_elsewhere", lambda _: 1 << 40)
    assert hot.keeper.steps.give_way(hot.collection)
    promote_nothing(hot)
    monkeypatch.undo()
    assert hot.collection.graph is not None
    assert COUNT // 10 <= hot.collection.graph.spare < COUNT // 8
    assert hot.counts[WARM] > 800


def test_copies_that_a_graph_was_not_given_lack_nothing(hot: Stilled, crowded: Stilled) -> None:
    hot.collection.searched_at = time.monotonic() - UNREAD_S - 1
    room, view = hot.keeper.steps._room, crowded.view.table
    assert room.lacking_elsewhere(hot.collection) > 500 * NODE
    crowded.collection.table.set_nodes(np.flatnonzero(view.place != HOT), KEPT_OUT)
    assert room.lacking_elsewhere(hot.collection) == 0
    assert not hot.keeper.steps.give_way(hot.collection)

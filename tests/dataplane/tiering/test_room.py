"""For what there is memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.collections.collection import Collection
from dataplane.hot.graph import node_bytes
from dataplane.memory import Memory
from dataplane.tiering.room import LEAST_SHARD_ROWS, MERGE_ROWS, RECORD_BYTES, RESERVE, SHARD_ROWS, SPARE_SHARE, Room
from tests.dataplane.planes import DIMENSIONS, vectors
from tests.dataplane.stilled import Stilled, stilled

MIB = 1 << 20
NODE = node_bytes(DIMENSIONS)
ROWS = 1500
ROW = 4 * DIMENSIONS + RECORD_BYTES


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Stilled]:
    with stilled(tmp_path, DIMENSIONS) as made:
        made.upsert(vectors(ROWS))
        yield made


def room_of(still: Stilled, cap: int) -> Room:
    return Room(lambda: [still.collection], Memory(cap))


def test_what_is_free_is_what_nobody_takes_and_neither_tables_nor_a_shard_will_need(still: Stilled) -> None:
    room = room_of(still, 64 * MIB)
    writing = room.shard_rows(still.collection) * ROW
    assert room.free_bytes() == 64 * MIB - still.collection.nbytes - still.collection.growing - writing
    room.memory.took(1000)
    assert room.memory.free == 64 * MIB - still.collection.nbytes - still.collection.growing - writing - 1000
    assert room.free_bytes() == 64 * MIB - still.collection.nbytes - still.collection.growing - writing


def test_what_the_writer_takes_while_all_is_summed_is_not_free(still: Stilled) -> None:
    memory = Memory(64 * MIB)
    writing = room_of(still, 64 * MIB).shard_rows(still.collection) * ROW

    def meanwhile() -> list[Collection]:
        memory.took(1000)
        return [still.collection]

    room = Room(meanwhile, memory)
    for _ in range(3):
        free = 64 * MIB - still.collection.nbytes - still.collection.growing - writing
        assert room.free_bytes() == free - 1000, "and what was taken before the sum counts once"


def test_a_shard_has_as_many_rows_as_a_share_of_memory_holds_within_bounds(still: Stilled) -> None:
    assert room_of(still, 1).shard_rows(still.collection) == LEAST_SHARD_ROWS
    assert room_of(still, 10_000 * ROW).shard_rows(still.collection) == 500
    assert room_of(still, 1 << 40).shard_rows(still.collection) == SHARD_ROWS


def test_rows_may_become_hot_where_their_nodes_and_the_spare_share_fit(still: Stilled) -> None:
    room = room_of(still, 64 * MIB)
    fit = int((room.free_bytes() - SPARE_SHARE * room.memory.cap) // NODE)
    assert room.for_nodes(still.collection, fit)
    assert not room.for_nodes(still.collection, fit + 1)
    assert room.for_nodes(still.collection, fit + 1, spare=0)


def test_a_graph_with_spare_nodes_takes_rows_whatever_is_free(still: Stilled) -> None:
    still.work()
    graph = still.collection.graph
    assert graph is not None
    room = room_of(still, 1)
    assert room.free_bytes() < 0
    assert room.for_nodes(still.collection, graph.spare, spare=0)
    assert not room.for_nodes(still.collection, graph.spare + 1, spare=0)


def test_a_new_graph_gets_no_more_nodes_than_its_rows_may_need_nor_than_there_is_memory_for(still: Stilled) -> None:
    assert room_of(still, 1 << 40).nodes(still.collection) == int(RESERVE * ROWS) + MERGE_ROWS
    assert room_of(still, 1).nodes(still.collection) == 0
    tight = room_of(still, still.collection.nbytes + MIB // 2)
    left = tight.free_bytes() - int(SPARE_SHARE * tight.memory.cap)
    assert 0 < tight.nodes(still.collection) == left // NODE < ROWS
    left = tight.free_bytes() - int((SPARE_SHARE + 0.1) * tight.memory.cap)
    assert 0 < tight.nodes(still.collection, margin=0.1) == left // NODE


def test_a_graph_made_anew_has_the_memory_of_the_one_in_whose_place_it_comes(still: Stilled) -> None:
    still.work()
    graph = still.collection.graph
    assert graph is not None
    room = room_of(still, still.collection.nbytes + 60_000)
    beside = room.free_bytes() - int(SPARE_SHARE * room.memory.cap)
    assert room.nodes(still.collection) == (beside + graph.nbytes) // NODE
    assert not room.for_nodes(still.collection, graph.spare + 1, spare=0), "it cannot grow beside itself"


def test_loose_rows_fit_into_the_delta_where_it_may_grow_by_them(still: Stilled) -> None:
    still.work()
    still.keeper.moves.drop_graph(still.collection)
    assert room_of(still, 64 * MIB).for_delta(still.collection)
    assert not room_of(still, 1).for_delta(still.collection)

"""Demotion, promotion and exchange: the hottest rows are in memory, and the graph is not given up without need."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from dataplane.hot.graph import Graph
from dataplane.hot.table import HOT, WARM
from dataplane.tiering import steps
from dataplane.tiering.room import LEAST_SHARD_ROWS, RECORD_BYTES
from tests.dataplane.keeping import (
    COUNT,
    NODE,
    due_again,
    heated,
    hurried,
    promote_nothing,
    right,
    step,
    warm_up,
)
from tests.dataplane.planes import DIMENSIONS
from tests.dataplane.stilled import Stilled


def test_demoted_rows_lie_in_groups_of_similar_ones_and_promoted_ones_need_no_new_shard(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PROMOTE_ROWS", 100)
    hot.keeper.moves.demote(hot.collection, np.arange(600))
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
    hot.keeper.moves.demote(hot.collection, np.arange(600))
    assert hot.counts[WARM] == 600
    assert hot.collection.shards.entries == (entry,), "a shard has them already"
    right(hot)


def test_while_there_is_room_rows_become_hot_whatever_their_heat(hot: Stilled) -> None:
    hot.keeper.moves.demote(hot.collection, np.arange(600))
    due_again(hot)
    assert hot.keeper.steps.promote(hot.collection)
    assert hot.counts[WARM] == 600 - steps.PROMOTE_ROWS


def test_in_the_spare_share_rows_that_are_not_clearly_hotter_stay_where_they_are(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(hot, 500)
    monkeypatch.setattr(Graph, "spare", 10)
    due_again(hot)
    assert not hot.keeper.steps.promote(hot.collection)
    assert hot.counts[WARM] == 500


def test_promotion_is_bounded_in_rate(hot: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PROMOTE_ROWS", 50)
    hot.keeper.moves.demote(hot.collection, np.arange(600))
    warm_up(hot, [f"r{n}" for n in range(600)])
    due_again(hot)
    hot.work()
    assert hot.counts[WARM] == 550


def full(hot: Stilled, demoted: int) -> None:
    """The oldest rows are warm, and there is memory for no node more than the graph has."""
    hot.keeper.moves.demote(hot.collection, np.arange(demoted))
    writing = LEAST_SHARD_ROWS * (4 * DIMENSIONS + RECORD_BYTES)
    hot.keeper.memory_bytes = hot.keeper.used_bytes() + hot.collection.growing + writing + 1000
    assert hot.collection.graph is not None
    assert hot.collection.graph.spare == 0


def test_for_what_is_promoted_the_graph_is_not_given_up(hot: Stilled) -> None:
    full(hot, 500)
    hot.keeper.memory_bytes += 600 * NODE  # it would grow by COUNT nodes, and move meanwhile
    warm_up(hot, [f"r{n}" for n in range(400)])
    due_again(hot)
    before = hot.keeper.counts.rebuilds
    assert not hot.keeper.steps.promote(hot.collection)
    assert hot.keeper.counts.rebuilds == before
    assert hot.counts == (0, COUNT - 500, 0, 500)


@pytest.mark.parametrize(("left", "anew"), [(200, False), (500, True)])
def test_a_graph_that_would_have_many_more_rows_if_it_were_built_anew_is_built_anew(
    hot: Stilled, left: int, anew: bool
) -> None:
    full(hot, left)  # so many nodes are of rows that are in the graph no more, too few for `rebuild_if_masked`
    due_again(hot)
    assert hot.keeper.steps.exchange(hot.collection) is anew
    promote_nothing(hot)
    hot.work()
    assert hot.counts[HOT] in (range(1600, COUNT) if anew else [COUNT - left])
    right(hot)


def test_what_is_promoted_is_the_hottest_for_which_the_graph_has_nodes(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(hot, 500)
    warm_up(hot, [f"r{n}" for n in range(400)])
    hot.touch([f"r{n}" for n in range(90, 100)], times=5)
    monkeypatch.setattr(Graph, "spare", 10)
    due_again(hot)
    assert hot.keeper.steps.promote(hot.collection)
    assert hot.places([f"r{n}" for n in range(500)]) == [HOT if 90 <= n < 100 else WARM for n in range(500)]


def test_without_room_hot_and_warm_rows_are_exchanged_once_many_are_on_the_wrong_side(hot: Stilled) -> None:
    full(hot, 500)
    wanted = [f"r{n}" for n in range(500)]
    warm_up(hot, wanted)
    due_again(hot)
    before = hot.keeper.counts.promoted
    for _ in range(20):
        if not hurried(hot):
            break
    assert hot.places(wanted) == [HOT] * 500
    assert hot.counts == (0, COUNT - 500, 0, 500)
    assert hot.keeper.counts.promoted - before == 500
    right(hot)


def long_ago(hot: Stilled) -> None:
    """Nobody has searched or written for a while."""
    due_again(hot)
    hot.collection.searched_at -= 2 * steps.IDLE_S
    hot.collection.changed_at -= 2 * steps.IDLE_S


def drifted(hot: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rows are on the wrong side that an exchange is worth it while nobody searches or writes, and not else."""
    full(hot, 500)
    warm_up(hot, [f"r{n}" for n in range(400)])
    monkeypatch.setattr(steps, "EXCHANGED_SHARE", 0.9)
    monkeypatch.setattr(steps, "IDLE_EXCHANGED_SHARE", 0.1)


def test_while_nobody_searches_fewer_rows_are_worth_an_exchange(hot: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    drifted(hot, monkeypatch)
    long_ago(hot)
    assert hot.keeper.steps.exchange(hot.collection)


@pytest.mark.parametrize("lately", ["searched_at", "changed_at"])
def test_while_somebody_searches_or_writes_they_are_not(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch, lately: str
) -> None:
    drifted(hot, monkeypatch)
    long_ago(hot)
    setattr(hot.collection, lately, time.monotonic() + 60)
    assert not hot.keeper.steps.exchange(hot.collection)


@pytest.mark.parametrize("lately", ["compared_at", "exchanged_at"])
def test_there_is_a_pause_between_two_exchanges_and_two_looks(
    hot: Stilled, monkeypatch: pytest.MonkeyPatch, lately: str
) -> None:
    drifted(hot, monkeypatch)
    long_ago(hot)
    setattr(hot.keeper.due.of(hot.collection), lately, time.monotonic())
    assert not hot.keeper.steps.exchange(hot.collection)


def test_a_graph_that_was_just_loaded_is_not_given_up_at_once(
    all_in_the_graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with heated(all_in_the_graph, tmp_path / "copy") as hot:
        drifted(hot, monkeypatch)
        hot.keeper.due.forget(hot.collection)
        hot.keeper.steps.adopt(hot.collection)
        assert not hot.keeper.steps.exchange(hot.collection)

"""Copies that the graph is not given: all rows are found, and the keeper comes to rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dataplane.filters import parse_filter
from dataplane.hot import copies
from dataplane.hot.copies import MOST_COPIES
from dataplane.hot.table import HOT, KEPT_OUT, LOOSE, WARM
from dataplane.rows import Metric
from dataplane.tiering import steps
from tests.dataplane.keeping import due_again, hurried, step
from tests.dataplane.planes import DIMENSIONS, vectors
from tests.dataplane.stilled import Floats, Stilled, stilled

OTHERS, COPIES = 3000, 1500
ONE = vectors(1, seed=5)
ALIKE = np.concatenate([vectors(OTHERS)[:1000], np.repeat(ONE, COPIES, axis=0), vectors(OTHERS)[1000:]])
TEXTS, TIMES = 200, 50
REPEATED = np.random.default_rng(0).permutation(np.repeat(vectors(TEXTS, seed=2), TIMES, axis=0))
QUERIES = vectors(30, seed=9)
AMONG = [f"r{n}" for n in range(1000, 1000 + COPIES)]


def recall(
    still: Stilled, stored: Floats, k: int = 10, *, matching: NDArray[np.bool_] | None = None, **options: object
) -> float:
    """Of unrelated queries: the share of hits as good as the true ones. No answer is short, and none wrong."""
    good = 0
    for query in QUERIES:
        scores = stored @ query if still.collection.metric != "l2" else -((stored - query) ** 2).sum(axis=1)
        worst = np.sort(scores if matching is None else scores[matching])[-k]
        hits = still.search(query, k=k, **options).hits
        assert len({hit.id for hit in hits}) == k
        found = np.array([int(hit.id[1:]) for hit in hits])
        assert matching is None or matching[found].all()
        good += int(np.count_nonzero(scores[found] >= worst - 1e-5))
    return good / (k * len(QUERIES))


def at_rest(still: Stilled) -> None:
    """Nothing is left to be done, and nothing is done."""
    still.work()
    assert still.keeper.settled(still.collection)
    before, marks = still.counts, still.view.table.node.copy()
    for _ in range(3):
        due_again(still)
        assert not step(still)
        assert not hurried(still)
    assert still.counts == before
    assert (still.view.table.node == marks).all()
    assert still.problems() == []


def marked(still: Stilled) -> int:
    return int(np.count_nonzero(still.view.table.node == KEPT_OUT))


def nodes(still: Stilled) -> int:
    return 0 if still.collection.graph is None else len(still.collection.graph)


@pytest.fixture
def alike(still: Stilled) -> Stilled:
    """OTHERS rows that differ and COPIES that do not, worked on."""
    still.upsert(ALIKE)
    still.work()
    assert still.counts == (0, OTHERS + MOST_COPIES, COPIES - MOST_COPIES, 0)
    return still


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_a_vector_that_is_there_many_times_hides_no_other_even_after_a_start(tmp_path: Path, metric: Metric) -> None:
    with stilled(tmp_path, DIMENSIONS, metric=metric) as still:
        still.upsert(ALIKE)
        at_rest(still)
        assert recall(still, ALIKE) >= 0.99
        assert set(still.ids(ONE[0], k=100)) <= set(AMONG)
        counts = still.counts
    with stilled(tmp_path, DIMENSIONS, metric=metric) as still:
        assert still.counts == counts
        at_rest(still)
        assert still.counts == counts
        assert recall(still, ALIKE) >= 0.99
        still.upsert(np.repeat(ONE, 300, axis=0), len(ALIKE))
        at_rest(still)
        assert still.counts == (0, OTHERS + MOST_COPIES, COPIES - MOST_COPIES + 300, 0)


def test_many_vectors_that_are_there_some_times_leave_no_answer_short_even_after_a_start(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(REPEATED)
        at_rest(still)
        assert still.counts[HOT] <= TEXTS * MOST_COPIES
        assert still.counts[WARM] > 0
        assert recall(still, REPEATED) >= 0.97
        assert recall(still, REPEATED, 100) >= 0.97
    with stilled(tmp_path, DIMENSIONS) as still:
        still.keeper.steps.adopt(still.collection)
        assert recall(still, REPEATED, 100) >= 0.97
        for _ in range(30):  # of the warm ones some are tried again each second
            due_again(still)
            still.work()
        at_rest(still)
        assert still.counts[HOT] <= 2 * TEXTS * MOST_COPIES
        assert recall(still, REPEATED) >= 0.97
        assert recall(still, REPEATED, 100) >= 0.97


def test_a_filter_that_half_of_the_rows_match_leaves_no_answer_short(alike: Stilled) -> None:
    half = parse_filter({"type": "lt", "key": "n", "value": len(ALIKE) // 2})
    matching = np.arange(len(ALIKE)) < len(ALIKE) // 2
    assert recall(alike, ALIKE, filter=half, matching=matching) >= 0.99
    assert recall(alike, ALIKE, 100, filter=half, matching=matching) >= 0.99


def test_copies_become_warm_once_they_are_many_though_there_is_room(
    alike: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_rest(alike)
    monkeypatch.setattr(steps, "OVERFLOW_ROWS", COPIES - MOST_COPIES)
    assert not alike.keeper.settled(alike.collection)
    assert alike.keeper.steps.gather(alike.collection)
    assert alike.counts == (0, OTHERS + MOST_COPIES, 0, COPIES - MOST_COPIES)
    at_rest(alike)
    assert marked(alike) == COPIES - MOST_COPIES
    assert recall(alike, ALIKE) >= 0.99


def test_loose_rows_beside_copies_become_hot(alike: Stilled) -> None:
    extra = vectors(100, seed=7)
    alike.upsert(extra, len(ALIKE))
    alike.keeper.moves.empty_delta(alike.collection)
    assert not alike.keeper.settled(alike.collection)
    alike.work()
    assert alike.counts == (0, OTHERS + MOST_COPIES + 100, COPIES - MOST_COPIES, 0)


def test_warm_copies_are_not_promoted(alike: Stilled) -> None:
    warm = alike.view.table.first_at(LOOSE, COPIES)
    alike.keeper.moves.demote(alike.collection, warm)
    alike.collection.table.set_nodes(warm, -1)  # as after a start
    due_again(alike)
    before = alike.keeper.counts.promoted
    while alike.keeper.steps.promote(alike.collection):
        due_again(alike)
    assert alike.counts == (0, OTHERS + MOST_COPIES, 0, COPIES - MOST_COPIES)
    assert alike.keeper.counts.promoted == before
    assert marked(alike) == COPIES - MOST_COPIES


@pytest.mark.parametrize("place", [LOOSE, WARM])
def test_copies_are_tried_again_when_the_graph_is_dropped(alike: Stilled, place: int) -> None:
    if place == WARM:
        alike.keeper.moves.demote(alike.collection, alike.view.table.first_at(LOOSE, COPIES))
    assert marked(alike) == COPIES - MOST_COPIES
    alike.keeper.moves.drop_graph(alike.collection)
    assert marked(alike) == 0
    assert alike.collection.copies.nbytes == 0
    inside = [id_ for id_, at in zip(AMONG, alike.places(AMONG), strict=True) if at == LOOSE]
    alike.delete(inside[:MOST_COPIES])
    for _ in range(5):
        due_again(alike)
        alike.work()
    assert alike.counts[HOT] == OTHERS + MOST_COPIES
    assert nodes(alike) == OTHERS + MOST_COPIES


def test_an_exchange_does_not_try_warm_copies_again_and_is_not_made_for_them(
    alike: Stilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike.keeper._room, "more_nodes", lambda _: 10_000)  # as if the graph could not grow
    alike.keeper.moves.demote(alike.collection, alike.view.table.first_at(LOOSE, COPIES))
    alike.touch(AMONG, times=20)
    due_again(alike)
    assert not alike.keeper.steps.exchange(alike.collection)
    nothing = np.empty(0, np.uint64)
    alike.keeper.moves.exchange(alike.collection, nothing, nothing)
    assert marked(alike) == COPIES - MOST_COPIES


def test_a_text_that_is_replaced_over_and_over_is_put_into_the_graph_a_few_times(alike: Stilled) -> None:
    graph = alike.collection.graph
    again = vectors(1, seed=11)
    for _ in range(3 * MOST_COPIES):
        alike.upsert(again, ids=["again"])
        alike.work()
    assert alike.collection.graph is graph
    assert nodes(alike) == OTHERS + 2 * MOST_COPIES
    assert alike.ids(again[0], k=1) == ["again"]


def test_copies_alone_come_to_rest(still: Stilled) -> None:
    still.upsert(np.repeat(ONE, 5000, axis=0))
    at_rest(still)
    assert still.counts == (0, MOST_COPIES, 0, 5000 - MOST_COPIES)
    assert len(set(still.ids(ONE[0], k=100))) == 100


def test_copies_stay_kept_out_when_the_table_is_made_anew(alike: Stilled) -> None:
    alike.delete([f"r{n}" for n in range(500)])
    alike.keeper.moves.compact_table(alike.collection, share=0)
    assert marked(alike) == COPIES - MOST_COPIES
    alike.collection.count_copies(1000)
    alike.upsert(np.repeat(ONE, 20, axis=0), len(ALIKE))
    alike.work()
    assert alike.counts == (0, OTHERS - 500 + MOST_COPIES, COPIES - MOST_COPIES + 20, 0)


def test_what_is_counted_takes_memory_that_is_counted(alike: Stilled) -> None:
    before, counters = alike.collection.nbytes, alike.collection.copies.nbytes
    assert counters >= copies.LEAST_SLOTS * nodes(alike)
    taken = alike.collection.memory.taken
    alike.collection.count_copies(100_000)
    grown = alike.collection.copies.nbytes - counters
    assert grown >= 100_000 * copies.SLOTS - counters
    assert alike.collection.nbytes == before + grown
    assert alike.collection.memory.taken == taken + grown


def test_rows_that_differ_become_hot_however_alike_their_sketches_are(still: Stilled) -> None:
    still.upsert(vectors(1200))  # of which the first are the centre
    far = vectors(1500, seed=3) * np.float32(0.01) + np.float32(1)
    still.upsert(far / np.linalg.norm(far, axis=1, keepdims=True), 1200)
    still.work()
    table = still.view.table
    assert len(np.unique(table.sketches[1200:], axis=0)) < 700, "many have equal sketches"
    assert still.counts == (0, 2700, 0, 0)

"""The nearest rows over all places: right whatever the filter, the metric and k, and while rows move from place to place."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dataplane.collections import loading
from dataplane.collections import nearest as nearest_module
from dataplane.collections.nearest import best_by_sketch
from dataplane.hot import copies
from dataplane.hot.graph import exact_scores
from dataplane.hot.table import FRESH, HOT, LOOSE, WARM
from dataplane.rows import Metric
from tests.dataplane.planes import DIMENSIONS, vectors
from tests.dataplane.stilled import Stilled, found_ids, stilled

COUNT = 3000
STORED = vectors(COUNT)
QUERIES = vectors(15, seed=9)
PLACES = (300, 1600, 500, 600)  # rows that are fresh, hot, loose and warm


def prepare(folder: Path, metric: Metric) -> None:
    """A folder in which 1600 rows are in a snapshot's graph, 600 in a shard, and 500 in RocksDB alone."""
    with stilled(folder, DIMENSIONS, metric=metric) as still:
        still.upsert(STORED[:1600])
        still.work()
        still.upsert(STORED[1600:2700], 1600)
        still.keeper.moves.demote(still.collection, np.arange(1600, 2200))


@contextmanager
def spread_over(folder: Path) -> Iterator[Stilled]:
    with stilled(folder, DIMENSIONS) as still:
        still.keeper.steps.adopt(still.collection)
        still.upsert(STORED[2700:], 2700)
        still.keeper.memory_bytes = 0
        assert still.counts == PLACES
        yield still


@pytest.fixture(scope="module", params=["cosine", "l2"])
def spread(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stilled]:
    """Rows at every place."""
    folder = tmp_path_factory.mktemp("spread")
    prepare(folder, request.param)
    with spread_over(folder) as still:
        yield still


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, "cosine")
    return folder


@pytest.fixture
def one(prepared: Path, tmp_path: Path) -> Iterator[Stilled]:
    """For tests that change it."""
    shutil.copytree(prepared, tmp_path / "copy")
    with spread_over(tmp_path / "copy") as still:
        yield still


def true_order(query: np.ndarray, metric: Metric = "cosine", allowed: np.ndarray | None = None) -> list[str]:
    """Ids from the best to the worst. Row n is in slot n."""
    scores = exact_scores(query, STORED, metric)
    order = np.argsort(-scores, kind="stable")
    return [f"r{n}" for n in order.tolist() if allowed is None or allowed[n]]


def test_every_place_is_searched_and_scores_are_exact(spread: Stilled) -> None:
    found = 0
    for query in QUERIES:
        ids, result = found_ids(spread.view, query)
        scores = exact_scores(query, STORED, spread.collection.metric)
        np.testing.assert_allclose(result.scores, scores[[int(id_[1:]) for id_ in ids]], atol=1e-5)
        assert (np.diff(result.scores) <= 0).all()
        assert len(set(ids)) == 10
        assert result.places == {FRESH, HOT, LOOSE, WARM}
        assert result.complete
        assert 0 < result.warm_rows_read <= 600
        found += len(set(ids) & set(true_order(query, spread.collection.metric)[:10]))
    assert found / 150 >= 0.99


def test_exact_is_the_whole_truth_in_order(spread: Stilled) -> None:
    for query in QUERIES[:5]:
        ids, result = found_ids(spread.view, query, k=100, exact=True)
        assert ids == true_order(query, spread.collection.metric)[:100]
        assert result.warm_rows_read == 600


@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("exact_rows", [100, 4096])  # from how many on the graph or the sketches are asked
def test_a_filter_of_any_share_keeps_recall_and_lets_nothing_else_through(
    spread: Stilled, share: float, exact_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest_module, "EXACT_ROWS", exact_rows)
    allowed = np.random.default_rng(5).random(COUNT) < share
    found = wanted = 0
    for query in QUERIES:
        true = true_order(query, spread.collection.metric, allowed)[:10]
        ids, _ = found_ids(spread.view, query, matching=allowed)
        assert all(allowed[int(id_[1:])] for id_ in ids)
        assert len(ids) == len(true)
        found += len(set(ids) & set(true))
        wanted += len(true)
        ids, _ = found_ids(spread.view, query, matching=allowed, exact=True)
        assert ids == true
    assert found >= 0.985 * wanted


def test_a_filter_that_only_rows_of_one_place_match_finds_them(spread: Stilled) -> None:
    places = spread.view.table.place
    for place in (FRESH, HOT, LOOSE, WARM):
        allowed = places == place
        ids, _ = found_ids(spread.view, QUERIES[0], matching=allowed)
        true = true_order(QUERIES[0], spread.collection.metric, allowed)[:10]
        assert len(set(ids) & set(true)) >= 9


@pytest.mark.parametrize("exact", [False, True])
def test_more_than_there_are_gives_all_of_them_in_order(spread: Stilled, exact: bool) -> None:
    ids, result = found_ids(spread.view, QUERIES[0], k=COUNT + 1000, exact=exact)
    scores = exact_scores(QUERIES[0], STORED, spread.collection.metric)[[int(id_[1:]) for id_ in ids]]
    np.testing.assert_allclose(result.scores, scores, atol=1e-5)
    assert (np.diff(result.scores) <= 0).all()
    assert len(ids) == len(set(ids)) >= (COUNT if exact else 0.999 * COUNT)


def test_a_deadline_that_has_passed_leaves_out_what_is_not_in_memory(spread: Stilled) -> None:
    ids, result = found_ids(spread.view, QUERIES[0], k=2000, deadline=time.monotonic() - 1, exact=True)
    assert not result.complete
    in_memory = np.isin(spread.view.table.place, (FRESH, HOT))
    assert ids == true_order(QUERIES[0], spread.collection.metric, in_memory)[:2000]
    assert result.places == {FRESH, HOT}
    assert result.warm_rows_read == 0


def test_rows_whose_time_has_come_are_not_found_at_any_place(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:1600], expires_ms=10**13)
        still.upsert(STORED[1600:1700], 1600)
        still.work()
        still.keeper.moves.demote(still.collection, np.arange(0, 500))
        assert still.counts == (0, 1200, 0, 500)
        for exact in (False, True):
            ids, _ = found_ids(still.view, QUERIES[0], k=50, now_ms=10**13, exact=exact)
            assert len(ids) == 50
            assert all(int(id_[1:]) >= 1600 for id_ in ids)


def test_nothing_is_found_after_all_rows_have_ended_at_whatever_place(one: Stilled) -> None:
    view = one.view
    assert one.delete([f"r{n}" for n in range(COUNT)]) == COUNT
    for old_or_new in (view, one.view):
        for exact in (False, True):
            ids, result = found_ids(old_or_new, QUERIES[0], exact=exact)
            assert ids == []
            assert result.complete


def test_an_empty_collection_has_nothing(tmp_path: Path) -> None:
    with stilled(tmp_path, 5) as still:
        assert found_ids(still.view, np.ones(5, np.float32))[0] == []
        assert found_ids(still.view, np.ones(5, np.float32), exact=True, matching=np.empty(0, np.bool_))[0] == []


def test_a_damaged_row_group_is_read_from_rocksdb(one: Stilled) -> None:
    (entry,) = one.collection.shards.entries
    file = one.collection.folder / entry.name
    content = bytearray(file.read_bytes())
    at = entry.groups[0].offset + entry.groups[0].head - 5
    content[at] ^= 1
    file.write_bytes(content)
    one.collection.shards._shards[entry.name]._checked[0] = 0  # as if it had not been read yet
    ids, _ = found_ids(one.view, QUERIES[0], exact=True)
    assert ids == true_order(QUERIES[0])[:10]
    (why,) = one.collection.damaged.values()
    assert entry.name in why


# Searches that began before rows moved


def merge(still: Stilled) -> None:
    still.keeper.memory_bytes = 1 << 30
    still.keeper.steps.merge(still.collection)
    still.keeper.steps.merge(still.collection)


def gather(still: Stilled) -> None:
    still.keeper.memory_bytes = 1 << 30
    still.keeper.steps.gather(still.collection)


def demote_all_hot(still: Stilled) -> None:
    view = still.view.table
    still.keeper.moves.demote(still.collection, np.flatnonzero(view.place == HOT))


def demote_all_loose(still: Stilled) -> None:
    view = still.view.table
    still.keeper.moves.demote(still.collection, np.flatnonzero(view.place == LOOSE))


def drop_graph(still: Stilled) -> None:
    still.keeper.moves.drop_graph(still.collection)


def abandon_shard(still: Stilled) -> None:
    (entry,) = still.collection.shards.entries
    still.keeper.moves.abandon_shard(still.collection, entry.name, "a test")


def promote(still: Stilled) -> None:
    still.keeper.memory_bytes = 1 << 30
    still.touch([f"r{n}" for n in np.flatnonzero(still.view.table.place == WARM)], times=5)
    still.keeper.steps.promote(still.collection)


def shrink(still: Stilled) -> None:
    still.keeper.memory_bytes = 1
    still.keeper.steps.shrink(still.collection)


def compact(still: Stilled) -> None:
    still.keeper.moves.drop_graph(still.collection)
    still.collection.table.ended += COUNT  # as many as it takes
    still.keeper.moves.compact_table(still.collection)


def remake(still: Stilled) -> None:
    loading.remake(still.collection)


MOVES = {
    merge: FRESH,
    gather: LOOSE,
    demote_all_hot: HOT,
    demote_all_loose: LOOSE,
    drop_graph: HOT,
    abandon_shard: WARM,
    promote: WARM,
    shrink: HOT,
    compact: HOT,
    remake: HOT,
}  # and from where they move rows


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("alone", [False, True])  # whether there are rows nowhere else
def test_a_search_that_began_before_rows_moved_misses_none_of_them(
    one: Stilled, move: Callable[[Stilled], None], alone: bool
) -> None:
    allowed = np.ones(COUNT, np.bool_)
    if alone:
        allowed = one.view.table.place == MOVES[move]
        one.delete([f"r{n}" for n in np.flatnonzero(~allowed)])
    turn = one.collection.readers.enter()
    view = one.view
    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move, one)
        wait([moving], 0.2)  # it has done its work, or waits for this search to end
        found = 0
        try:
            for query in QUERIES:
                true = true_order(query, allowed=allowed)[:10]
                ids, result = found_ids(view, query, exact=True)
                assert ids == true
                ids, result = found_ids(view, query)
                assert result.complete
                assert len(set(ids)) == 10
                found += len(set(ids) & set(true))
        finally:
            one.collection.readers.leave(turn)
        moving.result(30)
    assert found / 150 >= 0.99
    ids, _ = found_ids(one.view, QUERIES[0], exact=True)
    assert ids == true_order(QUERIES[0], allowed=allowed)[:10]


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_looking_at_slots_in_parts_gives_the_best_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: Metric
) -> None:
    with stilled(tmp_path, DIMENSIONS, metric=metric) as still:
        still.upsert(vectors(3000))
        still.work()
        with still.keeper.held():
            still.keeper.moves.drop_graph(still.collection)
        view, query, every = still.collection.view(), vectors(1, seed=9)[0], np.arange(3000)
        whole = best_by_sketch(view, query, every, 50)
        monkeypatch.setattr("dataplane.collections.nearest.SCANNED", 100)
        assert best_by_sketch(view, query, every, 50).tolist() == whole.tolist()
        assert len(whole) == 50


def test_by_sketch_the_groups_of_the_fifty_best_warm_rows_are_read(tmp_path: Path) -> None:
    stored = vectors(4000, dimensions=256)
    with stilled(tmp_path, 256) as still:
        still.upsert(stored)
        still.work()
        still.keeper.moves.demote(still.collection, np.arange(4000))
        table, sketcher = still.view.table, still.collection.sketcher
        assert sketcher is not None
        for query in vectors(5, seed=9, dimensions=256):
            estimates = sketcher.query(query).estimate(table.sketches, table.factors, table.bases)
            groups = np.unique(table.group[np.argsort(-estimates, kind="stable")[:50]])
            _, result = found_ids(still.view, query)
            assert result.warm_rows_read == np.isin(table.group, groups).sum()
            assert result.warm_rows_read < 3000


def test_by_sketch_the_nearest_of_vectors_of_any_length_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    stored = vectors(3000, dimensions=256) * rng.uniform(0.3, 3.0, (3000, 1)).astype(np.float32)
    held = 0
    with stilled(tmp_path, 256, metric="l2") as still:
        still.upsert(stored)
        still.work()
        still.keeper.moves.demote(still.collection, np.arange(3000))
        for query in vectors(10, seed=9, dimensions=256):
            best = best_by_sketch(still.view, query, np.arange(3000), 60)
            held += len(set(best.tolist()) & set(np.argsort(((stored - query) ** 2).sum(axis=1))[:10].tolist()))
    assert held >= 95


@pytest.mark.parametrize("place", [FRESH, WARM])
def test_many_of_the_best_rows_may_have_ended(tmp_path: Path, place: int) -> None:
    query = QUERIES[0]
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:200])
        if place == WARM:
            still.keeper.moves.demote(still.collection, np.arange(200))
        order = [id_ for id_ in true_order(query) if int(id_[1:]) < 200]
        still.delete(order[:38])
        assert still.counts[place] == 162
        ids, _ = found_ids(still.view, query)
        assert ids == order[38:48]


def test_what_is_read_in_parts_is_all_compared(spread: Stilled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest_module, "SCANNED", 100)
    ids, result = found_ids(spread.view, QUERIES[0], k=100, exact=True)
    assert ids == true_order(QUERIES[0], spread.collection.metric)[:100]
    assert result.warm_rows_read == 600


def test_where_the_graph_gives_too_few_the_hot_rows_are_looked_for_by_sketch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MOST_COPIES", 1 << 20)  # islands of equal rows, from which no link leads on
    stored = np.random.default_rng(0).permutation(np.repeat(vectors(200, seed=2), 50, axis=0))
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(stored)
        still.work()
        assert still.counts == (0, len(stored), 0, 0)
        graph = still.collection.graph
        assert graph is not None
        short = [query for query in vectors(60, seed=9) if len(graph.search(query, 100)[0]) < 100]
        assert len(short) > 5
        for query in short:
            found, result = found_ids(still.view, query, k=100)
            scores = stored @ query
            assert len(set(found)) == 100
            assert (scores[result.slots] >= np.sort(scores)[-100] - 1e-5).mean() >= 0.97


def test_an_answer_that_has_all_hot_rows_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:1200])
        still.work()
        still.delete([f"r{number}" for number in range(1150, 1200)])
        monkeypatch.delattr(nearest_module, "_hot_by_sketch")
        found, result = found_ids(still.view, QUERIES[0], k=1300)
        assert len(set(found)) == 1150
        assert result.places == {HOT}

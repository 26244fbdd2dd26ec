"""The graph: what it finds is near the truth, what is masked is never found, and a damaged file is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane.errors import Damaged
from dataplane.hot.graph import Graph, Metric, exact_scores, node_bytes
from tests.dataplane.planes import DIMENSIONS, vectors

STORED = vectors(1500)
QUERIES = vectors(20, seed=9)
ROWS = np.arange(1500, dtype=np.uint64) * 3 + 1


def made(metric: Metric = "dot", count: int = 1500) -> Graph:
    graph = Graph(DIMENSIONS, metric)
    for start in range(0, count, 256):
        stop = min(start + 256, count)
        assert graph.add(ROWS[start:stop], STORED[start:stop]) == start
    return graph


@pytest.fixture(scope="module")
def shared() -> Graph:
    return made()


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_the_nearest_are_found_with_their_exact_scores(metric: Metric) -> None:
    graph, found = made(metric), 0
    for query in QUERIES:
        rows, scores = graph.search(query, 10)
        true = exact_scores(query, STORED, metric)
        np.testing.assert_allclose(scores, true[(rows - 1) // 3], atol=1e-5)
        assert (np.diff(scores) <= 0).all()
        found += len(set(rows.tolist()) & set(ROWS[np.argsort(-true)[:10]].tolist()))
    assert found / 200 >= 0.99


@pytest.mark.parametrize("metric", ["dot", "l2"])
def test_exact_scores_are_what_numpy_says(metric: Metric) -> None:
    query = QUERIES[0].astype(np.float64)
    expected = -((STORED - query) ** 2).sum(axis=1) if metric == "l2" else STORED @ query
    np.testing.assert_allclose(exact_scores(QUERIES[0], STORED, metric), expected, atol=1e-5)
    assert exact_scores(QUERIES[0], STORED[:0], metric).shape == (0,)


def test_an_empty_graph_finds_nothing() -> None:
    rows, scores = Graph(DIMENSIONS, "dot").search(QUERIES[0], 5)
    assert (rows.tolist(), scores.tolist()) == ([], [])


@pytest.mark.parametrize("metric", ["dot", "l2"])
def test_more_than_there_are_gives_those_that_there_are(metric: Metric) -> None:
    graph = made(metric, 5)
    rows, scores = graph.search(QUERIES[0], 50)
    assert sorted(rows.tolist()) == ROWS[:5].tolist()
    assert np.isfinite(scores).all()


def test_a_masked_node_is_never_found_and_the_others_are() -> None:
    graph = made()
    gone = np.arange(0, 1500, 3)
    for node in gone.tolist():
        graph.end(node)
        graph.end(node)
    assert graph.masked == len(gone)
    alive = np.ones(1500, np.bool_)
    alive[gone] = False
    assert (graph.shown(np.arange(1500)) == alive).all()
    found = 0
    for query in QUERIES:
        rows, _ = graph.search(query, 10)
        nodes = (rows.astype(np.int64) - 1) // 3
        assert alive[nodes].all()
        found += len(set(nodes.tolist()) & set(np.argsort(-np.where(alive, STORED @ query, -9))[:10].tolist()))
    assert found / 200 >= 0.98


def test_when_all_nodes_are_masked_nothing_is_found_until_others_come() -> None:
    graph = made(count=40)
    for node in range(40):
        graph.end(node)
    assert graph.search(QUERIES[0], 10)[0].tolist() == []
    graph.add(ROWS[40:50], STORED[40:50])
    assert set(graph.search(QUERIES[0], 10)[0].tolist()) == set(ROWS[40:50].tolist())


def test_vectors_and_scores_of_nodes_are_those_that_were_added(shared: Graph) -> None:
    nodes = np.array([7, 1499, 0, 7])
    assert (shared.vectors(nodes) == STORED[nodes]).all()
    every = np.arange(1500)
    np.testing.assert_allclose(shared.score(QUERIES[0], every), STORED @ QUERIES[0], atol=1e-5)
    assert shared.score(QUERIES[0], np.empty(0, np.int64)).shape == (0,)


def test_a_saved_graph_is_loaded_with_its_mask(shared: Graph, tmp_path: Path) -> None:
    shared.save(tmp_path / "g")
    live = np.ones(1500, np.bool_)
    live[::2] = False
    loaded = Graph.load(tmp_path / "g", Graph(DIMENSIONS, "dot"), shared.rows.copy(), live)
    assert (len(loaded), loaded.masked) == (1500, 750)
    rows, _ = loaded.search(QUERIES[0], 10)
    assert all(live[(row - 1) // 3] for row in rows.tolist())
    loaded.add(np.array([9999], np.uint64), QUERIES[:1])
    assert loaded.search(QUERIES[0], 1)[0].tolist() == [9999]


@pytest.mark.parametrize("damage", ["cut", "empty", "other bytes", "missing"])
def test_a_file_that_is_no_graph_is_refused(shared: Graph, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "g"
    shared.save(path)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other bytes": b"x" * 500}[damage])
    with pytest.raises(Damaged, match="graph"):
        Graph.load(path, Graph(DIMENSIONS, "dot"), shared.rows, np.ones(1500, np.bool_))


def test_a_graph_of_another_kind_is_refused(shared: Graph, tmp_path: Path) -> None:
    shared.save(tmp_path / "g")
    for like, count in ((Graph(DIMENSIONS + 1, "dot"), 1500), (Graph(DIMENSIONS, "dot"), 1499)):
        with pytest.raises(Damaged, match="not the one"):
            Graph.load(tmp_path / "g", like, shared.rows[:count], np.ones(count, np.bool_))


def test_a_graph_that_cannot_be_written_says_so(shared: Graph, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="could not be written"):
        shared.save(tmp_path / "no folder" / "g")


def test_reserved_memory_is_counted_from_the_beginning_and_nothing_moves_within_it() -> None:
    graph = Graph(DIMENSIONS, "dot", reserve=300)
    taken = graph.nbytes
    assert taken >= 300 * 4 * DIMENSIONS
    assert (graph.spare, graph.moving_bytes(300)) == (300, 0)
    graph.add(ROWS[:256], STORED[:256])
    assert (graph.spare, graph.moving_bytes(44)) == (44, 0)
    assert graph.moving_bytes(45) == 256 * 4 * DIMENSIONS
    graph.add(ROWS[256:400], STORED[256:400])
    assert graph.spare == 200  # it has doubled
    assert set(graph.search(QUERIES[0], 400)[0].tolist()) <= set(ROWS[:400].tolist())


def test_what_a_node_takes_is_about_what_is_said(shared: Graph) -> None:
    assert shared.nbytes / (1500 + shared.spare) == pytest.approx(node_bytes(DIMENSIONS), rel=0.25)


def test_a_search_beside_the_growing_of_the_mask_keeps_none_that_is_too_small() -> None:
    graph = made(count=1024)  # the mask is full
    graph.end(0)
    graph._selector = None
    inside, added = threading.Event(), threading.Event()
    options = graph._options

    def slow(ef: int) -> Any:
        inside.set()
        added.wait(1)  # the addition must not get at the mask meanwhile
        return options(ef)

    graph._options = slow  # type: ignore[method-assign]
    searching = threading.Thread(target=graph.search, args=(QUERIES[0], 10))
    searching.start()
    assert inside.wait(30)
    adding = threading.Thread(target=lambda: (graph.add(ROWS[1024:1100], STORED[1024:1100]), added.set()))
    adding.start()
    searching.join(30)
    adding.join(30)
    graph._options = options  # type: ignore[method-assign]
    for node in range(1024, 1100):
        assert ROWS[node] in graph.search(STORED[node], 10, ef=400)[0]


def test_searches_beside_additions_and_ends_find_only_what_is_there() -> None:
    graph = made(count=400)
    stop, wrong, searches = threading.Event(), [], [0]

    def search(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            query, k = QUERIES[rng.integers(0, 20)], int(rng.integers(1, 300))
            ended = set(gone)
            rows, scores = graph.search(query, k)
            nodes = (rows.astype(np.int64) - 1) // 3
            if ended & set(nodes.tolist()) or len(set(nodes.tolist())) < len(nodes) or not len(nodes):
                wrong.append(nodes)
            if not np.allclose(scores, STORED[nodes] @ query, atol=1e-4):
                wrong.append(scores)
            searches[0] += 1

    gone: list[int] = []
    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    ender = threading.Thread(target=lambda: [(graph.end(node), gone.append(node)) for node in range(0, 400, 2)])
    ender.start()
    for start in range(400, 1500, 50):
        graph.add(ROWS[start : start + 50], STORED[start : start + 50])
    ender.join()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert searches[0] > 0
    assert (len(graph), graph.masked) == (1500, 200)
    assert graph.shown(np.arange(1500)).sum() == 1300

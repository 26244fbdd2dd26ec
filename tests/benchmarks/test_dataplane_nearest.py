"""Exact neighbours, and the recall of answers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.nearest import CHUNK, nearest, recall


def test_neighbours_are_those_of_a_full_sort_across_the_chunks() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 8)).astype(np.float32)
    queries = rng.standard_normal((CHUNK + 3, 8)).astype(np.float32)
    expected = np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :5]
    assert np.array_equal(nearest(rows, queries, 5), expected)


def test_a_mask_leaves_the_nearest_of_the_rows_it_lets_through() -> None:
    rows = np.array([[4.0], [3.0], [2.0], [1.0]], np.float32)
    mask = np.array([False, True, False, True])
    assert nearest(rows, np.ones((1, 1), np.float32), 2, mask).tolist() == [[1, 3]]


def test_more_neighbours_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="3 neighbours of 2 rows"):
        nearest(np.ones((2, 1), np.float32), np.ones((1, 1), np.float32), 3)


def test_recall_is_the_share_of_the_truth_and_counts_nothing_twice() -> None:
    truth = np.array([[1, 2], [3, 4]])
    assert recall([[2, 1], [3, 9]], truth) == 0.75
    assert recall([[1, 1], []], truth) == 0.25
    with pytest.raises(ValueError, match="1 answers to 2 queries"):
        recall([[1, 2]], truth)

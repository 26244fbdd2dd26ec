"""The oracle that the choice of hot rows is measured against."""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.oracle import best_fixed_share, lfu_share, zipf_draws


def test_draws_follow_zipf() -> None:
    draws = zipf_draws(1000, 200_000, 1.0, np.random.default_rng(0))
    counts = np.bincount(draws, minlength=1000)
    assert len(counts) == 1000
    harmonic = (1 / np.arange(1, 1001)).sum()
    for rank in (1, 2, 10):
        assert abs(counts[rank - 1] / 200_000 - 1 / rank / harmonic) < 0.005


def test_the_oracle_is_the_best_of_all_sets() -> None:
    accesses = np.random.default_rng(1).integers(0, 8, (30, 3)) ** 2 % 8
    best = max(np.isin(accesses, kept).mean() for kept in itertools.combinations(range(8), 3))
    assert best_fixed_share(accesses, 8, 3) == best


def test_an_oracle_with_room_for_all_serves_all() -> None:
    assert best_fixed_share(np.array([[0, 5], [9, 5]]), 10, 3) == 1.0


def test_counting_keeps_what_was_asked_for_most_and_begins_with_what_it_is_given() -> None:
    hot = np.array([True, False, False])
    seen_before = np.array([[1], [1], [2]])
    assert lfu_share(seen_before, np.array([[1], [0]]), hot, every=1) == 0.5
    assert hot.tolist() == [True, False, False]
    nothing = np.empty((0, 1), np.int64)
    assert lfu_share(nothing, np.array([[1], [1], [1]]), hot, every=1) == 2 / 3  # the first time it was not there yet
    assert lfu_share(nothing, np.array([[1], [1], [1]]), hot, every=3) == 0.0


def test_among_rows_that_are_asked_for_alike_the_hot_ones_stay() -> None:
    hot = np.array([False, False, True, True])
    assert lfu_share(np.array([[0], [2], [1], [3]]), np.array([[2], [3]]), hot, every=4) == 1.0

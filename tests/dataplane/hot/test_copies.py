"""Copies: of equal vectors a few are admitted, and of others all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dataplane.hot.copies import FIRST, LEAST_SLOTS, MOST_COPIES, SLOTS, Copies

DIMENSIONS = 32
Floats = np.ndarray[Any, np.dtype[np.float32]]


def different(count: int, dimensions: int = DIMENSIONS) -> Floats:
    """No two are equal."""
    return np.random.default_rng(0).standard_normal((count, dimensions)).astype(np.float32)


def copies(nodes: int = 1000, dimensions: int = DIMENSIONS) -> Copies:
    made = Copies(dimensions)
    made.begin(nodes)
    return made


def same(one: int, count: int) -> Floats:
    """Vector number `one`, so many times."""
    return np.repeat(different(50)[one : one + 1], count, axis=0)


@pytest.mark.parametrize("dimensions", [1, 2, 32, 384])
def test_vectors_that_differ_are_all_admitted(dimensions: int) -> None:
    stored = different(20_000, dimensions)
    made = copies(len(stored), dimensions)
    for start in range(0, len(stored), 256):
        assert made.admit(stored[start : start + 256]).all()


@pytest.mark.parametrize("at", [0, DIMENSIONS - 1])
def test_the_least_difference_makes_another_vector(at: int) -> None:
    made, near = copies(), same(0, MOST_COPIES)
    assert made.admit(near).all()
    near[:, at] = np.nextafter(near[:, at], np.float32(9))
    assert made.admit(near).all()


def test_of_equal_ones_within_a_batch_the_first_are_admitted() -> None:
    stored = different(40)
    stored[5:35] = stored[5]
    admitted = copies().admit(stored)
    assert admitted.tolist() == [True] * (5 + MOST_COPIES) + [False] * (30 - MOST_COPIES) + [True] * 5


def test_of_equal_ones_in_many_batches_as_many_are_admitted() -> None:
    made = copies()
    mixed = np.concatenate([same(0, 3), same(1, 2)])
    taken = np.array([made.admit(mixed) for _ in range(6)])
    assert taken[:, :3].sum() == taken[:, 3:].sum() == MOST_COPIES
    assert not taken[-1].any()


def test_what_the_graph_has_already_counts_even_if_it_is_more() -> None:
    made = copies()
    made.count(same(0, 5))
    made.count(same(1, 10_000))
    made.count(same(1, 10_000))
    assert made.admit(same(0, 10)).sum() == MOST_COPIES - 5
    assert not made.admit(same(1, 10)).any()


def test_to_begin_anew_forgets_and_gives_room_for_more() -> None:
    made = Copies(DIMENSIONS)
    assert made.nbytes == 0
    assert made.short_for(1)
    made.begin(0)
    assert made.nbytes == FIRST
    made.admit(same(0, MOST_COPIES))
    assert not made.short_for(FIRST // LEAST_SLOTS - MOST_COPIES)
    assert made.short_for(FIRST // LEAST_SLOTS - MOST_COPIES + 1)
    made.begin(1 << 15)
    assert made.nbytes == SLOTS << 15
    assert made.admit(same(0, MOST_COPIES)).all()
    made.forget()
    assert made.nbytes == 0


def test_rows_that_are_refused_take_no_room() -> None:
    made = copies(0)
    for _ in range(10):
        made.admit(same(0, 1000))
    assert not made.short_for(FIRST // LEAST_SLOTS - MOST_COPIES)

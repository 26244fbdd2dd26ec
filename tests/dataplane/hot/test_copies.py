"""Copies: of equal sketches a few are admitted, and of others all."""

from __future__ import annotations

import numpy as np
import pytest

from dataplane.hot.copies import FIRST, LEAST_SLOTS, MOST_COPIES, SLOTS, Copies

WORDS = 4
Words = np.ndarray[tuple[int, int], np.dtype[np.uint64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


def sketches(count: int, seed: int = 0) -> tuple[Words, Floats]:
    """No two are equal."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << 64, (count, WORDS), np.uint64), rng.uniform(0.1, 1, count).astype(np.float32)


def copies(nodes: int = 1000, dimensions: int = 64 * WORDS, words: int = WORDS) -> Copies:
    made = Copies(dimensions, words)
    made.begin(nodes)
    return made


def same(one: int, count: int) -> tuple[Words, Floats]:
    """Sketch number `one`, so many times."""
    words, factors = sketches(50)
    return np.repeat(words[one : one + 1], count, axis=0), np.repeat(factors[one : one + 1], count)


def test_sketches_that_differ_are_all_admitted() -> None:
    count = 20_000
    made = copies(count)
    for start in range(0, count, 256):
        words, factors = sketches(count)
        assert made.admit(words[start : start + 256], factors[start : start + 256]).all()


@pytest.mark.parametrize("bit", [0, 31, 63])
@pytest.mark.parametrize("word", [0, WORDS - 1])
def test_one_bit_makes_another_sketch(word: int, bit: int) -> None:
    made = copies()
    words, factors = same(0, MOST_COPIES)
    assert made.admit(words, factors).all()
    words[:, word] ^= np.uint64(1 << bit)
    assert made.admit(words, factors).all()


def test_of_equal_ones_within_a_batch_the_first_are_admitted() -> None:
    words, factors = sketches(40)
    words[5:35] = words[5]
    admitted = copies().admit(words, factors)
    assert admitted.tolist() == [True] * (5 + MOST_COPIES) + [False] * (30 - MOST_COPIES) + [True] * 5


def test_of_equal_ones_in_many_batches_as_many_are_admitted() -> None:
    made = copies()
    mixed = np.concatenate([same(0, 3)[0], same(1, 2)[0]])
    taken = np.array([made.admit(mixed, np.ones(5, np.float32)) for _ in range(6)])
    assert taken[:, :3].sum() == taken[:, 3:].sum() == MOST_COPIES
    assert not taken[-1].any()


def test_what_the_graph_has_already_counts_even_if_it_is_more() -> None:
    made = copies()
    made.count(*same(0, 5))
    made.count(*same(1, 100_000))
    made.count(*same(1, 100_000))
    assert made.admit(*same(0, 10)).sum() == MOST_COPIES - 5
    assert not made.admit(*same(1, 10)).any()


def test_to_begin_anew_forgets_and_gives_room_for_more() -> None:
    made = Copies(64 * WORDS, WORDS)
    assert made.nbytes == 0
    assert made.short_for(1)
    made.begin(0)
    assert made.nbytes == FIRST
    made.admit(*same(0, MOST_COPIES))
    assert not made.short_for(FIRST // LEAST_SLOTS - MOST_COPIES)
    assert made.short_for(FIRST // LEAST_SLOTS - MOST_COPIES + 1)
    made.begin(1 << 15)
    assert made.nbytes == SLOTS << 15
    assert made.admit(*same(0, MOST_COPIES)).all()
    made.forget()
    assert made.nbytes == 0


def test_rows_that_are_refused_take_no_room() -> None:
    made = copies(0)
    for _ in range(10):
        made.admit(*same(0, 1000))
    assert not made.short_for(FIRST // LEAST_SLOTS - MOST_COPIES)


def test_where_sketches_have_few_bits_their_factors_tell_vectors_apart() -> None:
    words, _ = same(0, 1000)
    factors = np.linspace(0.5, 0.9, 1000, dtype=np.float32)
    few, many = copies(dimensions=8, words=1), copies(dimensions=64, words=1)
    assert few.admit(words[:, :1], factors).all()
    assert many.admit(words[:, :1], factors).sum() == MOST_COPIES


def test_where_sketches_have_few_bits_copies_are_still_found_out() -> None:
    words, factors = same(0, 1000)
    rounded = np.nextafter(factors, np.float32(2), dtype=np.float32)  # as if sketched with other rows
    made = copies(dimensions=8, words=1)
    admitted = made.admit(words[:, :1], np.where(np.arange(1000) % 2, factors, rounded))
    assert admitted.sum() in (MOST_COPIES, 2 * MOST_COPIES)

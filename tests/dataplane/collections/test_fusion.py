"""One ranking out of two."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.collections.fusion import reciprocal_rank
from dataplane.errors import InvalidInput

ranking = st.lists(st.tuples(st.integers(0, 30), st.floats(allow_nan=False)), max_size=20)


def test_the_row_that_is_first_in_both_lists_has_one() -> None:
    assert reciprocal_rank([(7, 0.9), (3, 0.8)], [(7, 12.0)]) == [(7, 1.0), (3, pytest.approx(0.5 * 61 / 62))]


def test_a_row_in_both_lists_is_before_the_first_of_one() -> None:
    fused = reciprocal_rank([(1, 0.9), (2, 0.8)], [(3, 5.0), (2, 4.0)])
    assert [row for row, _ in fused] == [2, 1, 3]
    assert fused[0][1] == pytest.approx(61 / 62)
    assert fused[1][1] == fused[2][1] == 0.5


def test_only_ranks_count_and_not_scores() -> None:
    near, far = [(1, 0.9), (2, 0.89)], [(1, 1000.0), (2, -1000.0)]
    assert reciprocal_rank(near, []) == reciprocal_rank(far, [])


def test_weights_say_whose_first_row_wins() -> None:
    vector, text = [(1, 0.9)], [(2, 5.0)]
    assert [row for row, _ in reciprocal_rank(vector, text, weights=(1.0, 2.0))] == [2, 1]
    assert reciprocal_rank(vector, text, weights=(1.0, 0.0)) == [(1, 1.0)]


def test_a_row_that_a_list_has_twice_counts_where_it_is_first() -> None:
    assert reciprocal_rank([(1, 0.9), (1, 0.8), (2, 0.7)], []) == reciprocal_rank([(1, 0.9), (2, 0.7)], [])


def test_nothing_and_nothing_is_nothing() -> None:
    assert reciprocal_rank([], []) == []


@pytest.mark.parametrize("weights", [(-1.0, 1.0), (0.0, 0.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_weights_that_cannot_be_are_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput) as refused:
        reciprocal_rank([(1, 1.0)], [], weights=weights)
    assert refused.value.param == "weights"


@pytest.mark.parametrize("k", [-1, math.nan, math.inf])
def test_a_k_that_cannot_be_is_refused(k: float) -> None:
    with pytest.raises(InvalidInput):
        reciprocal_rank([(1, 1.0)], [], k=k)


@given(ranking, ranking, st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, 100))
def test_every_row_has_one_score_over_0_and_at_most_1_and_they_fall(
    vector: list[tuple[int, float]], text: list[tuple[int, float]], for_vector: float, for_text: float, k: float
) -> None:
    fused = reciprocal_rank(vector, text, (for_vector, for_text), k)
    assert sorted(row for row, _ in fused) == sorted({row for row, _ in vector + text})
    scores = [score for _, score in fused]
    assert all(0 < score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)

"""Medians, ratios and percentiles of rounds."""

from __future__ import annotations

import pytest

from benchmarks.report import NotMeasured, Ratio, percentile, spread, table


def test_a_percentile_is_the_value_of_the_nearest_rank() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [percentile(values, q) for q in (0.0, 0.25, 0.5, 0.51, 0.99, 1.0)] == [10, 10, 20, 30, 40, 40]


def test_a_ratio_pairs_the_rounds_and_keeps_their_spread() -> None:
    assert Ratio.of([1, 4, 3], [1, 2, 1]) == Ratio(median=2, low=1, high=3)


@pytest.mark.parametrize("theirs", [[], [1.0, 0.0]])
def test_a_ratio_to_nothing_is_not_measured(theirs: list[float]) -> None:
    with pytest.raises(NotMeasured):
        Ratio.of([1.0] * len(theirs), theirs)


def test_a_percentile_of_nothing_is_not_measured() -> None:
    with pytest.raises(NotMeasured):
        percentile([], 0.5)


def test_a_spread_names_the_median_and_both_ends() -> None:
    assert spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 to 3.0)"


def test_columns_of_a_table_are_as_wide_as_their_widest_cell() -> None:
    assert table("T", ["a", "bb"], [["long", 1]]) == "\nT\na     bb\n----  --\nlong  1"

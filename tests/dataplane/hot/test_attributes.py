"""Masks of attribute columns, held against the definition of each filter."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.filters import Attribute, Comparison, Compound, Filter, matches, parse_filter
from dataplane.hot.attributes import DENSE_MINIMUM, AttributeColumns

KEYS = ["a", "b", "c"]
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, 0.5, 1e300, -1e300, 2**53, 2**53 + 1]),
    st.integers(2**60, 2**60 + 300),
)
values = st.one_of(st.sampled_from(["", "x", "y", "1", "True"]), st.booleans(), numbers)
attributes = st.dictionaries(st.sampled_from(KEYS), values, max_size=3)
rows_of_attributes = st.lists(attributes, max_size=40)


def comparison(kind: str, key: str, value: object) -> Filter:
    return parse_filter({"type": kind, "key": key, "value": value})


comparisons = st.one_of(
    st.builds(comparison, st.sampled_from(["eq", "ne"]), st.sampled_from([*KEYS, "d"]), values),
    st.builds(comparison, st.sampled_from(["gt", "gte", "lt", "lte"]), st.sampled_from([*KEYS, "d"]), numbers),
    st.builds(comparison, st.sampled_from(["in", "nin"]), st.sampled_from([*KEYS, "d"]), st.lists(values, max_size=6)),
)
filters = st.recursive(
    comparisons,
    lambda inner: st.builds(
        lambda kind, parts: Compound(kind, tuple(parts)),
        st.sampled_from(["and", "or"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def columns_of(rows: Sequence[Mapping[str, Attribute]], batch: int = 7) -> AttributeColumns:
    columns = AttributeColumns()
    for start in range(0, len(rows), batch):
        columns.append(rows[start : start + batch])
    return columns


def expected(filter: Filter, rows: Sequence[Mapping[str, Attribute]]) -> list[bool]:  # noqa: A002 - the field's word
    return [matches(filter, row) for row in rows]


@given(rows_of_attributes, filters, st.integers(1, 9))
def test_a_mask_is_what_matches_says_of_each_row(
    rows: list[dict[str, Attribute]],
    filter: Filter,  # noqa: A002 - the field's word
    batch: int,
) -> None:
    columns = columns_of(rows, batch)
    assert len(columns) == len(rows)
    for n in {0, len(rows) // 2, len(rows)}:
        mask = columns.mask(filter, n)
        assert mask.dtype == np.bool_
        assert mask.tolist() == expected(filter, rows[:n])


@given(rows_of_attributes, filters, st.data())
def test_the_rows_that_are_kept_answer_as_before(
    rows: list[dict[str, Attribute]],
    filter: Filter,  # noqa: A002 - the field's word
    data: st.DataObject,
) -> None:
    slots = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))) if rows else []
    kept = columns_of(rows).keep(np.array(slots, dtype=np.int64))
    left = [rows[slot] for slot in slots]
    assert len(kept) == len(slots)
    assert kept.mask(filter, len(slots)).tolist() == expected(filter, left)
    kept.append(rows)
    assert kept.mask(filter, len(slots) + len(rows)).tolist() == expected(filter, left + rows)


def mixed_rows(count: int, rng: np.random.Generator) -> list[dict[str, Attribute]]:
    """Keys that are everywhere, in the first rows only, in a few rows at random, and in the last rows only."""
    rows: list[dict[str, Attribute]] = []
    for at in range(count):
        row: dict[str, Attribute] = {"all": f"w{at % 5}" if at % 3 else at % 5}
        if at < count // 20:
            row["early"] = at % 2 == 0
        if rng.random() < 0.03:
            row["seldom"] = at
        if at > count * 19 // 20:
            row["late"] = "late"
        rows.append(row)
    return rows


MIXED = [
    comparison("eq", "all", "w1"),
    comparison("in", "all", [0, "w2", 3]),
    comparison("eq", "early", True),
    comparison("ne", "early", True),
    comparison("gte", "seldom", 9000),
    comparison("nin", "seldom", list(range(0, 20_000, 20))),
    comparison("eq", "late", "late"),
]


def test_columns_that_grow_and_change_between_dense_and_sparse_keep_their_answers() -> None:
    rows = mixed_rows(20_000, np.random.default_rng(1))
    columns = AttributeColumns()
    for start in range(0, len(rows), 1000):
        columns.append(rows[start : start + 1000])
    rows += [{"early": False}, {"seldom": 9001}]
    columns.append(rows[-2:])
    kept = np.arange(0, len(rows), 3)
    smaller = columns.keep(kept)
    for filter_ in MIXED:
        right = expected(filter_, rows)
        assert columns.mask(filter_, len(rows)).tolist() == right
        assert smaller.mask(filter_, len(kept)).tolist() == right[::3]


def test_keys_of_their_own_in_every_row_cost_memory_by_value_and_not_by_row_times_key() -> None:
    columns = AttributeColumns()
    rows: list[dict[str, Attribute]] = [{f"key {at}": at, "all": at} for at in range(3000)]
    columns.append(rows)
    assert columns.nbytes < 3000 * 1500  # as dense columns it would be 3000 x 3000 x 8
    assert columns.mask(comparison("eq", "key 2999", 2999), 3000).nonzero()[0].tolist() == [2999]


def test_a_key_that_was_common_and_becomes_rare_gives_its_memory_back() -> None:
    columns = AttributeColumns()
    columns.append([{"a": 1.0}] * (4 * DENSE_MINIMUM))
    for _ in range(40):
        columns.append([*[{}] * (4 * DENSE_MINIMUM - 1), {"a": 1.0}])
    assert columns.nbytes < 41 * 4 * DENSE_MINIMUM * 2
    assert int(columns.mask(comparison("eq", "a", 1), len(columns)).sum()) == 4 * DENSE_MINIMUM + 40


def test_keeping_few_rows_forgets_the_other_rows_strings_and_keys() -> None:
    columns = AttributeColumns()
    columns.append([{"name": f"a name of row {at}", f"only {at}": True} for at in range(2000)])
    kept = columns.keep(np.array([5]))
    assert kept.nbytes < columns.nbytes // 500
    assert kept.mask(comparison("eq", "name", "a name of row 5"), 1).tolist() == [True]
    assert columns.keep(np.array([], dtype=np.int64)).nbytes == 0


def test_a_mask_belongs_to_its_caller() -> None:
    columns = columns_of([{"a": 1}, {"a": 2}])
    for filter_ in (comparison("eq", "a", 1), comparison("ne", "none", 1)):
        columns.mask(filter_, 2)[:] = False
    assert columns.mask(comparison("ne", "none", 1), 2).tolist() == [True, True]
    assert columns.mask(comparison("eq", "a", 1), 2).tolist() == [True, False]


@pytest.mark.parametrize("kind", ["and", "or"])
def test_a_compound_of_one_is_that_one(kind: Any) -> None:
    columns = columns_of([{"a": 1}, {"a": 2}])
    assert columns.mask(Compound(kind, (Comparison("eq", "a", 1.0),)), 2).tolist() == [True, False]


def test_readers_see_their_rows_unchanged_while_the_writer_appends() -> None:
    rows = mixed_rows(12_000, np.random.default_rng(2))
    right = [np.array(expected(filter_, rows)) for filter_ in MIXED]
    columns = AttributeColumns()
    published, wrong = [0], list[tuple[int, int]]()

    def read() -> None:
        n = 0
        while n < len(rows):
            n = published[0]
            for at, filter_ in enumerate(MIXED):
                if not np.array_equal(columns.mask(filter_, n), right[at][:n]):
                    wrong.append((at, n))
            every_third = np.arange(0, n, 3)
            kept = columns.keep(every_third)
            if not np.array_equal(kept.mask(MIXED[0], len(every_third)), right[0][:n:3]):
                wrong.append((-1, n))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, len(rows), 50):
        columns.append(rows[start : start + 50])
        published[0] = len(columns)
    for reader in readers:
        reader.join()
    assert wrong == []

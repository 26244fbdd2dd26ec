"""The delta: rows in order, bounded, and views that nothing changes."""

from __future__ import annotations

import numpy as np

from dataplane.hot.delta import Delta


def filled(count: int, capacity: int = 1000) -> Delta:
    delta = Delta(3, capacity)
    add(delta, 1, count)
    return delta


def add(delta: Delta, first: int, count: int) -> None:
    rows = np.arange(first, first + count, dtype=np.uint64)
    delta.append(rows, np.repeat(rows.astype(np.float32)[:, None], 3, axis=1))


def test_rows_come_out_in_the_order_in_which_they_came_in() -> None:
    delta = filled(5)
    add(delta, 6, 300)
    view = delta.view()
    assert view.rows.tolist() == list(range(1, 306))
    assert (view.vectors == view.rows.astype(np.float32)[:, None]).all()
    assert delta.view(7).rows.tolist() == list(range(1, 8))
    assert delta.view(999).rows.tolist() == list(range(1, 306))


def test_the_oldest_rows_are_dropped() -> None:
    delta = filled(10)
    delta.drop(4)
    assert delta.view().rows.tolist() == list(range(5, 11))
    assert (len(delta), delta.room) == (6, 994)
    delta.drop(6)
    assert delta.view().rows.tolist() == []
    assert delta.view().vectors.shape == (0, 3)
    add(delta, 50, 2)
    assert delta.view().rows.tolist() == [50, 51]


def test_a_view_is_not_changed_by_what_comes_and_goes() -> None:
    delta = filled(200)
    view = delta.view()
    delta.drop(200)
    for first in range(1000, 3000, 100):
        add(delta, first, 100)
        delta.drop(60)
    assert view.rows.tolist() == list(range(1, 201))
    assert (view.vectors == view.rows.astype(np.float32)[:, None]).all()


def test_appended_vectors_are_copies() -> None:
    delta, vectors = Delta(3, 10), np.ones((1, 3), np.float32)
    delta.append(np.array([1], np.uint64), vectors)
    vectors[:] = 9
    assert delta.view().vectors.tolist() == [[1, 1, 1]]


def test_memory_follows_the_rows_and_is_given_back() -> None:
    delta = Delta(3, 4000)
    assert delta.nbytes == 0
    add(delta, 1, 4000)
    row = 8 + 3 * 4
    assert 4000 * row <= delta.nbytes <= 4000 * row + 256 * row
    assert delta.room == 0
    delta.drop(4000)
    assert delta.nbytes == 0


def test_a_delta_through_which_many_rows_go_does_not_grow() -> None:
    delta = filled(500)
    for first in range(501, 20_501, 100):
        add(delta, first, 100)
        delta.drop(100)
    assert delta.view().rows.tolist() == list(range(20_001, 20_501))
    assert delta.nbytes <= 1100 * 20


def test_what_growth_foretells_is_what_appending_takes() -> None:
    delta = Delta(3, 1000)
    for first in range(1, 900, 37):
        before, foretold = delta.nbytes, delta.growth(37)
        add(delta, first, 37)
        assert delta.nbytes - before == foretold


def test_only_rows_that_are_wanted_are_kept_and_views_keep_all() -> None:
    delta = filled(10)
    delta.drop(2)
    view = delta.view()
    delta.keep(view.rows % 2 == 0)
    assert delta.view().rows.tolist() == [4, 6, 8, 10]
    assert (delta.view().vectors == delta.view().rows.astype(np.float32)[:, None]).all()
    add(delta, 11, 1)
    assert delta.view().rows.tolist() == [4, 6, 8, 10, 11]
    assert view.rows.tolist() == list(range(3, 11))


def test_the_newest_rows_are_given_without_those_before() -> None:
    delta = filled(10)
    add(delta, 20, 300)
    for first, expected in (
        (0, [*range(1, 11), *range(20, 320)]),
        (15, range(20, 320)),
        (300, range(300, 320)),
        (2**63, []),
    ):
        rows, vectors = delta.view().since(first)
        assert rows.tolist() == list(expected)
        assert (vectors == rows.astype(np.float32)[:, None]).all()
        assert vectors.shape == (len(rows), 3)

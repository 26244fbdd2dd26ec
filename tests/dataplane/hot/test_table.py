"""The table: slots, places and their counts, heat, and views that stay what they were."""

from __future__ import annotations

import math
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from dataplane.hot.table import FRESH, HOT, LOOSE, NEVER_MS, WARM, Table, heat_of


def table(count: int = 5, *, first: int = 10) -> Table:
    """Rows 10, 12, 14, ... with the ids i0, i1, ..."""
    made = Table(1)
    add(made, count, first)
    return made


def add(made: Table, count: int, first: int, expires_ms: int | None = None) -> np.ndarray:
    rows = np.arange(first, first + 2 * count, 2, dtype=np.uint64)
    start = len(made)
    return made.append(rows, [f"i{start + n}" for n in range(count)], [expires_ms] * count, 100.0)


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_rows_have_slots_in_their_order_and_are_found_by_number() -> None:
    view = table().view()
    assert view.rows.tolist() == [10, 12, 14, 16, 18]
    assert view.slots_of(np.array([18, 9, 10, 11, 99, 14], np.uint64)).tolist() == [4, -1, 0, -1, -1, 2]
    assert view.counts == (5, 0, 0, 0)
    assert view.expires_ms.tolist() == [NEVER_MS] * 5
    assert Table(1).view().slots_of(np.array([3], np.uint64)).tolist() == [-1]


def test_a_row_that_ended_is_not_counted_and_keeps_its_slot() -> None:
    made = table()
    made.move(slots(0, 1), HOT)
    made.end(slots(1, 4))
    assert made.view().counts == (2, 1, 0, 0)
    assert (made.live, made.ended, len(made)) == (3, 2, 5)
    assert made.view().alive.tolist() == [True, False, True, True, False]
    made.move(slots(0, 1, 2), WARM)  # one of them has ended
    assert made.view().counts == (1, 0, 0, 2)


def test_places_in_a_view_stay_what_they_were_while_its_rows_go_on_to_end() -> None:
    made = table()
    view = made.view()
    made.move(slots(0, 1, 2), LOOSE)
    made.move(slots(1), HOT)
    made.end(slots(3))
    assert view.place.tolist() == [FRESH] * 5
    assert view.counts == (5, 0, 0, 0)
    assert made.view().place.tolist() == [LOOSE, HOT, LOOSE, FRESH, FRESH]
    assert view.alive.tolist() == [True, True, True, False, True]


def test_what_is_appended_is_not_in_a_view_that_was_taken_before() -> None:
    made = table()
    view = made.view()
    add(made, 1000, 100)
    made.move(np.arange(5, 1005), WARM)
    assert (len(view), len(made.view())) == (5, 1005)
    assert view.slots_of(np.array([100], np.uint64)).tolist() == [-1]
    assert made.view().counts == (5, 0, 0, 1000)


def test_expired_rows_are_not_live() -> None:
    made = table(2)
    add(made, 2, 100, expires_ms=5000)
    made.end(slots(0))
    view = made.view()
    assert view.live(4999).tolist() == [False, True, True, True]
    assert view.live(5000).tolist() == [False, True, False, False]
    assert view.live_of(slots(3, -1, 1, 0), 4999).tolist() == [True, False, True, False]
    assert view.live_of(slots(3, 1), 5000).tolist() == [False, True]


def test_ids_are_of_any_length_and_alphabet() -> None:
    made = Table(1)
    ids = ["a", "上海", "x" * 500, "é", " "]
    made.append(np.arange(5, dtype=np.uint64), ids, [None] * 5, 0.0)
    assert made.ids(np.arange(5)) == ids
    kept = made.kept(slots(1, 2, 4))
    assert kept.ids(np.arange(3)) == ["上海", "x" * 500, " "]


def test_heat_orders_as_accesses_that_fade_by_a_hundredth_an_hour() -> None:
    made = table(4)
    made.set_accessed(
        slots(0, 1, 2, 3), np.array([10, 10, 1, 40], np.float32), np.array([100, 90, 100, 10], np.float32)
    )
    now = 100.0
    faded = np.array([10, 10 * 0.99**10, 1, 40 * 0.99**90])
    heat = heat_of(*made.accessed())
    assert np.argsort(heat).tolist() == np.argsort(faded).tolist()
    np.testing.assert_allclose(heat + math.log(0.99) * now, np.log(faded), atol=1e-4)
    made.touch(slots(2, 2, 2), 101.0)
    accesses, hours = made.accessed()
    assert (accesses[2], hours[2]) == (4, 101)


def test_what_is_known_of_a_row_comes_along_when_the_table_is_made_anew() -> None:
    made = Table(2)
    add(made, 4, 10)
    made.set_sketches(
        np.arange(4), np.arange(8, dtype=np.uint64).reshape(4, 2), np.ones(4, np.float32), np.ones(4, np.float32)
    )
    made.set_nodes(slots(1, 3), np.array([7, 9]))
    made.set_groups(slots(3), 5)
    made.move(slots(3), WARM)
    made.end(slots(0))
    kept = made.kept(slots(1, 3))
    view = kept.view()
    assert view.rows.tolist() == [12, 16]
    assert view.node.tolist() == [7, 9]
    assert view.group.tolist() == [-1, 5]
    assert view.sketches.tolist() == [[2, 3], [6, 7]]
    assert view.counts == (1, 0, 0, 1)
    assert (kept.live, kept.ended) == (2, 0)
    add(kept, 3, 100)
    assert kept.view().counts == (4, 0, 0, 1)
    assert made.kept(slots()).view().counts == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_any_sequence_of_changes_leaves_what_a_simple_model_has(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("dataplane.hot.table.SCANNED", 16)
    rng = np.random.default_rng(seed)
    made, model, next_row = Table(1), dict[int, tuple[str, int]](), 1
    for _ in range(120):
        view = made.view()
        action = rng.integers(0, 5)
        some = np.flatnonzero(view.alive & (rng.random(len(view)) < 0.2))
        if action <= 1:
            count = int(rng.integers(1, 40))
            ids = [f"{next_row + n}!" for n in range(count)]
            made.append(np.arange(next_row, next_row + count, dtype=np.uint64), ids, [None] * count, 0.0)
            model |= {next_row + n: (id_, FRESH) for n, id_ in enumerate(ids)}
            next_row += count
        elif action == 2:
            made.end(some)
            for row in view.rows[some].tolist():
                del model[row]
        elif action == 3:
            place = int(rng.integers(0, 4))
            made.move(some, place)
            model |= {row: (model[row][0], place) for row in view.rows[some].tolist()}
        elif rng.random() < 0.3:
            made = made.kept(np.flatnonzero(view.alive))
    view = made.view()
    found = {
        int(view.rows[slot]): (made.ids(np.array([slot]))[0], int(view.place[slot]))
        for slot in np.flatnonzero(view.alive)
    }
    assert found == model
    assert view.counts == tuple(sum(place == at for _, place in model.values()) for at in range(4))
    assert made.live == len(model)
    assert made.nbytes > 0


def test_memory_is_counted_as_it_is_written_and_not_as_it_is_set_aside() -> None:
    made = Table(4)
    add(made, 262_000, 1)
    before, foretold = made.nbytes, made.growth(262_000)
    add(made, 262_000, 1_000_001)
    assert made.nbytes - before - 8 * 262_000 == pytest.approx(foretold, rel=0.1)  # an id has up to eight letters
    assert made.nbytes - 8 * 524_000 < 1.1 * made.growth(524_000)


def test_the_slots_of_live_rows_are_right_while_rows_end() -> None:
    made = Table(1)
    add(made, 100_000, 1)
    view, ending = made.view(), threading.Event()

    def end_and_begin() -> None:
        some = np.random.default_rng(0).integers(0, 100_000, 500)
        while not ending.is_set():
            view.alive[some] = False
            view.alive[some] = True

    other = threading.Thread(target=end_and_begin)
    other.start()
    try:
        found = [view.live_slots() for _ in range(40)]
    finally:
        ending.set()
        other.join()
    assert all((np.diff(each) > 0).all() and each[-1] < 100_000 for each in found)


def test_what_growing_takes_for_a_moment_is_told_shortly_before() -> None:
    made = Table(4)
    add(made, 40_000, 1)  # and there is room for three times as many more
    assert made.growing == 0
    add(made, 118_000, 100_001)
    assert made.growing == made.growth(158_000)
    add(made, 2001, 400_001)
    assert made.growing == 0
    assert len(made) == 160_001


def test_the_first_rows_at_a_place_are_found_across_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.hot.table.SCANNED", 4)
    made = table(15)
    made.move(slots(1, 2, 6, 9, 14), LOOSE)
    made.end(slots(2))
    view = made.view()
    assert view.first_at(LOOSE, 3).tolist() == [1, 6, 9]
    assert view.first_at(LOOSE, 99).tolist() == [1, 6, 9, 14]
    assert view.first_at(WARM, 5).tolist() == []
    assert view.first_at(FRESH, 0).tolist() == []


def test_a_table_of_some_slots_has_their_ids_however_long_they_are() -> None:
    made = Table(1)
    ids = ["", "a", "上海", "x" * 500, "b", "é"]
    made.append(np.arange(1, 7, dtype=np.uint64), ids, [None] * 6, 1.0)
    kept = made.kept(slots(0, 2, 3, 5))
    assert kept.ids(np.arange(4)) == ["", "上海", "x" * 500, "é"]
    kept.append(np.array([9], np.uint64), ["new"], [None], 1.0)
    assert kept.ids(np.array([4]))[0] == "new"
    assert [made.kept(slots()).live, len(made.kept(slots()))] == [0, 0]


def test_what_changes_while_a_table_is_made_anew_is_brought_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.hot.table.SCANNED", 3)
    old = table(8)
    old.end(slots(0, 5))
    old.watch()
    old.end(slots(1))  # after the look at who is alive, before they are copied
    kept = old.kept(slots(1, 2, 3, 4, 6, 7))
    old.end(slots(2, 7))
    add(old, 600, 100)  # its columns become others
    old.set_sketches(slots(9), np.array([[7]], np.uint64), np.ones(1, np.float32), np.ones(1, np.float32))
    old.move(slots(9), LOOSE)
    old.end(slots(8))
    kept.follow(old, 8, 600)
    old.end(slots(3, 10))
    kept.follow(old, 600, 608)
    old.end(slots(607))
    kept.end_late(old)
    new, before = kept.view(), old.view()
    live, was = np.flatnonzero(new.alive), np.flatnonzero(before.alive)
    assert new.rows[live].tolist() == before.rows[was].tolist()
    assert kept.ids(live) == old.ids(was)
    assert new.place[live].tolist() == before.place[was].tolist()
    assert new.sketches[new.slots_of(before.rows[9:10])].tolist() == [[7]]
    assert (kept.live, kept.ended, new.counts) == (old.live, len(kept) - old.live, before.counts)


def test_after_it_was_made_anew_nobody_notes_who_ends() -> None:
    old = table(4)
    old.watch()
    old.end(slots(1))
    old.unwatch()
    old.end(slots(2))
    kept = old.kept(slots(0, 3))
    kept.end_late(old)
    assert kept.view().rows.tolist() == [10, 16]


def test_to_make_a_table_anew_takes_little_more_than_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.hot.table.SCANNED", 1024)
    made = Table(4)
    made.append(
        np.arange(20_000, dtype=np.uint64), [f"a document's id {n:020d}" for n in range(20_000)], [None] * 20_000, 0.0
    )
    tracemalloc.start()
    try:
        kept = made.kept(np.arange(20_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept.ids(np.array([19_999]))[0] == made.ids(np.array([19_999]))[0]
    assert peak < 1.5 * kept.nbytes


def test_a_view_that_was_overtaken_by_a_change_is_nobody_elses() -> None:
    class Overtaken(dict[str, Any]):
        """Rows come while a view is taken without the lock."""

        def __getitem__(self, name: str) -> Any:
            if name == "bases" and made._columns is self:
                made._columns = dict(self)
                add(made, 1, 100)
            return super().__getitem__(name)

    made = table(2)
    made._columns = Overtaken(made._columns)
    assert made.view().rows.tolist() == [10, 12]
    assert made.view().rows.tolist() == [10, 12, 100]

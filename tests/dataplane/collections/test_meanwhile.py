"""A row that is there all the time is found, in one version, however often it is replaced beside the search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.collections import meanwhile, searching
from dataplane.collections.nearest import nearest
from dataplane.filters import parse_filter
from dataplane.rows import CollectionSpec, Row, SearchQuery
from dataplane.store import DataPlane, opened
from tests.dataplane.planes import DIMENSIONS, config, exact, vectors
from tests.dataplane.stilled import stilled

STORED = vectors(1500)
QUERY = vectors(1, seed=9)[0]


def after_nearest(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], times: int = 1) -> None:
    """Have the collection changed after each of the first readings of vectors, and before the answer is made."""
    left = [times]

    def beside(*args: Any) -> Any:
        found = nearest(*args)
        if left[0]:
            left[0] -= 1
            change()
        return found

    monkeypatch.setattr(searching, "nearest", beside)


@pytest.mark.parametrize("hot", [True, False])
@pytest.mark.parametrize("fetch", [True, False])
def test_rows_that_are_replaced_during_a_search_are_in_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: bool, fetch: bool
) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        count = 1500 if hot else 300
        still.upsert(STORED[:count])
        still.work()
        best = exact(STORED[:count], QUERY)
        numbers = [int(id_[1:]) for id_ in best]

        def change() -> None:
            for number in numbers:
                still.upsert(STORED[number : number + 1], number)

        after_nearest(monkeypatch, change)
        result = still.search(QUERY, fetch=fetch)
        assert [hit.id for hit in result.hits] == best
        assert result.complete


def test_rows_that_are_deleted_during_a_search_give_their_places_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED)
        still.work()
        best = exact(STORED, QUERY, k=14)
        after_nearest(monkeypatch, lambda: (still.delete(best[:4]), None)[1])
        assert still.ids(QUERY, exact=True) == best[4:]


def test_a_row_that_no_longer_passes_the_filter_is_not_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:100])
        only = parse_filter({"type": "lt", "key": "n", "value": 100})
        best = exact(STORED[:100], QUERY)
        after_nearest(monkeypatch, lambda: still.upsert(STORED[:1], 500, ids=best[:1]))
        assert best[0] not in still.ids(QUERY, filter=only)


def test_rows_that_go_on_being_replaced_make_the_answer_incomplete_and_not_endless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:50])
        view = still.collection.view
        monkeypatch.setattr(still.collection, "view", lambda: (view(), still.upsert(STORED[:1]))[0])
        result = still.search(QUERY)
        assert not result.complete
        assert len(result.hits) == 10


def test_a_row_that_the_full_text_names_is_followed_to_what_replaced_it(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.upsert(STORED[:20], texts=[f"word{number}" for number in range(20)])
        still.index_text()
        row = still.row("r7")
        still.upsert(STORED[7:8], 7, texts=["word7"])
        still.delete(["r8"])
        _, text = meanwhile.followed(still.collection, None, [(row, 2.0), (9, 1.0), (10, 0.5)])
        assert text == [(still.row("r7"), 2.0), (10, 0.5)]
        passes, fails = (parse_filter({"type": "eq", "key": "n", "value": value}) for value in (7, 8))
        assert meanwhile.followed(still.collection, passes, [(row, 2.0)])[1] == [(still.row("r7"), 2.0)]
        assert meanwhile.followed(still.collection, fails, [(row, 2.0)])[1] == []


async def test_beside_a_writer_that_replaces_everything_every_search_finds_all(tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as plane:
        await plane.create_collection("t", "c", CollectionSpec(dimensions=DIMENSIONS))
        rows = [Row(id=f"r{number}", vector=STORED[number], text=f"note {number}") for number in range(10)]
        await plane.upsert("t", "c", rows)
        writing = asyncio.create_task(_replace(plane, rows))
        wrong = []
        for number in range(150):
            query = SearchQuery(vector=STORED[number], exact=number % 2 == 0, fetch=number % 3 == 0)
            result = await plane.search("t", "c", query)
            if result.complete and sorted(hit.id for hit in result.hits) != sorted(row.id for row in rows):
                wrong.append(result)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert wrong == []


async def _replace(plane: DataPlane, rows: list[Row]) -> None:
    while True:
        await plane.upsert("t", "c", rows)


def test_the_latest_rows_that_ended_are_known(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:5])
        view = still.view
        still.delete(["r1"])
        still.delete(["r3"])
        assert meanwhile.ended_since(still.collection, view).tolist() == [4, 2]
        assert meanwhile.ended_since(still.collection, still.view).tolist() == []

"""A search from query to hits: content, filters, words, tiers; and right beside everything that changes a collection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataplane.collections import nearest, searching
from dataplane.collections.readers import Readers
from dataplane.collections.view import CollectionView
from dataplane.errors import DimensionMismatch, InvalidInput
from dataplane.filters import Filter, parse_filter
from dataplane.hot.attributes import AttributeColumns
from dataplane.hot.table import HOT, WARM
from dataplane.rows import SearchQuery
from tests.dataplane.planes import DIMENSIONS, exact, vectors
from tests.dataplane.stilled import Stilled, stilled

STORED = vectors(1500)
QUERY = vectors(1, seed=9)[0]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stilled]:
    """Half of the rows hot, half warm, and their texts."""
    with stilled(tmp_path_factory.mktemp("searching"), DIMENSIONS, text=True) as still:
        still.upsert(STORED, texts=[f"note {n} about word{n % 50}" for n in range(1500)])
        still.work()
        still.keeper.moves.demote(still.collection, np.arange(0, 1500, 2))
        still.index_text()
        yield still


def test_hits_come_with_their_content_their_score_and_their_tier(shared: Stilled) -> None:
    result = shared.search(QUERY, exact=True)
    assert [hit.id for hit in result.hits] == exact(STORED, QUERY)
    for hit in result.hits:
        number = int(hit.id[1:])
        assert hit.text == f"note {number} about word{number % 50}"
        assert hit.attributes == {"n": number}
        assert hit.score == pytest.approx(float(STORED[number] @ QUERY), abs=1e-5)
        assert hit.tier == ("hot" if number % 2 else "warm")
    assert result.tiers == ("hot", "warm")
    assert result.warm_rows_read == 750
    assert result.complete
    assert result.took_ms > 0


def test_without_fetching_there_are_ids_and_scores_only(shared: Stilled) -> None:
    result = shared.search(QUERY, exact=True, fetch=False)
    assert [hit.id for hit in result.hits] == exact(STORED, QUERY)
    assert {(hit.text, str(hit.attributes)) for hit in result.hits} == {(None, "{}")}


def test_a_filter_holds_for_vectors_and_for_words(shared: Stilled) -> None:
    filter_ = parse_filter({"type": "lt", "key": "n", "value": 300})
    ids = shared.ids(QUERY, filter=filter_, exact=True)
    assert ids == exact(STORED[:300], QUERY)
    found = searching.search(shared.collection, SearchQuery(text="word7", filter=filter_, k=50)).result
    assert {hit.id for hit in found.hits} == {f"r{n}" for n in range(300) if n % 50 == 7}
    assert found.tiers == ()
    nothing = parse_filter({"type": "eq", "key": "never", "value": 1})
    assert shared.ids(QUERY, filter=nothing) == []


def nothing() -> None:
    """No change."""


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Over how many rows each mask of a filter was made."""
    made: list[int] = []
    mask = AttributeColumns.mask

    def counted(self: AttributeColumns, filter_: Filter, n: int) -> Any:
        made.append(n)
        return mask(self, filter_, n)

    monkeypatch.setattr(AttributeColumns, "mask", counted)
    return made


def test_a_search_for_words_makes_the_mask_of_its_filter_once(shared: Stilled, masks: list[int]) -> None:
    few = parse_filter({"type": "lt", "key": "n", "value": 5})
    # All 1,500 rows have the word: the index asks for the best of them, and then for all in parts of 1,024.
    found = searching.search(shared.collection, SearchQuery(text="note", filter=few, k=10)).result
    assert {hit.id for hit in found.hits} == {f"r{n}" for n in range(5)}
    assert masks == [1500]


def test_rows_that_come_or_get_other_slots_during_a_search_for_words_are_filtered_as_they_are(
    tmp_path: Path, masks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = parse_filter({"type": "gte", "key": "n", "value": 1495})
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.upsert(STORED, texts=["note"] * 1500)
        still.index_text()
        view = still.collection.view

        def compact() -> None:
            still.delete([f"r{n}" for n in range(900)])
            still.keeper.moves.compact_table(still.collection)
            still.upsert(STORED[:900], 2000)  # as many slots as before

        # The view that the search begins with, that of the best few, and those of two parts of all.
        changes = iter((nothing, nothing, lambda: still.upsert(STORED[:1], 9000), compact))

        def changing() -> CollectionView:
            next(changes, nothing)()
            return view()

        monkeypatch.setattr(still.collection, "view", changing)
        found = searching.search(still.collection, SearchQuery(text="note", filter=few, k=10)).result
        assert next(changes, None) is None
        assert {hit.id for hit in found.hits} == {f"r{n}" for n in range(1495, 1500)}
        assert masks == [1500, 1501, 1501]


def test_a_vector_and_words_are_fused_so_that_a_row_that_both_find_comes_first(shared: Stilled) -> None:
    both = exact(STORED, QUERY)[3]
    result = shared.search(QUERY, text=f"{both[1:]}", exact=True)
    assert result.hits[0].id == both
    assert len(result.hits) == 10
    assert len({hit.id for hit in result.hits}) == 10
    assert all(0 <= hit.score <= 1 for hit in result.hits)
    assert {hit.id for hit in result.hits} & set(exact(STORED, QUERY)[:3])


def test_a_text_without_words_is_no_text(shared: Stilled, tmp_path: Path) -> None:
    assert shared.ids(QUERY, text="", exact=True) == exact(STORED, QUERY)
    with stilled(tmp_path, DIMENSIONS) as without_text:
        without_text.upsert(STORED[:20])
        assert without_text.ids(QUERY, text="") == exact(STORED[:20], QUERY)
        with pytest.raises(InvalidInput, match="no full text"):
            without_text.search(QUERY, text="note")


def test_an_index_that_is_behind_makes_the_answer_incomplete(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS, text=True) as still:
        still.upsert(STORED[:5], texts=["apple"] * 5)
        late = searching.search(still.collection, SearchQuery(text="apple", deadline_s=0.0)).result
        assert (late.hits, late.complete) == ((), False)
        still.index_text()
        late = searching.search(still.collection, SearchQuery(text="apple", deadline_s=0.0)).result
        assert (len(late.hits), late.complete) == (5, True)
        still.delete(["r1"])  # the index does not know yet
        late = searching.search(still.collection, SearchQuery(text="apple", deadline_s=0.0)).result
        assert (len(late.hits), late.complete) == (4, False)


def test_a_row_whose_content_has_gone_meanwhile_is_left_out(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:50])
        best = exact(STORED[:50], QUERY)
        batch = still.rocks.batch()
        batch.delete("rows", still.collection.scope + still.row(best[0]).to_bytes(8, "big"))
        still.rocks.write(batch)
        assert still.ids(QUERY) == best[1:]
        assert still.ids(QUERY, fetch=False) == best


def test_an_exact_search_over_hot_rows_stops_at_its_deadline_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "SCANNED", 100)
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED)
        still.work()
        assert still.search(QUERY, exact=True).complete
        late = still.search(QUERY, exact=True, deadline_s=0)
        assert not late.complete
        assert [hit.id for hit in late.hits] == exact(STORED[:100], QUERY)


def test_a_hit_that_is_replaced_meanwhile_has_its_new_content(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:50])
        best = exact(STORED[:50], QUERY)
        read = still.collection.row_records

        def replaced(rows: Any) -> Any:
            still.collection.row_records = read  # type: ignore[method-assign]
            still.upsert(STORED[60:61], ids=[best[0]], texts=["new"])
            return read(rows)

        still.collection.row_records = replaced  # type: ignore[method-assign]
        hits = still.search(QUERY).hits
        assert [hit.id for hit in hits] == best
        assert hits[0].text == "new"


def test_wrong_vectors_are_refused_with_their_place(shared: Stilled) -> None:
    with pytest.raises(DimensionMismatch, match="48 dimensions") as refused:
        shared.search(np.ones(3, np.float32))
    assert refused.value.param == "vector"
    for bad in (np.zeros(DIMENSIONS), np.full(DIMENSIONS, np.nan), np.full(DIMENSIONS, np.inf)):
        with pytest.raises(InvalidInput):
            shared.search(bad.astype(np.float32))
    assert shared.ids(QUERY * 1e-3, exact=True) == exact(STORED, QUERY)  # the length counts for nothing
    assert len(shared.ids(np.full(DIMENSIONS, 1e30, np.float32))) == 10


def test_vectors_of_any_length_are_compared_as_they_should_be_or_refused(tmp_path: Path) -> None:
    lengths = np.array([[1e30], [1.0], [1e-30]], np.float32)
    with stilled(tmp_path / "cosine", DIMENSIONS) as still:
        still.upsert(STORED[:3] * lengths)
        assert still.ids(QUERY, exact=True) == exact(STORED[:3], QUERY)
        assert still.search(STORED[2] * np.float32(1e-25)).hits[0].score == pytest.approx(1.0, abs=1e-5)
    with stilled(tmp_path / "dot", DIMENSIONS, metric="dot") as still:
        with pytest.raises(InvalidInput, match="overflow"):
            still.upsert(STORED[:3] * lengths)
        still.upsert(STORED[1:3] * lengths[1:], 1)
        assert still.ids(STORED[1]) == ["r1", "r2"]
        assert still.ids(np.zeros(DIMENSIONS, np.float32)) != []
        with pytest.raises(InvalidInput, match="overflow"):
            still.search(QUERY * np.float32(1e25))


def test_locate_counts_what_a_search_would_read(shared: Stilled) -> None:
    located = searching.locate(shared.collection, SearchQuery(vector=QUERY), prewarm=True)
    assert located.hot_rows + located.warm_rows == 50
    assert 0 < located.warm_groups <= len(shared.collection.shards.entries[0].groups)
    assert located.warm_bytes >= located.warm_groups * DIMENSIONS * 4
    odd = parse_filter({"type": "in", "key": "n", "value": [1, 3, 5]})
    located = searching.locate(shared.collection, SearchQuery(vector=QUERY, filter=odd), prewarm=False)
    assert (located.hot_rows, located.warm_rows, located.warm_groups, located.warm_bytes) == (3, 0, 0, 0)
    with pytest.raises(InvalidInput, match="takes a vector"):
        searching.locate(shared.collection, SearchQuery(text="note"), prewarm=False)


def test_a_search_is_quick_while_all_rows_are_hot_and_it_was_so_lately(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED[:1100])
        still.work()
        assert still.collection.quick()
        for _ in range(100):
            still.collection.searched(0.02)
        assert not still.collection.quick()
        for _ in range(100):
            still.collection.searched(0.0002)
        assert still.collection.quick()
        still.keeper.moves.demote(still.collection, np.arange(3))
        assert not still.collection.quick()


def test_who_waits_for_earlier_searches_does_not_wait_for_later_ones() -> None:
    readers = Readers()
    first, second = readers.enter(), readers.enter()
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (readers.wait_for_earlier(), done.set()))
    waiting.start()
    while readers._turn == first:
        time.sleep(0.001)
    later = readers.enter()
    readers.leave(first)
    assert not done.is_set()
    readers.leave(second)
    waiting.join(30)
    assert done.is_set()
    readers.leave(later)
    readers.wait_for_earlier()  # nobody is inside


# Everything at once


class Storm:
    """Threads that change a collection in every way, while others search it. Rows r0 ... stay; `far` ones come and go."""

    def __init__(self, still: Stilled) -> None:
        self.still = still
        self.stop = threading.Event()
        self.failed: list[BaseException] = []
        self.searched = self.churned = 0
        self._writing = threading.Lock()

    def guarded(self, call: Any) -> threading.Thread:
        def run() -> None:
            rng = np.random.default_rng(call.__name__.encode()[0])
            try:
                while not self.stop.is_set():
                    call(rng)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells of it
                self.failed.append(error)
                self.stop.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def search(self, rng: np.random.Generator) -> None:
        query = STORED[int(rng.integers(0, 1500))] + 0.3 * rng.standard_normal(DIMENSIONS).astype(np.float32) / 7
        query /= np.linalg.norm(query)
        true = exact(STORED, query)
        result = self.still.search(query, exact=True, fetch=bool(rng.random() < 0.5))
        assert [hit.id for hit in result.hits] == true
        assert result.complete
        found = self.still.ids(query)
        assert len(found) == len(set(found)) == 10
        assert len(set(found) & set(true)) >= 7
        self.searched += 1

    def write(self, rng: np.random.Generator) -> None:
        """Rows that no query is near to; the writer's work."""
        batch = 40 * int(rng.integers(0, 25))
        first, far = 1500 + batch, -STORED[batch : batch + 40] - 2
        with self._writing:
            if rng.random() < 0.5:
                self.still.upsert(far, first)
            else:
                self.still.delete([f"r{n}" for n in range(first, first + 40)])
            self.still.touch([f"r{n}" for n in rng.integers(0, 1500, 20).tolist()])
        self.churned += 1
        time.sleep(0.002)

    def keep(self, rng: np.random.Generator) -> None:
        """The keeper's work, more of it than is due."""
        keeper, collection = self.still.keeper, self.still.collection
        view = self.still.view.table
        action = int(rng.integers(0, 8))
        if action == 0:
            keeper.moves.demote(
                collection, np.flatnonzero(view.alive & (view.place == HOT) & (rng.random(len(view)) < 0.5))
            )
        elif action == 1 and collection.shards.entries:
            keeper.moves.abandon_shard(collection, collection.shards.entries[0].name, "")
        elif action == 2:
            keeper.moves.drop_graph(collection)
            keeper.moves.compact_table(collection)
        elif action == 3:
            keeper.due.of(collection).promoted_at = 0.0
            if not keeper.steps.rebuild_if_masked(
                collection
            ):  # as it is before it: nodes of the same row would be many
                keeper.steps.promote(collection)
        else:
            for _ in range(6):
                keeper.steps.take_one(collection)


def test_searches_are_right_while_rows_come_go_and_move_to_every_place(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS) as still:
        still.upsert(STORED)
        still.keeper.hurry(still.collection, on=True)
        storm = Storm(still)
        threads = [storm.guarded(call) for call in (storm.search, storm.search, storm.write, storm.keep)]
        storm.stop.wait(3)
        storm.stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if storm.failed:
            raise storm.failed[0]
        assert storm.searched > 10
        assert storm.churned > 10
        still.work()
        assert still.problems() == []
        assert still.counts[HOT] + still.counts[WARM] > 0
    with stilled(tmp_path, DIMENSIONS) as still:
        still.work()
        assert still.ids(QUERY, exact=True) == exact(STORED, QUERY)
        assert still.problems() == []

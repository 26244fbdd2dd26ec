"""Commands: what each writes in every family, and what memory has afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataplane.collections.changes import RowBatch
from dataplane.collections.commands import Delete, Expire, Mend, Remake, Touch, Upsert
from dataplane.errors import NotFound
from dataplane.truth import keys, records
from dataplane.truth.records import RowRecord
from dataplane.truth.writer import Draft
from tests.dataplane.planes import vectors
from tests.dataplane.stilled import Stilled, stilled

STORED = vectors(10, dimensions=4)
NOW = 1_700_000_000_000


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Stilled]:
    with stilled(tmp_path, 4, text=True) as made:
        yield made


def batch(still: Stilled, *ids: str, text: str | None = None, expires_ms: int | None = None) -> RowBatch:
    count = len(ids)
    ready = still.collection.ready(STORED[:count], "rows")
    return RowBatch(ids, ready, [text] * count, [{"k": 1}] * count, [expires_ms] * count)


def upsert(still: Stilled, *ids: str, text: str | None = None, expires_ms: int | None = None) -> int:
    new: int = still.apply(Upsert(still.collection, batch(still, *ids, text=text, expires_ms=expires_ms), NOW))
    return new


def stored(still: Stilled, family: str) -> dict[bytes, bytes]:
    """Without the scope that every key begins with."""
    scope = still.collection.scope
    return {key[len(scope) :]: value for key, value in still.rocks.scan(family, scope)}


def seq(still: Stilled) -> int:
    return int.from_bytes(still.rocks.get("meta", still.collection.seq_key) or b"", "big")


def numbers(*rows: int) -> list[bytes]:
    return [keys.number(row) for row in rows]


def test_an_insert_is_a_row_a_vector_and_an_entry_of_the_index(still: Stilled) -> None:
    assert upsert(still, "a", "b", text="hello", expires_ms=NOW + 5) == 2
    one, two = numbers(1, 2)
    assert stored(still, "index") == {b"a": one, b"b": two}
    assert list(stored(still, "rows")) == [one, two]
    assert records.decode(RowRecord, stored(still, "rows")[two]) == RowRecord("b", "hello", {"k": 1}, NOW, NOW + 5)
    np.testing.assert_allclose(np.frombuffer(stored(still, "vectors")[one], "<f4"), STORED[0], atol=1e-6)
    assert stored(still, "dead") == {}
    assert (seq(still), still.collection.seq, still.collection.published) == (2, 2, 2)
    assert still.counts == (2, 0, 0, 0)


def test_an_upsert_ends_the_row_that_it_replaces_in_the_same_batch(still: Stilled) -> None:
    upsert(still, "a", "b", text="old")
    assert upsert(still, "c", "a", text="new") == 1
    assert stored(still, "index") == dict(zip([b"a", b"b", b"c"], numbers(4, 2, 3), strict=True))
    assert list(stored(still, "rows")) == list(stored(still, "vectors")) == numbers(2, 3, 4)
    assert stored(still, "dead") == {keys.number(4): keys.number(1) + b"old"}
    assert seq(still) == 4
    assert still.counts == (3, 0, 0, 0)


def test_commands_of_one_batch_see_what_came_before_them(still: Stilled) -> None:
    draft = Draft(still.rocks)
    commands = [
        Upsert(still.collection, batch(still, "a"), NOW),
        Upsert(still.collection, batch(still, "a", "b"), NOW),
        Delete(still.collection, ["b", "never"], NOW),
    ]
    assert [command.draft(draft) for command in commands] == [1, 1, 1]
    still.rocks.write(draft.batch)
    commands[0].publish(commands[1:])
    assert stored(still, "index") == {b"a": keys.number(2)}
    assert list(stored(still, "rows")) == list(stored(still, "vectors")) == numbers(2)
    assert list(stored(still, "dead").values()) == numbers(1, 3)
    assert seq(still) == still.collection.published == 4
    assert still.counts == (1, 0, 0, 0)
    assert still.ids(STORED[0]) == ["a"]
    still.index_text()
    assert still.problems() == []


def test_a_delete_removes_everything_but_what_others_need_to_know_of_it(still: Stilled) -> None:
    upsert(still, "a", "b", text="t")
    assert still.delete(["a", "never"]) == 1
    assert stored(still, "index") == {b"b": keys.number(2)}
    assert list(stored(still, "rows")) == list(stored(still, "vectors")) == numbers(2)
    assert stored(still, "dead") == {keys.number(3): keys.number(1) + b"t"}
    assert still.delete(["a", "never"]) == 0
    assert seq(still) == 3, "what changed nothing has no number"


def test_expiry_ends_rows_by_number_and_leaves_those_that_were_replaced(still: Stilled) -> None:
    upsert(still, "a", "b", expires_ms=NOW)
    upsert(still, "a")
    assert still.apply(Expire(still.collection, [1, 2], NOW)) == 1
    assert stored(still, "index") == {b"a": keys.number(3)}
    assert still.apply(Expire(still.collection, [1, 2], NOW)) == 0
    assert still.counts == (1, 0, 0, 0)


def test_a_batch_that_is_not_written_leaves_a_gap_in_the_numbers_and_nothing_else(still: Stilled) -> None:
    upsert(still, "a")
    Upsert(still.collection, batch(still, "b", "c"), NOW).draft(Draft(still.rocks))  # the disk is full
    assert (seq(still), still.collection.published, still.collection.seq) == (1, 1, 3)
    upsert(still, "d")
    assert stored(still, "index") == {b"a": keys.number(1), b"d": keys.number(4)}
    assert seq(still) == still.collection.published == 4
    still.index_text()
    assert still.problems() == []


def test_touching_makes_rows_warmer_and_stores_nothing(still: Stilled) -> None:
    upsert(still, "a", "b")
    before = still.rocks.writes()
    still.apply(Touch(still.collection, np.array([2, 2, 77], np.uint64), 500_000.0))
    assert still.rocks.writes() == before
    accesses, hours = still.collection.table.accessed()
    assert accesses.tolist() == [1, 3]
    assert hours[1] == 500_000.0


def test_mending_leads_every_row_to_its_id_and_no_id_astray(still: Stilled) -> None:
    upsert(still, "a", "b", "c")
    raw = still.rocks.batch()
    scope = still.collection.scope
    raw.delete("index", scope + b"a")
    raw.put("index", scope + b"b", keys.number(3))
    raw.put("index", scope + b"ghost", keys.number(50))
    still.rocks.write(raw)
    assert still.apply(Mend(still.collection, [1, 2, 3, 60], [b"b", b"ghost", b"c", b"never"], NOW)) == 0
    assert stored(still, "index") == dict(zip([b"a", b"b", b"c"], numbers(1, 2, 3), strict=True))
    still.index_text()
    assert still.problems() == []


@pytest.mark.parametrize("leads_to", [None, 1, 3, 2])
def test_mending_leaves_the_latest_of_rows_with_one_id(still: Stilled, leads_to: int | None) -> None:
    upsert(still, "a", "b", "c", text="t")
    raw = still.rocks.batch()
    scope = still.collection.scope
    for row in (1, 2, 3):
        raw.put("rows", scope + keys.number(row), records.encode(RowRecord("a", "t", {}, NOW)))
    for id_ in (b"a", b"b", b"c"):
        raw.delete("index", scope + id_)
    if leads_to is not None:
        raw.put("index", scope + b"a", keys.number(leads_to))
    still.rocks.write(raw)
    assert still.apply(Mend(still.collection, [1, 2, 3], [], NOW)) == 2
    assert stored(still, "index") == {b"a": keys.number(3)}
    assert list(stored(still, "rows")) == numbers(3)
    assert list(stored(still, "dead").values()) == [number + b"t" for number in numbers(1, 2)]
    assert still.counts == (1, 0, 0, 0)
    still.index_text()
    assert [where for where, _ in still.problems()] == []


def test_memory_that_is_made_anew_knows_what_was_stored(still: Stilled) -> None:
    upsert(still, "a", "b", "c")
    still.collection.delta.drop(2)
    still.collection._end(np.array([3], np.uint64))
    still.apply(Remake(still.collection))
    assert still.counts == (3, 0, 0, 0)
    assert set(still.ids(STORED[0])) == {"a", "b", "c"}


def test_a_dropped_collection_takes_no_command(still: Stilled) -> None:
    upsert(still, "a")
    still.collection.dropped = True
    for command in (
        Upsert(still.collection, batch(still, "b"), NOW),
        Delete(still.collection, ["a"], NOW),
        Expire(still.collection, [1], NOW),
        Mend(still.collection, [1], [], NOW),
        Remake(still.collection),
    ):
        with pytest.raises(NotFound, match="deleted"):
            still.apply(command)
    assert still.counts == (1, 0, 0, 0)

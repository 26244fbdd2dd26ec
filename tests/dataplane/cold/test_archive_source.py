"""What the archive reads of the box: in steps, and in ranges whose borders stay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from dataplane.cold import archive_source as source
from dataplane.cold.archive_source import MAX_CHUNK_BYTES, Chunk, Chunker, tenant_of
from dataplane.cold.segments import Entry
from dataplane.errors import Damaged
from dataplane.truth import keys
from dataplane.truth.rocks import Rocks
from tests.dataplane.boxes import fill, open_box


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Rocks]:
    box = open_box(tmp_path / "box")
    yield box
    box.close()


def entries(tenant: str, numbers: range, size: int = 100) -> list[Entry]:
    return [(keys.tenant_prefix(tenant) + keys.number(number), bytes([number % 256]) * size) for number in numbers]


def cut(given: list[Entry], target: int = 2_000, step: int = 7) -> list[Chunk]:
    chunker = Chunker(target)
    chunks = [chunk for at in range(0, len(given), step) for chunk in chunker.add(given[at : at + step])]
    return [*chunks, *chunker.end()]


def test_ranges_hold_everything_in_order_however_it_comes() -> None:
    given = entries("a", range(500)) + entries("b", range(500))
    chunks = cut(given)
    assert [entry for chunk in chunks for entry in chunk.entries] == given
    assert chunks == cut(given, step=1) == cut(given, step=1_000)
    assert 20 < len(chunks) < 200
    assert len({chunk.content for chunk in chunks}) == len(chunks)


def test_a_range_belongs_to_one_tenant() -> None:
    given = [entry for name in ("a", "b", "c") for entry in entries(name, range(3))]
    assert [chunk.tenant for chunk in cut(given, target=1 << 30)] == ["a", "b", "c"]


def test_a_change_changes_its_own_range_and_at_most_its_neighbour() -> None:
    given = entries("a", range(1_000))
    before = {chunk.content for chunk in cut(given)}
    for at in range(0, 1_000, 37):
        changed = [*given[:at], (given[at][0], b"new"), *given[at + 1 :]]
        removed = given[:at] + given[at + 1 :]
        added = [*given[:at], (given[at][0] + b"+", b"x" * 50), *given[at:]]
        for after in (changed, removed, added):
            assert len({chunk.content for chunk in cut(sorted(after))} - before) <= 2


def test_a_range_is_bounded_whatever_its_keys_are() -> None:
    given = entries("a", range(60), 1 << 20)
    sizes = [sum(len(value) for _, value in chunk.entries) for chunk in cut(given, target=1 << 60)]
    assert max(sizes) <= MAX_CHUNK_BYTES + (1 << 20)
    assert sum(sizes) == 60 << 20


def test_rows_are_read_in_steps_up_to_the_sequence_number(rocks: Rocks) -> None:
    fill(rocks, 1_000)
    _, sources = source.read_meta(rocks)
    notes = next(one for one in sources if (one.tenant, one.record.number) == ("alice", 1))
    assert notes.seq == 1_100
    numbers: list[int] = []
    at: int | None = 1
    while at is not None:
        rows, at = source.read_rows(rocks, notes, at)
        assert len(rows) <= source.STEP
        numbers += [row.number for row in rows]
    assert numbers == [*range(1, 11), *range(61, 101), *range(151, 1_051)]
    rows, _ = source.read_rows(rocks, notes._replace(seq=63), 1)
    assert [row.number for row in rows] == [*range(1, 11), 61, 62, 63]


def test_deletions_are_read_without_the_texts_that_ended(rocks: Rocks) -> None:
    fill(rocks, 1_000)
    notes = next(one for one in source.read_meta(rocks)[1] if one.record.number == 1 and one.tenant == "alice")
    seqs, numbers = source.read_deletions(rocks, notes, 1_010)
    assert seqs.tolist() == [*range(1_011, 1_101)]
    assert numbers.tolist() == [*range(21, 61), *range(101, 151)]
    assert source.read_deletions(rocks, notes, 1_100)[0].tolist() == []


def test_a_family_is_read_in_steps_without_what_is_the_boxs_own(rocks: Rocks) -> None:
    fill(rocks, 250)
    batch = rocks.batch()
    batch.put("state", source.BOX + b"own", b"1")
    rocks.write(batch)
    found: list[Entry] = []
    while step := source.read_entries(rocks, "state", found[-1][0] if found else None):
        found += step
    assert found == [pair for pair in rocks.scan("state", b"") if not pair[0].startswith(source.BOX)]
    assert all(a < b for a, b in pairwise(found))


def test_a_key_of_no_tenant_is_damage() -> None:
    assert tenant_of(keys.scope("上海", 7)) == "上海"
    for key in (b"", b"\0", b"\0\0x", b"\0\5abc", b"\0\2\xff\xfe"):
        with pytest.raises(Damaged, match="begins with no tenant"):
            tenant_of(key)

"""Segments: the same content gives the same bytes, and only what was written is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dataplane.cold.segments import Row, SegmentWriter, fetch, read_deletions, read_entries, read_rows
from dataplane.errors import ChecksumMismatch, Damaged
from dataplane.truth.records import RowRecord
from tests.dataplane.boxes import local_bucket

ROWS = [
    Row(1, RowRecord("a", None, {}, 5), b"\0" * 8),
    Row(2, RowRecord("b", "", {"x": 1.0, "y": 1, "z": True, "名": "市"}, -5, 9), b"\1" * 8),
    Row(2**63, RowRecord("é上", "text\0", {"nan": float("inf"), "big": 2**63}, 0, 0), bytes(range(8))),
]


def rows_segment(rows: list[Row] = ROWS) -> tuple[str, bytes]:
    writer = SegmentWriter("rows", width=8)
    for row in rows:
        writer.add_rows([row])
    sealed, content = writer.finish()
    assert (sealed.count, sealed.size) == (len(rows), len(content))
    return sealed.name, bytes(content)


def test_rows_come_back_as_they_were_with_their_types() -> None:
    name, content = rows_segment()
    read = [row for group in read_rows(name, content, 8) for row in group]
    assert read == ROWS
    kinds = [type(value) for value in read[1].record.attributes.values()]
    assert kinds == [float, int, bool, str]


def test_the_same_content_has_the_same_name() -> None:
    assert rows_segment() == rows_segment()
    assert rows_segment()[0] != rows_segment(ROWS[:2])[0]


def test_entries_and_deletions_come_back() -> None:
    entries = [(b"\0k", b""), (b"\xff" * 300, bytes(range(256)) * 100)]
    writer = SegmentWriter("entries")
    writer.add_entries(entries)
    sealed, content = writer.finish()
    assert list(read_entries(sealed.name, content)) == [entries]
    seqs, numbers = np.array([3, 2**64 - 1], dtype=np.uint64), np.array([1, 2], dtype=np.uint64)
    writer = SegmentWriter("deletions")
    writer.add_deletions(seqs, numbers)
    sealed, content = writer.finish()
    assert [column.tolist() for column in read_deletions(sealed.name, content)] == [seqs.tolist(), numbers.tolist()]


def test_a_segment_of_another_kind_or_width_is_refused() -> None:
    name, content = rows_segment()
    for reading in (
        lambda: list(read_rows(name, content, 12)),
        lambda: list(read_entries(name, content)),
        lambda: read_deletions(name, content),
    ):
        with pytest.raises(Damaged, match=f"{name} cannot be read: it has other columns"):
            reading()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"\0" * 5000])
def test_what_is_no_parquet_is_named(content: bytes) -> None:
    with pytest.raises(Damaged, match="it cannot be read|the segment cannot be read"):
        list(read_rows("the segment", content, 8))


async def test_only_the_right_content_is_fetched(tmp_path: Path) -> None:
    bucket = local_bucket(tmp_path)
    writer = SegmentWriter("rows", width=8)
    writer.add_rows(ROWS)
    sealed, content = writer.finish()
    with pytest.raises(Damaged, match=f"{sealed.name} is missing"):
        await fetch(bucket, sealed)
    await bucket.put(sealed.name, content)
    assert bytes(await fetch(bucket, sealed)) == bytes(content)
    for at in range(0, sealed.size, 97):
        flipped = bytearray(content)
        flipped[at] ^= 0x80
        await bucket.put(sealed.name, bytes(flipped))
        with pytest.raises(ChecksumMismatch, match=sealed.name):
            await fetch(bucket, sealed)

"""parquet: checked ranges, decoded groups, and errors that name the file."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from dataplane.errors import ChecksumMismatch, Closed, Damaged, InvalidInput, StorageFull
from dataplane.files import storage_errors
from dataplane.warm.parquet import CheckedFile, Column, GroupReader, GroupWriter, Values, read_layout

COLUMNS = (
    Column("number", "uint64", plain=True),
    Column("blob", "fixed", width=3),
    Column("kind", "string", repeats=True),
    Column("body", "binary"),
    Column("until", "int64", nullable=True),
)


def write(path: Path, groups: int = 3, rows: int = 4) -> None:
    with GroupWriter(path, COLUMNS) as writer:
        for group in range(groups):
            numbers = np.arange(rows, dtype=np.uint64) + group * rows
            writer.write(
                {
                    "number": numbers,
                    "blob": np.repeat(numbers.astype(np.uint8)[:, None], 3, axis=1),
                    "kind": [f"kind {int(number) % 2} ü" for number in numbers],
                    "body": [b"\0\xff" * int(number) for number in numbers],
                    "until": np.where(numbers % 2, numbers.astype(np.int64), 0),
                }
            )
        writer.annotate({"a": "b", "ü": "é"})


def reader_of(file: CheckedFile) -> GroupReader:
    footer = read_layout(file.path).footer
    return GroupReader(file, footer, file.crc32(footer, file.size - footer))


def test_what_was_written_is_read_group_by_group(tmp_path: Path) -> None:
    write(tmp_path / "a")
    file = CheckedFile(tmp_path / "a", (tmp_path / "a").stat().st_size)
    reader = reader_of(file)
    number, blob, kind, body, until = COLUMNS
    values = reader.read(1, COLUMNS)
    assert np.asarray(values.of(number)).tolist() == [4, 5, 6, 7]
    assert np.asarray(values.of(blob)).tolist() == [[n] * 3 for n in (4, 5, 6, 7)]
    assert values.of(kind) == ["kind 0 ü", "kind 1 ü", "kind 0 ü", "kind 1 ü"]
    assert values.of(body) == [b"\0\xff" * n for n in (4, 5, 6, 7)]
    assert np.asarray(values.of(until)).tolist() == [0, 5, 0, 7]
    assert reader.read(2, [kind]).of(kind) == ["kind 0 ü", "kind 1 ü"] * 2
    assert values.of(body, slice(1, 2)) == [b"\0\xff" * 5]
    assert np.asarray(values.of(blob, slice(2, 4))).tolist() == [[n] * 3 for n in (6, 7)]
    assert np.asarray(values.of(until, slice(2, 4))).tolist() == [0, 7]
    assert {"a": "b", "ü": "é"}.items() <= reader.metadata.items()
    file.close()


def test_columns_of_a_group_follow_each_other_and_groups_too(tmp_path: Path) -> None:
    write(tmp_path / "a")
    layout = read_layout(tmp_path / "a")
    assert layout.rows.tolist() == [4, 4, 4]
    assert layout.borders.shape == (3, 6)
    assert layout.borders[0, 0] == 4
    assert layout.borders[1:, 0].tolist() == layout.borders[:-1, -1].tolist()
    assert layout.footer == layout.borders[-1, -1]
    assert layout.size == (tmp_path / "a").stat().st_size


def test_a_file_without_groups_has_a_layout(tmp_path: Path) -> None:
    write(tmp_path / "a", groups=0)
    layout = read_layout(tmp_path / "a")
    assert (layout.rows.tolist(), layout.footer) == ([], 4)


def test_a_read_gives_the_range_aligned_where_asked(tmp_path: Path) -> None:
    content = os.urandom(10_000)
    (tmp_path / "a").write_bytes(content)
    file = CheckedFile(tmp_path / "a", 10_000)
    for offset, length, aligned in ((0, 10_000, 0), (17, 5000, 39), (9999, 1, 0)):
        found = file.read(offset, length, aligned)
        assert found.tobytes() == content[offset : offset + length]
        assert (found.ctypes.data + aligned) % 64 == 0
    assert file.read(5, 0).tobytes() == b""
    assert file.crc32(3, 9000) == zlib.crc32(content[3:9003])
    file.check(3, 9000, zlib.crc32(content[3:9003]), "it")
    with pytest.raises(ChecksumMismatch, match="a: row group 7 is not what was written"):
        file.check(3, 9000, 0, "row group 7")
    file.close()


def test_a_missing_truncated_or_longer_file_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="a is missing"):
        CheckedFile(tmp_path / "a", 5)
    (tmp_path / "a").write_bytes(b"1234")
    for size in (3, 5):
        with pytest.raises(Damaged, match=f"is 4 bytes long, and was written with {size}"):
            CheckedFile(tmp_path / "a", size)
    file = CheckedFile(tmp_path / "a", 4)
    os.truncate(tmp_path / "a", 2)
    with pytest.raises(Damaged, match="ends before byte 4"):
        file.read(0, 4)
    file.close()


def test_a_closed_file_refuses_reads_but_ends_those_that_have_begun(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    file = CheckedFile(tmp_path / "a", 4)
    with file.held() as descriptor:
        file.close()
        file.close()
        assert os.pread(descriptor, 4, 0) == b"1234"
        with pytest.raises(Closed):
            file.read(0, 4)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_stays_readable_after_its_name_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "a")
    file = CheckedFile(tmp_path / "a", (tmp_path / "a").stat().st_size)
    footer = read_layout(tmp_path / "a").footer
    crc32 = file.crc32(footer, file.size - footer)
    (tmp_path / "a").unlink()
    numbers = GroupReader(file, footer, crc32).read(0, COLUMNS[:1]).of(COLUMNS[0])
    assert np.asarray(numbers).tolist() == [0, 1, 2, 3]
    file.close()


def test_a_reader_serves_several_threads(tmp_path: Path) -> None:
    write(tmp_path / "a", groups=20)
    file = CheckedFile(tmp_path / "a", (tmp_path / "a").stat().st_size)
    reader = reader_of(file)
    wrong: list[int] = []

    def read(first: int) -> None:
        for group in range(first, 20):
            found = np.asarray(reader.read(group, COLUMNS).of(COLUMNS[0]))
            wrong.extend(number for number in found if number // 4 != group)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    file.close()


def test_every_flipped_bit_of_a_footer_is_found(tmp_path: Path) -> None:
    write(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    footer = read_layout(tmp_path / "a").footer
    for position in range(footer, len(content), 7):
        broken = bytearray(content)
        broken[position] ^= 1 << position % 8
        (tmp_path / "a").write_bytes(broken)
        file = CheckedFile(tmp_path / "a", len(content))
        with pytest.raises(ChecksumMismatch, match="its footer"):
            GroupReader(file, footer, zlib.crc32(content[footer:]))
        file.close()


def test_what_is_no_parquet_file_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"not parquet at all")
    with pytest.raises(Damaged, match="a cannot be read"):
        read_layout(tmp_path / "a")


@pytest.mark.parametrize(
    "values", [{"kind": ["\ud800"]}, {"number": [-1]}, {"number": [1 << 64]}, {"body": [1]}, {"kind": ["a", "b"]}]
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, values: dict[str, Values]) -> None:
    row: dict[str, Values] = {
        "number": [1],
        "blob": np.zeros((1, 3), dtype=np.uint8),
        "kind": ["a"],
        "body": [b""],
        "until": np.zeros(1),
    }
    with GroupWriter(tmp_path / "a", COLUMNS) as writer, pytest.raises(InvalidInput, match="cannot be stored"):
        writer.write({**row, **values})


def test_a_full_disk_is_told_as_such() -> None:
    path = Path("/dev/full")
    with pytest.raises(StorageFull), storage_errors(path):
        write(path, groups=300)

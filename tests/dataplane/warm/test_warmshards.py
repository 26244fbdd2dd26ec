"""Warm shards: rows come back from their groups, and whatever is damaged is dropped and named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dataplane.errors import ChecksumMismatch, Closed, Damaged, UnsupportedFormat
from dataplane.warm.shards import ShardMeta, ShardRows
from dataplane.warm.warmshards import GROUP_BYTES, GROUP_ROWS, MANIFEST, Manifest, WarmShards, read_manifest
from tests.dataplane.planes import vectors

DIMENSIONS = 16
STORED = vectors(300, dimensions=DIMENSIONS)


def meta(seq: int = 1000) -> ShardMeta:
    return ShardMeta("notes", seq, DIMENSIONS, "cosine")


def content(first: int = 0, count: int = 300) -> ShardRows:
    """Row n has the number n + 1."""
    rows = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return ShardRows(
        rows,
        STORED[first : first + count],
        [f"r{row}" for row in rows.tolist()],
        ["text"] * count,
        [b"{}"] * count,
        np.zeros(count, np.int64),
    )


def opened(folder: Path, seq: int = 1000) -> WarmShards:
    shards = WarmShards(folder)
    shards.open(seq)
    return shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, of the rows 1 to 200 and 201 to 300."""
    shards = opened(tmp_path / "warm")
    shards.demote(content(0, 200), meta())
    shards.demote(content(200, 100), meta())
    shards.close()
    return tmp_path / "warm"


def rows_of(shards: WarmShards) -> list[int]:
    """The numbers of all rows; each vector is compared."""
    numbers: list[int] = []
    for entry in shards.entries:
        for group in shards.numbers_of(entry.name):
            rows, found = shards.group_vectors(group)
            assert len(rows) <= GROUP_ROWS
            assert (found == STORED[rows.astype(np.int64) - 1]).all()
            numbers += rows.tolist()
    return sorted(numbers)


def test_demoted_rows_are_read_from_the_groups_that_were_told(tmp_path: Path) -> None:
    shards = opened(tmp_path / "warm")
    first = shards.demote(content(0, 200), meta())
    second = shards.demote(content(200, 100), meta())
    assert set(first.tolist()).isdisjoint(second.tolist())
    for number, group in enumerate([*first.tolist(), *second.tolist()], 1):
        assert number in shards.group_vectors(group)[0].tolist()
        assert shards.shard_of(group) == shards.entries[number > 200].name
    assert rows_of(shards) == list(range(1, 301))
    assert shards.bytes == sum(path.stat().st_size for path in (tmp_path / "warm").glob("*.parquet"))
    assert shards.head_bytes(first.tolist()) >= 200 * 4 * DIMENSIONS
    shards.prewarm([int(first[0]), int(second[0])])
    assert {path.name for path in shards.paths} == {MANIFEST, "shard-00000001.parquet", "shard-00000002.parquet"}
    assert shards.verify() == []
    shards.close()


def test_shards_are_there_after_a_start_and_leftovers_are_not(folder: Path) -> None:
    (folder / "shard-00000009.parquet").write_bytes(b"whole, but the kill came before the manifest")
    (folder / ".tmp-0-shard-00000010.parquet").write_bytes(b"half")
    shards = opened(folder)
    assert rows_of(shards) == list(range(1, 301))
    assert shards.problems == []
    assert {path.name for path in folder.iterdir()} == {path.name for path in shards.paths}
    shards.close()


def test_a_folder_that_is_not_there_has_no_shards(tmp_path: Path) -> None:
    shards = opened(tmp_path / "none")
    assert (shards.entries, shards.paths, shards.bytes, shards.verify()) == ((), [], 0, [])
    assert not (tmp_path / "none").exists()


def test_a_dropped_shard_is_gone_and_its_name_and_groups_are_never_used_again(folder: Path) -> None:
    shards = opened(folder)
    name = shards.entries[1].name
    groups = shards.numbers_of(name)
    shards.drop(name)
    assert rows_of(shards) == list(range(1, 201))
    assert not (folder / name).exists()
    with pytest.raises(Closed, match="removed"):
        shards.group_vectors(groups[0])
    assert min(shards.demote(content(200, 100), meta()).tolist()) >= groups.stop
    shards.drop(shards.entries[1].name, "a reason")
    assert shards.problems == ["a reason"]
    shards.close()
    shards = opened(folder)
    shards.demote(content(200, 100), meta())
    assert shards.entries[1].name == "shard-00000004.parquet"
    shards.close()


def test_what_was_known_of_a_dropped_shard_takes_no_memory(folder: Path) -> None:
    shards = opened(folder)
    groups = {entry.name: len(entry.groups) for entry in shards.entries}
    assert shards.nbytes == GROUP_BYTES * sum(groups.values())
    first, second = groups
    shards.drop(first)
    assert shards.nbytes == GROUP_BYTES * groups[second]
    for _ in range(5):
        shards.demote(content(0, 200), meta())
        shards.drop(shards.entries[-1].name)
    assert shards.nbytes == GROUP_BYTES * groups[second]
    assert rows_of(shards) == list(range(201, 301))
    shards.drop(second)
    assert shards.nbytes == 0
    with pytest.raises(Closed):
        shards.group_vectors(-1)
    shards.close()


def test_a_shard_that_is_missing_or_cut_is_dropped_and_named(folder: Path) -> None:
    (folder / "shard-00000001.parquet").unlink()
    file = folder / "shard-00000002.parquet"
    file.write_bytes(file.read_bytes()[:-10])
    shards = opened(folder)
    assert shards.entries == ()
    assert ["00000001" in shards.problems[0], "00000002" in shards.problems[1]] == [True, True]
    assert list(folder.glob("shard-*")) == []
    assert opened(folder).problems == [], "the manifest no longer names them"


def test_a_flipped_byte_anywhere_in_a_shard_is_found_and_named(folder: Path) -> None:
    file = folder / "shard-00000002.parquet"
    whole = file.read_bytes()
    for at in np.linspace(4, len(whole) - 9, 40).astype(int).tolist():
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        shards = opened(folder)
        assert list(shards.damaged()) == [file.name]
        assert file.name in shards.verify()[0]
        try:
            numbers = rows_of(shards)
        except ChecksumMismatch as error:
            assert file.name in str(error)
        else:  # it is not among what searches read
            assert numbers == list(range(1, 301))
        shards.close()


def test_a_manifest_that_is_cut_or_flipped_anywhere_is_found_and_never_believed(folder: Path, tmp_path: Path) -> None:
    whole = (folder / MANIFEST).read_bytes()
    places = np.unique(np.linspace(0, len(whole) - 1, 80).astype(int)).tolist()
    path = tmp_path / "changed.json"
    for damaged in [whole[:at] for at in places] + [
        whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :] for at in places
    ]:
        path.write_bytes(damaged)
        try:
            manifest = read_manifest(path)
        except Damaged as error:
            assert str(path) in str(error)
        else:  # the name of a field with a default was hit
            assert manifest == read_manifest(folder / MANIFEST)


def test_after_a_damaged_manifest_all_shards_are_dropped_and_no_name_is_used_twice(folder: Path) -> None:
    whole = (folder / MANIFEST).read_bytes()
    (folder / MANIFEST).write_bytes(whole.replace(b'"rows":', b'"rosw":', 1))
    shards = opened(folder)
    assert shards.entries == ()
    assert MANIFEST in shards.problems[0]
    shards.demote(content(), meta())
    assert [entry.name for entry in shards.entries] == ["shard-00000003.parquet"]
    assert rows_of(shards) == list(range(1, 301))
    assert shards.verify() == []
    shards.close()


def test_verify_sees_a_manifest_that_was_damaged_since_and_it_can_be_written_again(folder: Path) -> None:
    shards = opened(folder)
    (folder / MANIFEST).write_bytes(b"{}")
    assert MANIFEST in shards.verify()[0]
    shards.write_manifest()
    assert shards.verify() == []
    shards.close()
    assert rows_of(opened(folder)) == list(range(1, 301))


def test_a_shard_built_beyond_what_rocksdb_has_is_dropped(folder: Path) -> None:
    shards = opened(folder, 999)
    assert shards.entries == ()
    assert all("loss of power" in problem for problem in shards.problems)
    shards.close()


def test_a_manifest_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(Manifest((), 1, format=2)))
    with pytest.raises(UnsupportedFormat, match="format 2"):
        read_manifest(tmp_path / MANIFEST)

"""shards: what was written is read back exactly, by us and by any Parquet reader, or an error names what is broken."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from dataplane.errors import ChecksumMismatch, Closed, Damaged, DimensionMismatch, InvalidInput, UnsupportedFormat
from dataplane.files import remove_leftovers
from dataplane.warm.clusters import cluster
from dataplane.warm.shards import Shard, ShardEntry, ShardMeta, ShardRows, Slots, write_shard
from tests.dataplane.damage import flip
from tests.dataplane.killing import killed

DIMENSIONS = 12
META = ShardMeta("tenant/notes", 4711, DIMENSIONS, "cosine")

WRITER = """
import sys
from pathlib import Path
from tests.dataplane.warm.test_shards import META, make_rows, groups_of
from dataplane.warm.shards import write_shard
rows = make_rows(3000)
groups = groups_of(rows)
print("ready", flush=True)
while True:
    write_shard(Path(sys.argv[1]), "s.parquet", rows, groups, META)
    print("written", flush=True)
"""


def make_rows(count: int = 500) -> ShardRows:
    rng = np.random.default_rng(count)
    return ShardRows(
        rownums=rng.permutation(count).astype(np.uint64) + np.uint64(1 << 40),
        vectors=rng.standard_normal((count, DIMENSIONS)).astype(np.float32),
        ids=[f"id-{number}-ü" for number in range(count)],
        texts=[f"上海的天气 {number} " * (number % 5) for number in range(count)],
        attributes=[b'{"n":%d}' % number for number in range(count)],
        expires_at=np.where(np.arange(count) % 3, 0, 1_700_000_000_000 + np.arange(count)),
    )


def groups_of(rows: ShardRows) -> tuple[Slots, ...]:
    return cluster(rows.vectors, 64).groups


def written(folder: Path, rows: ShardRows) -> tuple[ShardEntry, tuple[Slots, ...]]:
    groups = groups_of(rows)
    return write_shard(folder, "s.parquet", rows, groups, META), groups


def test_vectors_and_rows_are_read_back_exactly(tmp_path: Path) -> None:
    rows = make_rows()
    entry, groups = written(tmp_path, rows)
    assert (entry.name, entry.rows, entry.seq, len(entry.groups)) == ("s.parquet", 500, 4711, len(groups))
    with Shard.open(tmp_path / "s.parquet", entry) as shard:
        for number, group in enumerate(groups):
            rownums, vectors = shard.read_vectors(number)
            assert np.array_equal(rownums, rows.rownums[group])
            assert np.array_equal(vectors, rows.vectors[group])
            assert vectors.flags.aligned
            everything = shard.read_rows(number)
            assert np.array_equal(everything.rownums, rows.rownums[group])
            assert np.array_equal(everything.vectors, rows.vectors[group])
            assert list(everything.ids) == [rows.ids[position] for position in group]
            assert list(everything.texts) == [rows.texts[position] for position in group]
            assert list(everything.attributes) == [rows.attributes[position] for position in group]
            assert np.array_equal(everything.expires_at, rows.expires_at[group])
        assert shard.verify() == []


def test_any_parquet_reader_opens_a_shard(tmp_path: Path) -> None:
    rows = make_rows()
    entry, groups = written(tmp_path, rows)
    table = pq.read_table(tmp_path / "s.parquet")
    order = np.concatenate(groups)
    assert table.column_names == ["row", "vector", "id", "text", "attributes", "expires_at"]
    assert table["row"].to_pylist() == rows.rownums[order].tolist()
    assert table["vector"].to_pylist() == [rows.vectors[position].tobytes() for position in order]
    assert table["text"].to_pylist() == [rows.texts[position] for position in order]
    assert table["expires_at"].to_pylist() == [int(rows.expires_at[position]) or None for position in order]
    metadata = pq.read_metadata(tmp_path / "s.parquet")
    assert metadata.num_row_groups == len(entry.groups)
    assert metadata.metadata[b"dataplane.collection"] == b"tenant/notes"
    assert metadata.metadata[b"dataplane.seq"] == b"4711"
    assert metadata.row_group(0).column(1).compression == "UNCOMPRESSED"
    assert metadata.row_group(0).column(3).compression == "ZSTD"


def test_an_entry_survives_its_trip_through_a_manifest(tmp_path: Path) -> None:
    entry, _ = written(tmp_path, make_rows())
    assert msgspec.json.decode(msgspec.json.encode(entry), type=ShardEntry) == entry


@pytest.mark.parametrize("dimensions", [1, 3, 256, 4096])
def test_vectors_of_any_length_are_read_back(tmp_path: Path, dimensions: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((130, dimensions)).astype(np.float32)
    rows = dataclasses.replace(make_rows(130), vectors=vectors)
    groups = [np.arange(100), np.arange(100, 129), np.array([129])]
    meta = ShardMeta("c", 1, dimensions, "l2")
    entry = write_shard(tmp_path, "s.parquet", rows, groups, meta)
    with Shard.open(tmp_path / "s.parquet", entry) as shard:
        for number, group in enumerate(groups):
            assert np.array_equal(shard.read_vectors(number)[1], vectors[group])


def test_empty_strings_huge_texts_and_nul_bytes_are_kept(tmp_path: Path) -> None:
    texts = ["", "\0", "x" * 2_000_000, "é\n"]
    rows = dataclasses.replace(make_rows(4), texts=texts)
    entry = write_shard(tmp_path, "s.parquet", rows, [np.arange(4)], META)
    with Shard.open(tmp_path / "s.parquet", entry) as shard:
        assert list(shard.read_rows(0).texts) == texts


def test_a_flipped_byte_anywhere_is_an_error_that_names_the_group_or_no_change_to_what_is_read(tmp_path: Path) -> None:
    rows = make_rows()
    entry, groups = written(tmp_path, rows)
    path = tmp_path / "s.parquet"
    for position in range(0, entry.bytes, 97):
        flip(path, position)
        hit = [number for number, at in enumerate(entry.groups) if at.offset <= position < at.offset + at.length]
        with Shard.open(path, entry) as shard:
            problems = shard.verify()
            assert problems
            assert all(str(path) in problem for problem in problems)
            for number in hit:
                with pytest.raises(ChecksumMismatch, match=rf"s\.parquet: row group {number} is not what was written"):
                    shard.read_rows(number)
            for number in {0, len(groups) - 1} - set(hit):
                assert np.array_equal(shard.read_vectors(number)[1], rows.vectors[groups[number]])
        flip(path, position)
    with Shard.open(path, entry) as shard:
        assert shard.verify() == []


def test_a_flipped_byte_of_a_vector_fails_the_read_of_vectors_every_time(tmp_path: Path) -> None:
    entry, _ = written(tmp_path, make_rows())
    flip(tmp_path / "s.parquet", entry.groups[2].offset + entry.groups[2].head - 5)
    with Shard.open(tmp_path / "s.parquet", entry) as shard:
        for _ in range(2):
            with pytest.raises(ChecksumMismatch, match="row group 2"):
                shard.read_vectors(2)
        (problem,) = shard.verify()
    assert problem.startswith(f"{tmp_path}/s.parquet: row group 2 is not what was written (its checksum differs).")


def test_a_broken_footer_fails_rows_but_not_vectors(tmp_path: Path) -> None:
    rows = make_rows()
    entry, groups = written(tmp_path, rows)
    flip(tmp_path / "s.parquet", entry.bytes - 20)
    with Shard.open(tmp_path / "s.parquet", entry) as shard:
        assert np.array_equal(shard.read_vectors(1)[1], rows.vectors[groups[1]])
        with pytest.raises(ChecksumMismatch, match="its footer"):
            shard.read_rows(1)


def test_a_missing_or_truncated_shard_is_damaged(tmp_path: Path) -> None:
    entry, _ = written(tmp_path, make_rows())
    os.truncate(tmp_path / "s.parquet", entry.bytes - 1)
    with pytest.raises(Damaged, match=r"s\.parquet is \d+ bytes long"):
        Shard.open(tmp_path / "s.parquet", entry)
    (tmp_path / "s.parquet").unlink()
    with pytest.raises(Damaged, match=r"s\.parquet is missing"):
        Shard.open(tmp_path / "s.parquet", entry)


def test_a_shard_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    entry, _ = written(tmp_path, make_rows())
    with pytest.raises(UnsupportedFormat, match="newer release"):
        Shard.open(tmp_path / "s.parquet", msgspec.structs.replace(entry, format=2))


def test_another_shard_under_the_entry_s_name_is_found_by_verify(tmp_path: Path) -> None:
    rows = make_rows()
    entry, groups = written(tmp_path, rows)
    write_shard(tmp_path, "s.parquet", rows, groups, msgspec.structs.replace(META, seq=4712))
    with Shard.open(tmp_path / "s.parquet", entry) as shard:
        assert shard.verify()


def test_an_open_shard_outlives_its_name_and_a_closed_one_refuses(tmp_path: Path) -> None:
    rows = make_rows()
    entry, groups = written(tmp_path, rows)
    shard = Shard.open(tmp_path / "s.parquet", entry)
    (tmp_path / "s.parquet").unlink()
    assert list(shard.read_rows(0).ids) == [rows.ids[position] for position in groups[0]]
    shard.release()
    assert list(shard.read_rows(1).ids) == [rows.ids[position] for position in groups[1]]
    shard.close()
    shard.close()
    with pytest.raises(Closed):
        shard.read_vectors(0)
    with pytest.raises(Closed):
        shard.read_rows(0)


def test_prewarming_asks_for_the_heads_and_changes_no_answer(tmp_path: Path) -> None:
    rows = make_rows()
    entry, groups = written(tmp_path, rows)
    with Shard.open(tmp_path / "s.parquet", entry) as shard:
        assert shard.prewarm([]) == 0
        assert shard.prewarm([1]) == entry.groups[1].head
        everything = shard.prewarm(range(len(groups)), wait=True)
        last = entry.groups[-1]
        assert everything == last.offset + last.head - entry.groups[0].offset  # near each other: one range
        assert np.array_equal(shard.read_vectors(0)[1], rows.vectors[groups[0]])


def test_rows_and_groups_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    rows = make_rows(10)
    every = [np.arange(10)]
    replaced = dataclasses.replace
    cases: list[tuple[ShardRows, list[Slots], str]] = [
        (rows, [np.arange(9)], "every row is in exactly one"),
        (rows, [np.arange(10), np.array([3])], "every row is in exactly one"),
        (rows, [np.arange(10), np.arange(0)], "not empty"),
        (rows, [], "every row is in exactly one"),
        (replaced(rows, texts=["a"]), every, "as long as their row numbers"),
        (replaced(rows, vectors=rows.vectors.astype(np.float64)), every, "float32"),
        (replaced(rows, texts=["\ud800"] * 10), every, "cannot be stored"),
        (make_rows(0), [], "at least one row"),
    ]
    for bad, groups, message in cases:
        with pytest.raises(InvalidInput, match=message):
            write_shard(tmp_path, "s.parquet", bad, groups, META)
    with pytest.raises(DimensionMismatch, match="12 dimensions, and the shard's have 13"):
        write_shard(tmp_path, "s.parquet", rows, every, msgspec.structs.replace(META, dimensions=13))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delay_s", [0.004, 0.017, 0.033])
def test_a_killed_writer_leaves_a_whole_shard_and_a_leftover(tmp_path: Path, delay_s: float) -> None:
    assert killed(WRITER, tmp_path, lines=2, wait_s=delay_s)[:2] == ["ready", "written"]
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]
    rows = make_rows(3000)
    table = pq.read_table(tmp_path / "s.parquet")
    order = np.concatenate(groups_of(rows))
    assert table["vector"].to_pylist() == [rows.vectors[position].tobytes() for position in order]

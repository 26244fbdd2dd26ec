"""Erasing: no object holds what must go, raw or decoded, and the receipt shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataplane.cold import manifest
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_erasure import Subject, look_again
from dataplane.cold.archive_export import Limits
from dataplane.cold.archive_restore import restore
from dataplane.errors import Conflict, InvalidInput
from tests.dataplane.boxes import content, fill, ids, local_bucket, open_box


class Erasable:
    """A box with a history in its archive: several manifests, deletions, replaced rows."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "cold"
        self.bucket = local_bucket(self.folder)
        self.box = open_box(tmp_path / "box")
        self.new = open_box(tmp_path / "new")
        self.alice, self.bob = fill(self.box, 1_000)
        self.archiver = Archiver(self.box, self.bucket, Limits(segment_rows=300))

    def holds(self, needle: bytes) -> list[str]:
        """The files that have `needle` in their bytes or in any decoded value."""
        return [
            path.name
            for path in self.folder.rglob("*")
            if path.is_file() and (needle in path.read_bytes() or needle in decoded(path))
        ]


def decoded(path: Path) -> bytes:
    if path.suffix != ".parquet":
        return b""
    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    values = (value for column in table.columns for value in column.to_pylist())
    return b"\0".join(v if isinstance(v, bytes) else str(v).encode() for v in values)


@pytest.fixture
async def erasable(tmp_path: Path) -> AsyncIterator[Erasable]:
    made = Erasable(tmp_path)
    await made.archiver.archive()
    made.alice.upsert(1, ids(400, 20), "third text of")
    await made.archiver.archive()
    yield made
    made.box.close()
    made.new.close()


async def test_erased_rows_are_in_no_object_however_old(erasable: Erasable) -> None:
    gone = ids(400, 20)
    erasable.alice.delete(1, gone)
    await erasable.archiver.archive()
    assert erasable.holds(b"row-00405")
    receipt = await erasable.archiver.erase("alice", collection="notes", ids=gone)
    assert receipt.left == ()
    assert receipt.rewritten == 1  # compaction had removed their latest versions
    assert receipt.removed
    assert receipt.searched == len([path for path in erasable.folder.rglob("*") if path.is_file()])
    assert not [name for one in gone for name in erasable.holds(one.encode())]
    assert not erasable.holds(b"third text of")
    assert erasable.holds(b"row-00421")
    assert await manifest.verify(erasable.bucket, deep=True) == []
    await restore(erasable.bucket, erasable.new)
    assert content(erasable.new) == content(erasable.box)


async def test_an_erased_collection_is_in_no_object(erasable: Erasable) -> None:
    erasable.alice.drop("notes", 1)
    receipt = await erasable.archiver.erase("alice", collection="notes")
    assert receipt.left == ()
    assert not erasable.holds(b"text of")
    assert erasable.holds(b"bob says")
    await restore(erasable.bucket, erasable.new)
    assert content(erasable.new) == content(erasable.box)


async def test_an_erased_tenant_is_in_no_object_not_even_by_name(erasable: Erasable) -> None:
    erasable.alice.drop_all()
    receipt = await erasable.archiver.erase("alice")
    assert receipt.left == ()
    assert not erasable.holds(b"alice")
    assert not erasable.holds(b"text of")
    assert erasable.holds(b"bob")
    assert (await erasable.archiver.archive()).objects == 0
    await restore(erasable.bucket, erasable.new)
    assert content(erasable.new) == content(erasable.box)


async def test_what_is_still_on_the_box_is_not_erased(erasable: Erasable) -> None:
    for wanted in ({"ids": ids(700, 1), "collection": "notes"}, {"collection": "notes"}, {}):
        with pytest.raises(Conflict, match="the box still has"):
            await erasable.archiver.erase("alice", **wanted)


async def test_ids_need_a_collection_and_a_collection_of_ids_is_not_empty(erasable: Erasable) -> None:
    for wanted in ({"ids": ["a"]}, {"ids": [], "collection": "notes"}):
        with pytest.raises(InvalidInput, match="name their collection"):
            await erasable.archiver.erase("alice", **wanted)


async def test_halves_of_objects_in_a_local_folder_are_erased_too(erasable: Erasable) -> None:
    (erasable.folder / "acu/segments/half.parquet#1").write_bytes(b"row-00405")
    erasable.alice.delete(1, ids(405, 1))
    await erasable.archiver.erase("alice", collection="notes", ids=ids(405, 1))
    assert not erasable.holds(b"row-00405")


async def test_the_second_look_finds_what_is_left(erasable: Erasable) -> None:
    await erasable.bucket.put("segments/stray.parquet", b"who knows")
    searched, left = await look_again(erasable.bucket, Subject.of("alice", None, None))
    assert searched == len([path for path in erasable.folder.rglob("*") if path.is_file()])
    assert {problem.object for problem in left} == {manifest.name_of(1), manifest.name_of(2), "segments/stray.parquet"}
    _, left = await look_again(erasable.bucket, Subject.of("alice", "notes", ids(401, 1)))
    assert len({problem.object for problem in left}) == 3  # both versions of the row, and the stray

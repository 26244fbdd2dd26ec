"""Restore: only into an empty box, only what was written, and only as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dataplane.cold import archive_position as positions
from dataplane.cold import manifest
from dataplane.cold.archive import Archiver
from dataplane.cold.archive_export import Limits
from dataplane.cold.archive_restore import RestoreReport, restore
from dataplane.cold.bucket import Bucket
from dataplane.errors import ChecksumMismatch, Conflict, Damaged, NotFound
from dataplane.truth.rocks import Rocks
from tests.dataplane.boxes import Tenant, content, fill, ids, local_bucket, open_box


class Interrupted(Exception):
    """Raised in a test's progress callback."""


class Archived:
    """A box whose archive is complete, and a new one."""

    def __init__(self, tmp_path: Path) -> None:
        self.bucket: Bucket = local_bucket(tmp_path / "cold")
        self.box: Rocks = open_box(tmp_path / "box")
        self.new: Rocks = open_box(tmp_path / "new")
        self.alice, self.bob = fill(self.box, 500)
        self.archiver = Archiver(self.box, self.bucket, Limits(segment_rows=200))


@pytest.fixture
async def archived(tmp_path: Path) -> AsyncIterator[Archived]:
    made = Archived(tmp_path)
    await made.archiver.archive()
    yield made
    made.box.close()
    made.new.close()


async def test_a_box_that_is_not_empty_is_refused_and_untouched(archived: Archived) -> None:
    Tenant(archived.new, "carol").put_state("session", b"mine")
    before = content(archived.new)
    with pytest.raises(Conflict, match="not empty"):
        await restore(archived.bucket, archived.new)
    assert content(archived.new) == before
    positions.check_restored(archived.new)


async def test_a_bucket_without_an_archive_says_so(tmp_path: Path) -> None:
    box = open_box(tmp_path / "box")
    try:
        with pytest.raises(NotFound, match="no archive"):
            await restore(local_bucket(tmp_path / "cold"), box)
        positions.check_restored(box)
    finally:
        box.close()


async def test_a_restore_that_was_broken_off_counts_for_nothing_until_it_is_run_again(archived: Archived) -> None:
    def interrupt(report: RestoreReport) -> None:
        if report.rows:
            raise Interrupted

    with pytest.raises(Interrupted):
        await restore(archived.bucket, archived.new, interrupt)
    with pytest.raises(Damaged, match="run `acu data restore` again"):
        positions.check_restored(archived.new)
    # The archive moves on meanwhile: what it no longer has must not stay from the first try.
    archived.bob.drop_all()
    archived.alice.delete(1, ids(200, 50))
    await archived.archiver.archive()
    report = await restore(archived.bucket, archived.new)
    positions.check_restored(archived.new)
    assert report.manifest == 2
    assert report.rows == 400
    assert content(archived.new) == content(archived.box)


async def test_a_flipped_byte_in_any_segment_is_found_and_named(archived: Archived) -> None:
    segments = list((await manifest.shelf(archived.bucket)).whole[0].manifest.segments())
    for segment in segments:
        data = bytearray(await archived.bucket.get(segment.name))
        data[len(data) // 3] ^= 0x10
        await archived.bucket.put(segment.name, bytes(data))
        with pytest.raises(ChecksumMismatch, match=segment.name):
            await restore(archived.bucket, archived.new)
        with pytest.raises(Damaged):
            positions.check_restored(archived.new)
        data[len(data) // 3] ^= 0x10
        await archived.bucket.put(segment.name, bytes(data))
    await restore(archived.bucket, archived.new)
    assert content(archived.new) == content(archived.box)


async def test_a_missing_segment_is_named(archived: Archived) -> None:
    segment = (await manifest.shelf(archived.bucket)).whole[0].manifest.collections[0].rows[0].sealed
    await archived.bucket.delete([segment.name])
    with pytest.raises(Damaged, match=f"{segment.name} is missing"):
        await restore(archived.bucket, archived.new)


async def test_a_damaged_newest_manifest_is_passed_over_and_told(archived: Archived) -> None:
    before = content(archived.box)
    archived.alice.upsert(1, ids(3_000, 3))
    await archived.archiver.archive()
    name = manifest.name_of(2)
    await archived.bucket.put(name, bytes(await archived.bucket.get(name))[:-40])
    report = await restore(archived.bucket, archived.new)
    assert report.manifest == 1
    assert [problem.object for problem in report.passed_over] == [name]
    assert content(archived.new) == before


async def test_a_restored_box_archives_on_and_the_old_one_is_refused(archived: Archived, tmp_path: Path) -> None:
    await restore(archived.bucket, archived.new)
    assert positions.backlog(archived.new) == (0, 0)
    report = await Archiver(archived.new, archived.bucket).archive()
    assert (report.rows, report.manifest) == (0, 2)
    archived.alice.upsert(1, ids(3_000, 3))
    with pytest.raises(Conflict, match="belongs to another box"):
        await archived.archiver.archive()
    Tenant(archived.new, "carol").put_state("session", b"new")
    await Archiver(archived.new, archived.bucket).archive()
    third = open_box(tmp_path / "third")
    try:
        await restore(archived.bucket, third)
        assert content(third) == content(archived.new)
    finally:
        third.close()

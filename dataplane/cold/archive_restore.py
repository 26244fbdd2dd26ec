"""Restore: an empty box becomes what its archive says.

    1. the marker, durable. From now on the box does not open (`archive_position.check_restored`)
    2. meta, state and events, then each collection's rows, vectors and index, then the files (archive_attachments.py); all by
       content whose SHA-256 is right
    3. the position: the box goes on from this manifest, under a name of its own; and the marker goes, in the same batch

A restore that was broken off, for whatever reason, is run again: it empties the box first, for the archive may have moved
on. Sequence numbers and counters come with meta, and are those up to which the rows are.

The family `dead` stays empty: it tells accelerators what ended since they were built, and a restored box has none yet.
Nor does the archive have all of it, for its values hold the texts of rows that ended.
Once the restored box has archived, the box that was restored from can no longer: its archive belongs to the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dataplane.cold import archive_position as positions
from dataplane.cold import attachments, filelist
from dataplane.cold import manifest as manifests
from dataplane.cold.archive_attachments import Incoming
from dataplane.cold.archive_position import MARKER_KEY
from dataplane.cold.archive_rewrite import Deletions, deletions_of
from dataplane.cold.archive_source import BOX, tenant_of
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Collection, EntrySegment, Manifest, Problem, RowSegment, Stored
from dataplane.cold.segments import REMEDY, Entry, Row, fetch, read_entries, read_rows
from dataplane.errors import Conflict, Damaged, InvalidInput, NotFound
from dataplane.threads import in_thread
from dataplane.truth import keys, records
from dataplane.truth.rocks import FAMILIES, Rocks

BATCH_ROWS = 128
BATCH_BYTES = 1 << 20


@dataclass(slots=True)
class RestoreReport:
    """What came back. It counts while the restore goes on."""

    manifest: int = 0
    created_ms: int = 0  # when that was written: what came later is not in it
    rows: int = 0
    entries: int = 0  # of meta, state and events
    files: int = 0
    bytes: int = 0  # read
    passed_over: tuple[Problem, ...] = ()  # newer manifests that are damaged: what only they had is lost


async def restore(
    bucket: Bucket,
    rocks: Rocks,
    progress: Callable[[RestoreReport], None] | None = None,
    folder: Path | None = None,
) -> RestoreReport:
    """Fill an empty box from the newest whole manifest. `progress` is told after each object and each file.

    `folder` is the data plane's, where files go to their places. Raises Conflict for a box that is not empty, NotFound where
    there is no manifest, InvalidInput for an archive with files and no folder for them, Damaged and ChecksumMismatch for an
    object that is not what was written, BucketUnreachable, StorageFull. After an error the box counts as not restored.
    """
    await in_thread(_check_empty, rocks, folder)
    shelf = await manifests.shelf(bucket)
    if not shelf.whole:
        what = f"no whole manifest ({shelf.broken[0].what})" if shelf.broken else "no archive"
        raise NotFound(f"{bucket.where} has {what}: check bucket and prefix.")
    stored = shelf.whole[0]
    if stored.manifest.files.count and folder is None:
        raise InvalidInput("the archive has files: say in which folder they belong.", param="folder")
    report = RestoreReport(stored.manifest.number, stored.manifest.created_ms, passed_over=tuple(shelf.broken))
    await in_thread(_begin, rocks, folder)
    filling = _Filling(bucket, rocks, report, progress)
    for entries in stored.manifest.entries:
        if entries.family != filelist.FAMILY:
            await filling.entries(entries)
    for collection in stored.manifest.collections:
        await filling.collection(collection)
    if folder is not None:
        await filling.files(stored.manifest, folder)
    await in_thread(_end, rocks, stored)
    return report


class _Filling:
    def __init__(
        self, bucket: Bucket, rocks: Rocks, report: RestoreReport, progress: Callable[[RestoreReport], None] | None
    ) -> None:
        self._bucket = bucket
        self._rocks = rocks
        self._report = report
        self._progress = progress

    async def entries(self, segment: EntrySegment) -> None:
        """A range of keys."""
        if segment.family not in FAMILIES:
            raise Damaged(f"{segment.sealed.name} is of a family {segment.family}, which this release does not have.")
        name = segment.sealed.name
        groups = read_entries(name, await fetch(self._bucket, segment.sealed))
        found = 0
        while (group := await in_thread(next, groups, None)) is not None:
            found += len(group)
            await in_thread(self._write_entries, segment.family, group)
        self._report.entries += found
        self._count(name, segment.sealed.size, found, segment.sealed.count)

    async def collection(self, collection: Collection) -> None:
        """All of a collection but its name and numbers, which are entries."""
        deletions = await deletions_of(self._bucket, collection)
        for segment in collection.rows:
            await self._rows(collection, segment, deletions)
        await in_thread(self._write_seq, collection)

    async def files(self, manifest: Manifest, folder: Path) -> None:
        """All files, durably. From then on they are known."""
        incoming = Incoming(self._bucket, folder, self._told)
        for segment in filelist.segments(manifest):
            async for files in filelist.read(self._bucket, segment):
                for file in files:
                    await incoming.bring(file)
                    self._report.files += 1
                    self._told(0)
                await in_thread(filelist.remember, self._rocks, files)
        await incoming.finish()
        if self._report.files != manifest.files.count:
            raise Damaged(
                f"the lists of manifest {manifest.number} in {self._bucket.where} have {self._report.files} files, and it says "
                f"{manifest.files.count}. {REMEDY}"
            )

    async def _rows(self, collection: Collection, segment: RowSegment, deletions: Deletions) -> None:
        name = segment.sealed.name
        groups = read_rows(name, await fetch(self._bucket, segment.sealed), collection.width)
        found = 0
        while (group := await in_thread(next, groups, None)) is not None:
            found += len(group)
            numbers = np.array([row.number for row in group], dtype=np.uint64)
            gone = deletions.ended(numbers, segment.applied).tolist()
            live = [row for row, ended in zip(group, gone, strict=True) if not ended]
            await in_thread(self._write_rows, collection, live)
            self._report.rows += len(live)
        self._count(name, segment.sealed.size, found, segment.sealed.count)

    def _count(self, name: str, size: int, found: int, expected: int) -> None:
        if found != expected:
            raise Damaged(
                f"{name} in {self._bucket.where} has {found} rows, and its manifest says {expected}. {REMEDY}"
            )
        self._told(size)

    def _told(self, size: int) -> None:
        self._report.bytes += size
        if self._progress is not None:
            self._progress(self._report)

    def _write_seq(self, collection: Collection) -> None:
        """The number of the last change: its entry may be older than the rows."""
        key = keys.tenant_prefix(collection.tenant) + b"s" + keys.number(collection.number)
        if int.from_bytes(self._rocks.get("meta", key) or b"", "big") < collection.seq:
            self._write_entries("meta", [(key, keys.number(collection.seq))])

    def _write_entries(self, family: str, entries: list[Entry]) -> None:
        for part in _parts(entries):
            batch = self._rocks.batch()
            for key, value in part:
                batch.put(family, key, value)
            self._rocks.write(batch)

    def _write_rows(self, collection: Collection, rows: list[Row]) -> None:
        scope = keys.scope(collection.tenant, collection.number)
        for start in range(0, len(rows), BATCH_ROWS):
            batch = self._rocks.batch()
            for row in rows[start : start + BATCH_ROWS]:
                number = keys.number(row.number)
                batch.put("rows", scope + number, records.encode(row.record))
                batch.put("vectors", scope + number, row.vector)
                batch.put("index", scope + keys.name(row.record.id), number)
            self._rocks.write(batch)


def _check_empty(rocks: Rocks, folder: Path | None) -> None:
    if rocks.get("meta", MARKER_KEY) is not None:
        return  # what is there does not count
    for family in FAMILIES:
        if _first_key(rocks, family) is not None:
            raise _not_empty()
    if folder is not None and not attachments.none_in(folder):
        raise _not_empty()


def _not_empty() -> Conflict:
    return Conflict("this box is not empty: restore into a new data directory, or move the old one away first.")


def _begin(rocks: Rocks, folder: Path | None) -> None:
    """Set the marker, and remove what a restore that was broken off has left."""
    batch = rocks.batch()
    batch.put("meta", MARKER_KEY, b"")
    rocks.write(batch)
    rocks.sync()
    for family in FAMILIES:
        while (key := _first_key(rocks, family)) is not None:
            batch = rocks.batch()
            batch.delete_prefix(family, keys.tenant_prefix(tenant_of(key)))
            rocks.write(batch)
    filelist.forget_all(rocks)
    if folder is not None:
        attachments.remove_all(folder)


def _end(rocks: Rocks, stored: Stored) -> None:
    rocks.sync()
    batch = rocks.batch()
    positions.add_to(batch, positions.new().moved_to(stored.manifest, stored.sha256))
    batch.delete("meta", MARKER_KEY)
    rocks.write(batch)
    rocks.sync()


def _first_key(rocks: Rocks, family: str) -> bytes | None:
    """The first key of any tenant."""
    with contextlib.closing(rocks.scan(family, b"", start=BOX[:1] + b"\x01")) as found:
        return next((key for key, _ in found), None)


def _parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Batches that are small in number and in bytes."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += len(entry[0]) + len(entry[1])
        if len(part) == BATCH_ROWS or size > BATCH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part

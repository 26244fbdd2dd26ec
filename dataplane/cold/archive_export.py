"""Export: one run's way from the box into the bucket. It puts segments, and names what it put; it writes no manifest.

Rows go by row number: those above the number up to which the collection is archived, in segments of `segment_rows`. A run
that was broken off has left whole segments, which the next run, cutting at the same numbers, makes again and finds there.
Everything else (meta, state, events) goes by ranges of keys: a range whose content an earlier manifest has is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from dataplane.cold.archive_source import (
    CHUNK_BYTES,
    STEP,
    Chunk,
    Chunker,
    Source,
    read_deletions,
    read_entries,
    read_rows,
)
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Collection, DeletionSegment, EntrySegment, RowSegment
from dataplane.cold.segments import Entry, Numbers, Row, Sealed, SegmentWriter
from dataplane.errors import Conflict
from dataplane.threads import in_thread
from dataplane.truth.rocks import Rocks

FOLLOWED = 65_536  # changes beyond the run's beginning that its reading follows at most, or as many as it had to read


class Limits(Struct, frozen=True, kw_only=True):
    """How large the pieces are, and when they are rewritten."""

    segment_rows: int = 20_000
    segment_bytes: int = 64 << 20
    dead_share: float = 0.3
    small_run: int = 8
    deletion_segments: int = 8
    rewrite_bytes: int = 256 << 20  # a run
    manifests_kept: int = 3


@dataclass(slots=True)
class ArchiveReport:
    """What a run did. It counts while the run goes on."""

    rows: int = 0  # sent for the first time
    files: int = 0  # read and sent for the first time
    objects: int = 0  # put, the manifest included
    bytes: int = 0  # put
    skipped: int = 0  # segments and parts of files that were in the bucket already
    rewritten: int = 0  # segments that compaction or erasing replaced
    removed: int = 0  # objects that nothing names any more
    manifest: int = 0  # the newest one's number
    damaged: list[str] = field(default_factory=list)  # files that are not what they should be, and what is wrong
    seqs: dict[tuple[str, int], int] = field(default_factory=dict)  # tenant and collection's number -> archived up to


Progress = Callable[[ArchiveReport], None]


class Export:
    """What a run needs, and what it has done. `overwrite`: put also what seems to be there (it may be damaged)."""

    def __init__(
        self, rocks: Rocks, bucket: Bucket, limits: Limits, progress: Progress | None, *, overwrite: bool
    ) -> None:
        self.bucket = bucket
        self.limits = limits
        self.report = ArchiveReport()
        self.rewrite_left = limits.rewrite_bytes
        self._rocks = rocks
        self._progress = progress
        self._overwrite = overwrite

    async def ship(self, writer: SegmentWriter) -> Sealed:
        """End a segment and put it, unless it is there."""
        sealed, content = await in_thread(writer.finish)
        await self.put(sealed.name, content, sealed.size)
        return sealed

    async def put(self, name: str, content: Any, size: int) -> None:
        """Put an object that is named for its content, unless it is there."""
        if self._overwrite:
            await self.bucket.put(name, content)
            put = True
        else:
            put = await self.bucket.put_new(name, content)
        self.count(size if put else None)

    def count(self, size: int | None) -> None:
        """Count an object of `size` bytes that was put; None: one that was there."""
        if size is None:
            self.report.skipped += 1
        else:
            self.report.objects += 1
            self.report.bytes += size
        if self._progress is not None:
            self._progress(self.report)

    def rows_writer(self, width: int, *, applied: int) -> RowsWriter:
        """A writer of row segments. `applied`: the deletion up to which the rows are."""
        return RowsWriter(self, width, applied)

    async def family(self, family: str, known: Iterable[EntrySegment]) -> list[EntrySegment]:
        """All of a family, a range of keys after the other. `known` ranges are not sent."""
        ranges = Ranges(self, family, known)
        after: bytes | None = None
        while step := await in_thread(read_entries, self._rocks, family, after):
            after = step[-1][0]
            await ranges.add(step)
        return await ranges.end()

    async def entries(self, family: str, entries: Sequence[Entry], known: Iterable[EntrySegment]) -> list[EntrySegment]:
        """As `family`, for entries that are at hand."""
        ranges = Ranges(self, family, known)
        for start in range(0, len(entries), STEP):
            await ranges.add(list(entries[start : start + STEP]))
        return await ranges.end()

    async def collection(self, source: Source, before: Collection | None) -> Collection:
        """A collection up to its sequence number now. `before`: as the last manifest has it. Raises Conflict, Damaged."""
        record = source.record
        if before is None:
            before = Collection(
                tenant=source.tenant, name=record.name, number=record.number, dimensions=record.dimensions, seq=0
            )
        if source.seq < before.seq:
            raise Conflict(
                f"the archive has collection {record.name} up to change {before.seq}, and the box up to {source.seq}: it was "
                "set back. Run `acu data archive --restart` to archive what the box has now."
            )
        if source.seq == before.seq:
            return before
        rows, reached = await self._rows(source, before)
        seqs, ended, deletions = await self._deletions(source._replace(seq=reached), before)
        return msgspec.structs.replace(
            before,
            seq=reached,
            rows=(*_with_dead(before.rows, ended), *_with_dead(rows, ended[seqs > source.seq])),
            deletions=(*before.deletions, *deletions),
        )

    async def _deletions(self, source: Source, before: Collection) -> tuple[Numbers, Numbers, list[DeletionSegment]]:
        """Their sequence numbers, the rows that ended, and what they are written in."""
        writer = SegmentWriter("deletions")
        steps = []
        after = before.seq
        while True:
            seqs, numbers = await in_thread(read_deletions, self._rocks, source, after)
            if not len(seqs):
                break
            after = int(seqs[-1])
            steps.append((seqs, numbers))
            await in_thread(writer.add_deletions, seqs, numbers)
        if not steps:
            nothing = np.empty(0, dtype=np.uint64)
            return nothing, nothing, []
        all_seqs, ended = (np.concatenate(part) for part in zip(*steps, strict=True))
        return all_seqs, ended, [DeletionSegment(sealed=await self.ship(writer), last=after)]

    async def _rows(self, source: Source, before: Collection) -> tuple[list[RowSegment], int]:
        """The rows, and the sequence number up to which they are.

        A row that is replaced before it is read is met again as the row that replaced it, whose number is higher. So the
        reading goes on beyond the source's number until nothing is left, and no id that is there all the time is missed: but
        not for ever, where rows are written faster than they are archived.
        """
        writer = self.rows_writer(source.width, applied=source.seq)
        beyond = source._replace(seq=source.seq + max(source.seq - before.seq, FOLLOWED))
        reached, at = source.seq, before.seq + 1
        while True:
            rows, following = await in_thread(read_rows, self._rocks, beyond, at)
            if following is None:
                return await writer.finish(), reached
            at, reached = following, max(reached, following - 1)
            self.report.rows += len(rows)
            await writer.add(rows)


class RowsWriter:
    """Writes rows into as many segments as they need, and puts each when it is full."""

    def __init__(self, export: Export, width: int, applied: int) -> None:
        self._export = export
        self._width = width
        self._applied = applied
        self._done: list[RowSegment] = []
        self._writer: SegmentWriter | None = None
        self._first = self._last = 0

    async def add(self, rows: Sequence[Row]) -> None:
        """Write rows, whose numbers are above those before."""
        limits = self._export.limits
        while rows:
            if self._writer is None:
                self._writer = SegmentWriter("rows", width=self._width)
                self._first = rows[0].number
            room = limits.segment_rows - self._writer.count
            now, rows = rows[:room], rows[room:]
            self._last = now[-1].number
            await in_thread(self._writer.add_rows, now)
            if self._writer.count >= limits.segment_rows or self._writer.size >= limits.segment_bytes:
                await self._ship(self._writer)

    async def finish(self) -> list[RowSegment]:
        """Put the last segment, and name them all."""
        if self._writer is not None:
            await self._ship(self._writer)
        return self._done

    async def _ship(self, writer: SegmentWriter) -> None:
        self._writer = None
        sealed = await self._export.ship(writer)
        self._done.append(RowSegment(sealed=sealed, first=self._first, last=self._last, applied=self._applied))


class Ranges:
    """Cuts a family into ranges of about `size` bytes, and sends those that are not known."""

    def __init__(self, export: Export, family: str, known: Iterable[EntrySegment], size: int = CHUNK_BYTES) -> None:
        self._export = export
        self._family = family
        self._known = {(one.tenant, one.content): one for one in known if one.family == family}
        self._chunker = Chunker(size)
        self._done: list[EntrySegment] = []

    async def add(self, entries: list[Entry]) -> None:
        """Take entries in the order of their keys."""
        for chunk in await in_thread(lambda: list(self._chunker.add(entries))):
            await self._send(chunk)

    async def end(self) -> list[EntrySegment]:
        """Name all ranges."""
        for chunk in self._chunker.end():
            await self._send(chunk)
        return self._done

    async def _send(self, chunk: Chunk) -> None:
        segment = self._known.get((chunk.tenant, chunk.content))
        if segment is None:
            writer = SegmentWriter("entries")
            for start in range(0, len(chunk.entries), STEP):
                await in_thread(writer.add_entries, chunk.entries[start : start + STEP])
            sealed = await self._export.ship(writer)
            segment = EntrySegment(sealed=sealed, family=self._family, tenant=chunk.tenant, content=chunk.content)
        else:
            self._export.count(None)
        self._done.append(segment)


def _with_dead(segments: Sequence[RowSegment], ended: Numbers) -> list[RowSegment]:
    """The segments with the rows counted that ended since."""
    ended = np.sort(ended)
    borders = [np.searchsorted(ended, [segment.first, segment.last + 1]) for segment in segments]
    return [
        msgspec.structs.replace(segment, dead=min(segment.sealed.count, segment.dead + int(end - start)))
        for segment, (start, end) in zip(segments, borders, strict=True)
    ]

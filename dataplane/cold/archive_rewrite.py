"""Rewriting row segments without the rows that ended: for compaction, and for erasing.

A segment is rewritten from its own content in the bucket, not from the box. It says up to which deletion its content is
(`applied`); a later deletion still counts for it. A deletion that counts for no segment any more is dropped when the
deletions are merged.

Compaction takes segments of which over `dead_share` has ended, and runs of `small_run` or more neighbours that fit into one
segment together. So each archived row is rewritten a few times at most, however small the pieces in which it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dataplane.cold.archive_export import Export
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Collection, DeletionSegment, RowSegment
from dataplane.cold.segments import Numbers, Row, SegmentWriter, fetch, read_deletions, read_rows
from dataplane.threads import in_thread

GROUP = 1 << 16  # deletions written at once


class Deletions(NamedTuple):
    """Rows that ended, in the order of `numbers`; `seqs` says when each did."""

    numbers: Numbers
    seqs: Numbers

    def ended(self, numbers: Numbers, applied: int) -> npt.NDArray[np.bool_]:
        """Which of these rows ended after sequence number `applied`."""
        if not len(self.numbers):
            return np.zeros(len(numbers), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        return np.asarray((self.numbers[at] == numbers) & (self.seqs[at] > applied))


async def deletions_of(bucket: Bucket, collection: Collection) -> Deletions:
    """All deletions that the archive has of a collection: 16 bytes each. Raises Damaged."""
    found = [
        read_deletions(one.sealed.name, await fetch(bucket, one.sealed)) for one in collection.deletions
    ]  # each is read at once: they are 16 bytes a row
    seqs = np.concatenate([np.empty(0, dtype=np.uint64), *(pair[0] for pair in found)])
    numbers = np.concatenate([np.empty(0, dtype=np.uint64), *(pair[1] for pair in found)])
    order = np.argsort(numbers, kind="stable")
    return Deletions(numbers[order], seqs[order])


async def compact(export: Export, collection: Collection) -> Collection:
    """The collection with fewer and fuller segments, within what the run may still rewrite."""
    plan = list(plan_of(collection.rows, export))
    if not plan and len(collection.deletions) <= export.limits.deletion_segments:
        return collection
    deletions = await deletions_of(export.bucket, collection)
    kept: list[RowSegment] = []
    done = 0
    for start, end in plan:
        segments = collection.rows[start:end]
        size = sum(segment.sealed.size for segment in segments)
        if size > export.rewrite_left:
            break
        export.rewrite_left -= size
        kept += collection.rows[done:start]
        kept += await rewrite(export, collection, segments, deletions)
        done = end
    collection = msgspec.structs.replace(collection, rows=(*kept, *collection.rows[done:]))
    return await _merge_deletions(export, collection, deletions)


def plan_of(segments: Sequence[RowSegment], export: Export) -> Iterator[tuple[int, int]]:
    """Ranges of segments to rewrite, in order: from, and up to but not including. Pure."""
    limits = export.limits
    at = 0
    while at < len(segments):
        rows = size = 0
        end = at
        while end < len(segments):
            rows += segments[end].sealed.count - segments[end].dead
            size += segments[end].sealed.size
            if rows > limits.segment_rows or size > limits.segment_bytes:
                break
            end += 1
        if end - at >= limits.small_run:
            yield at, end
            at = end
            continue
        if segments[at].dead > limits.dead_share * segments[at].sealed.count:
            yield at, at + 1
        at += 1


async def rewrite(
    export: Export,
    collection: Collection,
    segments: Sequence[RowSegment],
    deletions: Deletions,
    ids: frozenset[str] = frozenset(),
) -> list[RowSegment]:
    """New segments for the rows of `segments` that have not ended and are none of `ids`. Raises Damaged."""
    writer = export.rows_writer(collection.width, applied=collection.seq)
    for segment in segments:
        content = await fetch(export.bucket, segment.sealed)
        groups = read_rows(segment.sealed.name, content, collection.width)
        while (group := await in_thread(next, groups, None)) is not None:
            numbers = np.array([row.number for row in group], dtype=np.uint64)
            ended = deletions.ended(numbers, segment.applied).tolist()
            await writer.add(
                [row for row, gone in zip(group, ended, strict=True) if not gone and row.record.id not in ids]
            )
        export.report.rewritten += 1
    return await writer.finish()


async def holds(bucket: Bucket, collection: Collection, segment: RowSegment, ids: frozenset[str]) -> bool:
    """Whether a segment has rows, live or ended, with any of these ids."""
    groups = read_rows(segment.sealed.name, await fetch(bucket, segment.sealed), collection.width)

    def found() -> bool:
        return any(row.record.id in ids for row in _flat(groups))

    return await in_thread(found)


async def _merge_deletions(export: Export, collection: Collection, deletions: Deletions) -> Collection:
    """One segment of deletions instead of many, with those that still count."""
    if len(collection.deletions) <= export.limits.deletion_segments:
        return collection
    counts = np.zeros(len(deletions.numbers), dtype=np.bool_)
    for segment in collection.rows:
        start, end = np.searchsorted(deletions.numbers, [segment.first, segment.last + 1])
        counts[start:end] |= deletions.seqs[start:end] > segment.applied
    order = np.argsort(deletions.seqs[counts], kind="stable")
    seqs, numbers = deletions.seqs[counts][order], deletions.numbers[counts][order]
    merged: tuple[DeletionSegment, ...] = ()
    if len(seqs):
        writer = SegmentWriter("deletions")
        for start in range(0, len(seqs), GROUP):
            await in_thread(writer.add_deletions, seqs[start : start + GROUP], numbers[start : start + GROUP])
        merged = (DeletionSegment(sealed=await export.ship(writer), last=collection.deletions[-1].last),)
    return msgspec.structs.replace(collection, deletions=merged)


def _flat(groups: Iterator[list[Row]]) -> Iterator[Row]:
    for group in groups:
        yield from group

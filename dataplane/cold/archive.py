"""Archiver: everything that is on the box, kept in a bucket, so that a lost box comes back from its bucket alone.

A run goes in this order, and each step is harmless if it is the last:

    1. segments      what is new, put under the SHA-256 of its content, and after it the parts of files. Nothing refers to
                     them yet: a run that was broken off leaves loose objects, which the next run finds there, or removes
    2. sync          what was archived is durable on the box too: the box never falls behind its own archive
    3. pending       the checksum of the coming manifest, durable on the box (archive_position.py)
    4. manifest      put with create-if-absent under the next number. From this moment the run counts, as a whole
    5. position      the box knows that it was put; deletions up to there may be forgotten
    6. garbage       manifests but for the newest few, then segments and parts of files that none of those names

What is read from the box is of one moment only in part (archive_source.py). State and events are read first, the families'
names and numbers after them, the rows last, each collection up to the sequence number that it has when nothing is left to
read, and then its deletions up to there. So all rows are there that the state speaks of, if they were written before it. A
row that ends while the run goes on may be in the archive or not, and one that is replaced is there in one version. The files
of the data plane's folder come after all that (archive_attachments.py): an event that moves into a file of the history
meanwhile is in the one, in the other or in both. A file that was uploaded is there before its record; one that is deleted
meanwhile may be a record only. One that is damaged on the box stays in the archive as it was (uploads.py), and so does a shard
of the history.

A run that finds nothing new puts nothing. State and events are read through at each run, which costs time and no requests;
of files that are known only names, sizes and times are looked at.

Nothing here is for two boxes: a manifest has an owner, and whoever meets a newest manifest that it neither wrote nor was
restored from puts nothing and says so. `restart` archives all of the box anew and puts even what seems to be there, which
also heals a bucket whose objects were damaged. What is in the archive and no longer on the box is then no longer in either.

Erasing is a run too, but the old manifests go at once, and with them every segment that holds what must go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from dataplane import clock
from dataplane.cold import archive_position as positions
from dataplane.cold import filelist, uploads
from dataplane.cold import manifest as manifests
from dataplane.cold.archive_attachments import Guarded, Outgoing
from dataplane.cold.archive_erasure import Receipt, Subject, check_gone, look_again
from dataplane.cold.archive_export import ArchiveReport, Export, Limits, Progress
from dataplane.cold.archive_position import Position
from dataplane.cold.archive_rewrite import compact, deletions_of, holds, rewrite
from dataplane.cold.archive_source import read_meta
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Collection, Manifest
from dataplane.threads import in_thread
from dataplane.truth.rocks import Rocks

PENDING_KEPT = 15


class _Run(NamedTuple):
    export: Export
    position: Position
    base: Manifest  # an empty one where the archive begins
    number: int  # of the manifest to come


class Archiver:
    """Archives one open box into one bucket, one run at a time. It changes nothing on the box but its own position."""

    def __init__(self, rocks: Rocks, bucket: Bucket, limits: Limits | None = None, folder: Path | None = None) -> None:
        """`folder`: the data plane's, whose files are archived too. None: what the archive has of files stays as it is."""
        self.uploads: uploads.Listing | None = None  # what uploaded files there must be
        self._folder = folder
        self._rocks = rocks
        self._bucket = bucket
        self._limits = limits or Limits()
        self._one_run = asyncio.Lock()

    async def archive(self, progress: Progress | None = None, *, restart: bool = False) -> ArchiveReport:
        """Bring the archive up to the box. Idempotent. `progress` is told of every object.

        Raises BucketUnreachable and StorageFull (nothing is lost: run it again), Conflict (another box's archive, or a box
        that was set back), Damaged, Closed. A caller that is cancelled has archived nothing, or everything.
        """
        async with self._one_run:
            run = await self._begin(progress, restart=restart)
            if await self._publish(run, always=False):
                removed = await manifests.remove_unnamed(self._bucket, keep=self._limits.manifests_kept)
                run.export.report.removed = len(removed)
            return run.export.report

    async def erase(self, tenant: str, *, collection: str | None = None, ids: Iterable[str] | None = None) -> Receipt:
        """Have no object of the archive hold a tenant, a collection of it, or rows of a collection, however old.

        It must be gone from the box already: Conflict. Everything else on the box is archived on the way. Raises as
        `archive` does; until it has returned, run it again. A bucket that keeps versions of objects keeps them on.
        """
        subject = Subject.of(tenant, collection, ids)
        async with self._one_run:
            await in_thread(check_gone, self._rocks, subject, self._folder)
            run = await self._begin(None, restart=False)
            collections = [await self._without(run.export, one, subject) for one in run.base.collections]
            run = run._replace(base=msgspec.structs.replace(run.base, collections=tuple(collections)))
            await self._publish(run, always=True)
            removed = await manifests.remove_unnamed(self._bucket, keep=1)
            searched, left = await look_again(self._bucket, subject)
        return Receipt(
            tenant=tenant,
            collection=collection,
            ids=len(subject.ids),
            time_ms=clock.now_ms(),
            bucket=self._bucket.where,
            manifest=run.number,
            rewritten=run.export.report.rewritten,
            removed=tuple(removed),
            searched=searched,
            left=tuple(left),
        )

    async def _begin(self, progress: Progress | None, *, restart: bool) -> _Run:
        position = await in_thread(positions.load, self._rocks)
        if position is None:
            position = positions.new()
            await in_thread(positions.save, self._rocks, position)  # deletions are kept for the archive from here on
        found = await manifests.shelf(self._bucket)
        empty = Manifest(number=0, owner=position.owner, created_ms=0)
        if restart:
            positions.check_restart(position, found, self._bucket.where)
            base = empty
        else:
            stored = positions.base(position, found, self._bucket.where)
            base = stored.manifest if stored is not None else empty
            if stored is not None and stored.manifest.number != position.number:  # its answer did not come
                position = position.moved_to(stored.manifest, stored.sha256)
        # Where manifests were lost, their numbers must not come again: the position tells them apart by number.
        number = max(found.last, position.number) + 1
        export = Export(self._rocks, self._bucket, self._limits, progress, overwrite=restart)
        return _Run(export, position, base, number)

    async def _publish(self, run: _Run, *, always: bool) -> bool:
        """Bring `base` up to the box and put it as the next manifest. Returns whether there was anything to put."""
        export, base = run.export, run.base
        entries = [segment for family in ("state", "events") for segment in await export.family(family, base.entries)]
        meta, sources = await in_thread(read_meta, self._rocks)
        entries += await export.entries("meta", meta, base.entries)
        before = {collection.key: collection for collection in base.collections}
        collections = []
        for source in sources:
            collection = await export.collection(source, before.get((source.tenant, source.record.number)))
            collections.append(await compact(export, collection))
            export.report.seqs[collection.key] = collection.seq
        listed, files = [one for one in base.entries if one.family == filelist.FAMILY], base.files
        if self._folder is not None:
            guarded = Guarded()
            if self.uploads is not None:
                guarded, export.report.damaged = await uploads.guarded(
                    self._rocks, self._folder, self.uploads, deep=not base.number
                )
            with_history = partial(guarded.with_history, self._rocks, self._folder, deep=not base.number)
            guarded, wrong = await in_thread(with_history)
            export.report.damaged += wrong
            outgoing = Outgoing(export, self._rocks, self._folder, base.entries, guarded)
            listed, files = await outgoing.ship(anew=not base.number)
        manifest = msgspec.structs.replace(
            base,
            collections=tuple(collections),
            entries=(*entries, *listed),
            files=files,
            owner=run.position.owner,
            format=manifests.FORMAT,
        )
        if manifest == base and base.number and not always:
            export.report.manifest = base.number
            await in_thread(positions.save, self._rocks, run.position)
            return False
        await self._put(run, msgspec.structs.replace(manifest, number=run.number, created_ms=clock.now_ms()))
        return True

    async def _put(self, run: _Run, manifest: Manifest) -> None:
        checksum, content = manifests.seal(manifest)
        position = msgspec.structs.replace(
            run.position, number=run.number - 1, pending=(*run.position.pending[-PENDING_KEPT:], checksum)
        )
        await in_thread(positions.save, self._rocks, position)
        await manifests.put(self._bucket, manifest.number, content)
        run.export.count(len(content))
        run.export.report.manifest = manifest.number
        await in_thread(positions.save, self._rocks, position.moved_to(manifest, checksum))

    async def _without(self, export: Export, collection: Collection, subject: Subject) -> Collection:
        """A collection as the archive has it, without the rows that must go."""
        if not subject.ids or (collection.tenant, collection.name) != (subject.tenant, subject.collection):
            return collection
        deletions = await deletions_of(self._bucket, collection)
        kept = []
        for segment in collection.rows:
            if await holds(self._bucket, collection, segment, subject.ids):
                kept += await rewrite(export, collection, [segment], deletions, subject.ids)
            else:
                kept.append(segment)
        return msgspec.structs.replace(collection, rows=tuple(kept))

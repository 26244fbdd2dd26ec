"""Whether box, archive and model are the same: asked of the data plane's own door, and read from the bucket object by object.

box        every row that is there or was deleted, every record, every event, against the model
archive    its objects decoded one by one, as they lie in the bucket: each key once, byte for byte what the box has; every
           object is named by a manifest, and each that a manifest names is whole
answers    a set of questions, asked when everything is built and at rest
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.outagemodel import KIND, Diary, Model
from benchmarks.outagesearch import Question
from dataplane.care.inspection import text_built, verify
from dataplane.cold import attachments, filelist, manifest
from dataplane.cold.archive_rewrite import deletions_of
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Collection
from dataplane.cold.segments import FOLDER as SEGMENTS
from dataplane.cold.segments import Sealed, fetch, read_entries, read_rows
from dataplane.errors import DataPlaneError
from dataplane.rows import SearchResult
from dataplane.state.versioned import Versioned
from dataplane.store import DataPlane
from dataplane.truth import keys, records
from dataplane.truth.records import EventRecord
from dataplane.truth.rocks import FAMILIES, Rocks

ARCHIVED = tuple(family for family in FAMILIES if family != "dead")  # which tells accelerators what ended
PAGE = 100
SETTLE_S = 120.0
MOST_MANIFESTS = 10
Content = dict[str, dict[bytes, bytes]]


async def settled(plane: DataPlane, model: Model) -> None:
    """Wait until graph, shards and full text have everything. Raises TimeoutError."""
    async with asyncio.timeout(SETTLE_S):
        for place in model.books:
            await plane.settle(*place)
        for collection in plane.open_collections():
            await text_built(collection, collection.published)


async def box_problems(plane: DataPlane, model: Model) -> tuple[list[str], int]:
    """What the data plane gives back against the model, and how many rows, records and events were compared."""
    problems: list[str] = []
    compared = 0
    known = {tenant: {place.collection for place in model.books if place.tenant == tenant} for tenant in model.diaries}
    for tenant, names in known.items():
        if set(plane.collections(tenant)) != names:
            problems.append(f"{tenant} has the collections {sorted(plane.collections(tenant))}")
    for place, book in model.books.items():
        for at in range(0, len(book.rows), PAGE):
            stored = await plane.get(*place, book.ids[at : at + PAGE], vectors=True)
            wrong = [book.wrong(at + offset, row) for offset, row in enumerate(stored)]
            problems += [f"{'/'.join(place)}: {what}" for what in wrong if what is not None]
        compared += int(book.there.sum())
    for status in plane.status().collections:
        rows = int(model.books[status.tenant, status.name].there.sum())  # type: ignore[index]
        if status.rows != rows:
            problems.append(f"{status.tenant}/{status.name} counts {status.rows} rows, not {rows}")
    for diary in model.diaries.values():
        found, events = await _diary(plane, diary)
        problems += found
        compared += len(diary.records) + events
    return problems, compared


async def _diary(plane: DataPlane, diary: Diary) -> tuple[list[str], int]:
    """What is wrong with records and logs, and how many events there are."""
    state, tenant = plane.state, diary.tenant
    stored: list[tuple[str, Versioned]] = []
    while page := await state.scan(tenant, KIND, after=stored[-1][0] if stored else None):
        stored += page
    problems, count = diary.wrong(stored), 0
    for name, log in diary.logs.items():
        events: list[tuple[int, EventRecord]] = []
        while found := await state.read(tenant, name, after=events[-1][0] if events else 0):
            events += found
        problems += log.wrong(await state.last_seq(tenant, name), events)
        count += len(events)
    return problems, count


async def archive_problems(bucket: Bucket, rocks: Rocks, folder: Path) -> tuple[list[str], int]:
    """The newest manifest's content against the box in `folder`, and how many rows it has. Raises DataPlaneError."""
    shelf = await manifest.shelf(bucket, most=MOST_MANIFESTS)
    problems = [f"{found.object}: {found.what}" for found in [*shelf.broken, *await manifest.verify(bucket, deep=True)]]
    named = {segment.name for stored in shelf.whole for segment in stored.manifest.segments()}
    named |= {manifest.name_of(stored.manifest.number) for stored in shelf.whole}
    loose = [
        found.name
        for folder in (SEGMENTS, manifest.FOLDER)
        async for found in bucket.list(folder)
        if found.name not in named
    ]
    problems += [f"{name} is in the bucket, and no manifest names it" for name in loose]
    if not shelf.whole:
        return problems, 0
    archive = _Archive(bucket)
    for segment in shelf.whole[0].manifest.entries:
        if segment.family not in ARCHIVED:
            continue  # a list of files
        for group in read_entries(segment.sealed.name, await fetch(bucket, segment.sealed)):
            for key, value in group:
                archive.put(segment.family, key, value)
    for collection in shelf.whole[0].manifest.collections:
        await archive.read(collection)
    await archive.read_files(filelist.segments(shelf.whole[0].manifest), folder)
    problems += archive.problems
    box = await asyncio.to_thread(_content, rocks)
    for family in ARCHIVED:
        ours, theirs = box[family], archive.content[family]
        wrong = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
        if wrong:
            lost, more = len(ours.keys() - theirs.keys()), len(theirs.keys() - ours.keys())
            problems.append(f"archive: {len(wrong)} keys of {family} differ: {lost} lost, {more} that the box lacks")
    return problems, len(archive.content["rows"])


class _Archive:
    """What an archive gives back, by the database's keys."""

    def __init__(self, bucket: Bucket) -> None:
        self.content: Content = {family: {} for family in ARCHIVED}
        self.problems: list[str] = []
        self._bucket = bucket

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """A key that the archive has."""
        if key in self.content[family]:
            self.problems.append(f"archive: a key of {family} is there twice: {key!r}")
        self.content[family][key] = value

    async def read(self, collection: Collection) -> None:
        """The rows of a collection that have not ended."""
        deletions = await deletions_of(self._bucket, collection)
        scope = keys.scope(collection.tenant, collection.number)
        for segment in collection.rows:
            content = await fetch(self._bucket, segment.sealed)
            for group in read_rows(segment.sealed.name, content, collection.width):
                numbers = np.array([row.number for row in group], np.uint64)
                ended = deletions.ended(numbers, segment.applied).tolist()
                for row in [row for row, gone in zip(group, ended, strict=True) if not gone]:
                    number = keys.number(row.number)
                    self.put("rows", scope + number, records.encode(row.record))
                    self.put("vectors", scope + number, row.vector)
                    self.put("index", scope + keys.name(row.record.id), number)

    async def read_files(self, lists: Sequence[Sealed], folder: Path) -> None:
        """The files beside the database, part by part, against those in `folder`."""
        files: dict[str, bytes] = {}
        async for file in filelist.each(self._bucket, lists):
            parts = [bytes(await self._bucket.get(part.name)) for part in file.parts]
            files[file.name] = b"".join(parts)
        box = await asyncio.to_thread(_files, folder)
        wrong = sorted(name for name in box.keys() | files.keys() if box.get(name) != files.get(name))
        self.problems += [f"archive: the file {name} is not what the box has" for name in wrong]


def _files(folder: Path) -> dict[str, bytes]:
    """What the box keeps in files, by name."""
    places = [place for kept in attachments.KEPT for place in attachments.folders(folder, kept)]
    names = [f"{place.path}/{name}" for place in places for name in attachments.names_in(folder, place)]
    names += [f"{kept.folder}/{kept.mutable}" for kept in attachments.KEPT if kept.mutable is not None]
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def _content(rocks: Rocks) -> Content:
    """All that an archive of the box must have."""
    return {family: dict(rocks.scan(family, b"", start=b"\x00\x01")) for family in ARCHIVED}


async def verify_problems(plane: DataPlane) -> list[str]:
    """What `verify` finds, with every byte of state, events and archive read; and what was made anew at the opening."""
    try:
        report = await verify(plane, deep=True)
    except DataPlaneError as error:
        return [f"verify: {error}"]
    return [f"verify, {one.collection}, {one.where}: {one.what}" for one in (*report.problems, *report.healed)]


async def answers(plane: DataPlane, asked: Sequence[Question]) -> list[SearchResult]:
    """The answers to questions, one after the other."""
    return [await plane.search(*question.place, question.query) for question in asked]

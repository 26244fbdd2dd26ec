"""Care for a whole data plane while it runs: `verify`, with repair, and `back_up`.

`verify` looks at every collection (verify.py has what is compared), at uploaded files (uploads.py), at the archive's objects, and
with `deep` at every byte of state and events on the box, of uploaded files, and of every object in the bucket. It tells of a
database that takes no writes, of which nothing can be repaired. With `repair`,
what is derived and wrong is made anew from RocksDB, uploaded files and shards of the history that are damaged are fetched from
the archive, and an archive that lacks something is archived anew. A damaged shard that the archive does not have, or has
damaged too, is discarded, but for the events in it that can be read; one that could not be fetched for now (the bucket does
not answer, the disk is full) stays as it is. What is still wrong afterwards is told.

`back_up` has in it RocksDB as it is at one moment, and beside it warm shards and snapshots that fit it: they are linked while
the keeper rests, for milliseconds. The history's files are linked after that moment: what left RocksDB before is in them, and
what leaves later is in both. Uploaded files are compared with the SHA-256 of their records: a backup never has a damaged one.
Full text is not in it, and is made anew after a restore.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dataplane.care import backup
from dataplane.care import verify as verifying
from dataplane.care.backup import BackupReport
from dataplane.care.repair import repair
from dataplane.cold import filelist, uploads
from dataplane.cold.archive_source import read_entries
from dataplane.cold.attachments import HISTORY
from dataplane.cold.uploads import Upload
from dataplane.collections.collection import Collection
from dataplane.errors import Closed, DataPlaneError, NotFound
from dataplane.files import make_way
from dataplane.hot import snapshot
from dataplane.threads import in_thread
from dataplane.truth.claims import claimed

if TYPE_CHECKING:
    from dataplane.store import DataPlane

TEXT_STALLS_S = 10.0
POLL_S = 0.02
NOT_FETCHED = "was kept, for the archive may have it whole. Run `acu data verify --repair` again when that is cured:"
Progress = Callable[
    [str, int, int], None
]  # what is being done, how much of it is done, how much there is (0: not known)


class Finding(Struct, frozen=True):
    """Something that is wrong.

    `where`: index, graph, shards, text, rows; and of no tenant: database, state, history, archive, files.
    """

    tenant: str
    collection: str
    where: str
    what: str


class VerifyReport(Struct, frozen=True, kw_only=True):
    """What `verify` looked at, and found.

    `problems` are there now; with repair, those are left that could not be repaired, and `repaired` are gone. `healed` were
    found when the data plane was opened, or since, and made anew by itself.
    """

    collections: int
    rows: int
    archive_manifest: int
    deep: bool
    problems: tuple[Finding, ...]
    repaired: tuple[Finding, ...]
    healed: tuple[Finding, ...]


def silent(_stage: str, _done: int, _total: int) -> None:
    """For callers who do not look."""


async def verify(
    plane: DataPlane, *, deep: bool = False, mend: bool = False, progress: Progress = silent
) -> VerifyReport:
    """Look at everything. `mend`: repair what can be. Raises BucketUnreachable, Closed."""
    await plane.writer.barrier()
    await in_thread(plane.writer.look)
    collections = plane.open_collections()
    problems: list[Finding] = []
    if plane.writer.failed is not None:
        problems.append(Finding("", "", "database", plane.writer.failed))
        mend = False
    for number, collection in enumerate(collections):
        progress(f"verifying {collection.name}", number, len(collections))
        await text_built(collection, collection.published)
        found = await asyncio.to_thread(_problems_of, collection)
        if found and mend:
            progress(f"repairing {collection.name}", number, len(collections))
        problems += found
    progress("verifying the history", 0, 0)
    history = await in_thread(plane.old_events.damaged)
    problems += _history_problems(history)
    if deep:
        problems += await _state_problems(plane, progress)
    progress("verifying uploaded files", 0, 0)
    damaged = await _damaged_files(plane, deep=deep)
    problems += _file_problems(damaged)
    progress("verifying the archive", 0, 0)
    problems += await _archive_problems(plane, deep=deep)
    left_of_files = []
    if mend and damaged:
        progress("fetching uploaded files from the archive", 0, 0)
        missed = await plane.cold.bring_back(damaged)
        still = await _damaged_files(plane, deep=deep)
        problems = [problem for problem in problems if problem not in _file_problems(still)]  # told anew
        left_of_files = _file_problems(
            {one: uploads.told_again(what, missed.get(one.name)) for one, what in still.items()}
        )
    lost, kept = await _mended_history(plane, history) if mend and history else ([], [])  # before all is archived anew
    left = [*left_of_files, *await _mended(plane, problems, deep=deep, progress=progress)] if mend else problems
    if mend:
        problems = [*problems, *lost, *kept]
        left += [*_history_problems(await in_thread(plane.old_events.damaged)), *kept]
    return VerifyReport(
        collections=len(collections),
        rows=sum(sum(collection.counts()) for collection in collections),
        archive_manifest=plane.cold.status().manifest,
        deep=deep,
        problems=tuple(left),
        repaired=tuple(problem for problem in problems if problem not in left) if mend else (),
        healed=tuple(
            Finding(collection.tenant, collection.name, "derived", what)
            for collection in collections
            for what in (*collection.shards.problems, *collection.problems)
        ),
    )


async def text_built(collection: Collection, seq: int) -> bool:
    """Wait until the full text has everything up to change `seq`, for as long as it comes on. Returns whether it has."""
    feed = collection.text
    if feed is None:
        return True
    seen, until = (-1, -1), time.monotonic() + TEXT_STALLS_S
    while feed.behind or feed.index.seq < seq:
        if (now := (feed.index.seq, feed.index.count())) != seen:
            seen, until = now, time.monotonic() + TEXT_STALLS_S
        if time.monotonic() > until or collection.dropped:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _problems_of(collection: Collection) -> list[Finding]:
    try:
        found = verifying.verify(collection)
    except DataPlaneError as error:
        if collection.dropped:
            return []
        return [Finding(collection.tenant, collection.name, "rows", str(error))]
    if collection.dropped:  # in the middle of it: nothing that was seen counts
        return []
    return [Finding(collection.tenant, collection.name, problem.where, problem.what) for problem in found]


async def _state_problems(plane: DataPlane, progress: Progress) -> list[Finding]:
    """Read all state and events: RocksDB checks each block."""
    problems = []
    for family in ("state", "events"):
        after: bytes | None = None
        read = 0
        try:
            while step := await in_thread(read_entries, plane.rocks, family, after):
                after = step[-1][0]
                read += len(step)
                progress(f"reading {family}", read, 0)
        except DataPlaneError as error:
            problems.append(Finding("", "", "state", str(error)))
    return problems


async def _damaged_files(plane: DataPlane, *, deep: bool) -> dict[Upload, str]:
    listing = plane.cold.uploads
    return {} if listing is None else await uploads.wrong(plane.rocks, plane.folder, listing, deep=deep)


def _file_problems(damaged: Mapping[Upload, str]) -> list[Finding]:
    return [Finding("", "", "files", what) for what in damaged.values()]


def _history_problems(damaged: Mapping[str, list[str]]) -> list[Finding]:
    return [Finding("", "", "history", problem) for found in damaged.values() for problem in found]


async def _mended_history(plane: DataPlane, damaged: Mapping[str, list[str]]) -> tuple[list[Finding], list[Finding]]:
    """Write a damaged manifest anew, fetch damaged shards from the archive, and give up those it lacks.

    Tells what is lost, and what is kept as it is, for the archive may have it.
    """
    old = plane.old_events
    if "" in damaged:
        await in_thread(old.renew_manifest)
    wanted = await in_thread(old.expected, damaged)
    for one in wanted:
        await in_thread(make_way, plane.folder / HISTORY.folder / one.name)
    missed = await plane.cold.bring_back(
        [Upload(f"{HISTORY.folder}/{one.name}", one.bytes, one.sha256) for one in wanted]
    )
    return await in_thread(_reloaded, plane, [one.name for one in wanted], missed)


def _reloaded(
    plane: DataPlane, names: Sequence[str], missed: Mapping[str, DataPlaneError]
) -> tuple[list[Finding], list[Finding]]:
    lost, kept = [], []
    for name in names:
        with contextlib.suppress(NotFound):  # merged with others meanwhile, or erased
            plane.old_events.reload(name)
    still = plane.old_events.damaged() if names else {}
    for name in sorted(still.keys() & set(names)):
        if (why := missed.get(f"{HISTORY.folder}/{name}")) is not None:
            kept.append(Finding("", "", "history", f"{plane.old_events.folder / name} {NOT_FETCHED} {why}"))
            continue
        with contextlib.suppress(NotFound):
            lost.append(Finding("", "", "history", plane.old_events.discard(name)))
    return lost, kept


async def _archive_problems(plane: DataPlane, *, deep: bool) -> list[Finding]:
    return [Finding("", "", "archive", problem.what) for problem in await plane.cold.verify(deep=deep)]


async def _mended(plane: DataPlane, problems: list[Finding], *, deep: bool, progress: Progress) -> list[Finding]:
    """Repair, and tell what is left."""
    left = [problem for problem in problems if problem.where == "state"]
    damaged = {(problem.tenant, problem.collection) for problem in problems if problem.collection}
    for number, (tenant, name) in enumerate(sorted(damaged)):
        progress(f"repairing {name}", number, len(damaged))
        try:
            left += [Finding(tenant, name, one.where, one.what) for one in await repair(plane, tenant, name)]
        except NotFound:  # deleted meanwhile
            continue
    if any(problem.where == "archive" for problem in problems):
        progress("archiving everything anew", 0, 0)
        await plane.cold.archive_now(restart=True)
        left += await _archive_problems(plane, deep=deep)
    return left


async def back_up(
    plane: DataPlane, target: Path, *, files: Mapping[str, Path] | None = None, progress: Progress = silent
) -> BackupReport:
    """Back up everything to the folder `target`, which must be new or empty. Everything written before the call is in it.

    `files`: what else there is in the data plane's folder (name in it -> a file that is never changed in place); those that
    go away meanwhile are left out. Raises as `backup.back_up` does, and Damaged if uploaded files are missing or damaged.
    """
    await plane.writer.barrier()
    await uploads.check(plane.rocks, plane.folder, plane.cold.uploads)
    stop = threading.Event()

    def told(done: int, total: int) -> None:
        if stop.is_set():
            raise Closed("the backup was broken off: nothing of it is left.")
        progress("backing up", done, total)

    listed = await plane.cold.uploads() if plane.cold.uploads is not None else ()
    return await in_thread(_back_up, plane, target, files or {}, listed, told, stop=stop)


def _back_up(
    plane: DataPlane,
    target: Path,
    files: Mapping[str, Path],
    listed: Sequence[Upload],
    progress: Callable[[int, int], None],
) -> BackupReport:
    with claimed(plane.folder / ".tmp-backup") as staged:
        with plane.keeper.held():
            derived = dict(_derived_files(plane))
            kept = list(_linked({**derived, **files}, staged))
        return backup.back_up(
            plane.rocks,
            plane.folder,
            target,
            files={name: staged / name for name in kept},
            later=lambda folder: _link_later(plane, folder, listed),
            progress=progress,
        )


def _link_later(plane: DataPlane, folder: Path, listed: Sequence[Upload]) -> dict[str, str]:
    """What must be at least as new as the checkpoint: the history, and files that were uploaded since the others were linked.

    Returns the SHA-256 that uploaded files must have, as far as their records or the archive know it.
    """
    plane.old_events.link(lambda path: _link_history(plane, path, folder))
    for name, path in uploads.names_of(plane.folder):
        if not (folder / name).exists():
            with contextlib.suppress(NotFound):  # deleted this moment
                backup.link_or_copy(path, folder / name)
    known = {upload.name: upload.sha256 for upload in listed if upload.sha256 is not None}
    older = [upload for upload in listed if upload.sha256 is None]
    archived = filelist.by_name(plane.rocks, [upload.name for upload in older])
    known |= {
        upload.name: one.sha256
        for upload, one in zip(older, archived, strict=True)
        if one is not None and one.size == upload.size
    }
    return known


def _derived_files(plane: DataPlane) -> Iterator[tuple[str, Path]]:
    """Shards and snapshots of all collections, by their names below the data plane's folder. While the keeper rests."""
    for collection in plane.open_collections():
        paths = list(collection.shards.paths)
        try:
            found = snapshot.read(collection.folder)
        except DataPlaneError:  # it is made anew when it is time
            found = None
        if found is not None:
            paths += [collection.folder / name for name in (snapshot.POINTER, *(file.name for file in found.files))]
        for path in paths:
            yield path.relative_to(plane.folder).as_posix(), path


def _link_history(plane: DataPlane, path: Path, folder: Path) -> None:
    """Link one of its files. A shard that is missing is damage, which the backup has as the original does."""
    with contextlib.suppress(NotFound):
        backup.link_or_copy(path, folder / path.relative_to(plane.folder))


def _linked(files: Mapping[str, Path], folder: Path) -> Iterator[str]:
    """Link files into `folder`; the names of those that were there."""
    for name, path in files.items():
        try:
            backup.link_or_copy(path, folder / name)
        except NotFound:
            continue
        yield name

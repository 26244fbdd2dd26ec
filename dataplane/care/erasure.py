"""Erasing: a tenant, a collection of it, or rows of a collection, so that nothing of it stays, and the proof.

    1. rows, state and names are deleted, durably, also a tenant's own where others list tenants (`StateStore.rosters`), and its
       files; the history is written anew without it
    2. what is derived forgets: the full text is merged without the words that only they had; shards that hold them are removed;
       graph and snapshot are made anew; the texts of rows that ended, which `dead` keeps for the full text, are taken out
    3. RocksDB rewrites its tables, so that the deleted bytes are in no file
    4. the archive is rewritten (archive.py: erase), old manifests included; and what the box knew of where that stood
    5. everything is looked through once more, by what lies there (remains.py). What is still found is in the receipt

Every step may be the last: erasing again does what is missing. What was deleted or replaced earlier goes as well, wherever it
lay in the same files. Backups are out of reach, and so are old versions that a bucket keeps; what a disk keeps of blocks that
were given back is its own matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dataplane import clock
from dataplane.care.inspection import POLL_S, Progress, silent, text_built
from dataplane.care.remains import by_kind, count, derived_left, history_left, listed, rows_left
from dataplane.cold import archive_erasure, attachments, filelist
from dataplane.cold.archive_erasure import Subject
from dataplane.cold.archive_source import BOX, tenant_of
from dataplane.cold.bucket import Bucket
from dataplane.cold.tier import default_cold_folder
from dataplane.collections.catalog import ROW_FAMILIES, ForgetTenant
from dataplane.collections.collection import Collection
from dataplane.errors import Damaged, DataPlaneError, NotFound, Unavailable
from dataplane.threads import in_thread
from dataplane.truth import keys
from dataplane.truth.rocks import FAMILIES, Rocks
from dataplane.truth.writer import Command, Draft

if TYPE_CHECKING:
    from dataplane.store import DataPlane

STEP = 128
SHOWN = 10  # names that an error lists
OWN = "/"  # so begin the names under which a part of the daemon keeps records of its own
PATIENCE_S = 60.0  # for RocksDB's removing of files
BEYOND = (
    "Backups that were made before still hold it: remove those.",
    "A bucket that keeps old versions of objects keeps them until its own rules end it.",
)


class Receipt(Struct, frozen=True, kw_only=True):
    """What was erased, and how that was seen.

    `rows`, `files` (uploaded ones) and `collections`: that were there when it began; rows alone if only rows were erased.
    `searched`: what was looked through afterwards: rows of the database, or families
    that must be empty; files of all tenants; rows in shards; events in the history; nodes of a snapshot;
    objects of the archive. `left`: what was still found; empty, or it is not done. `beyond`: what is out of reach.
    """

    tenant: str
    collection: str | None
    ids: int
    rows: int
    files: int
    collections: int
    time_ms: int
    searched: dict[str, int]
    archive: archive_erasure.Receipt | None
    left: tuple[str, ...]
    beyond: tuple[str, ...] = BEYOND

    @property
    def done(self) -> bool:
        """Whether nothing of it was found any more."""
        return not self.left


class Extent(Struct, frozen=True):
    """How much there is to erase. `known`: whether box or archive have the tenant or the collection at all."""

    rows: int
    files: int
    collections: int
    known: bool


async def measure(plane: DataPlane, tenant: str, collection: str | None = None) -> Extent:
    """What there is of a tenant or a collection. An archive that cannot be read may have it."""
    subject = Subject.of(tenant, collection, None)
    await plane.writer.barrier()
    named = _named(plane, subject)
    rows = sum(sum(one.counts()) for one in named)
    files = 0 if collection is not None else len(await in_thread(attachments.of_tenant, plane.folder, tenant))
    known = bool(named or files)
    if not known and collection is None:
        known = await in_thread(_has_more, plane, tenant) or bool(await plane.state.rosters_with(tenant))
    return Extent(rows, files, len(named), known or await _archived(plane, subject))


async def absence(plane: DataPlane, tenant: str, collection: str | None = None) -> NotFound:
    """The error for what is not `known`. Before, the database is rewritten, for an earlier erasure may have been broken off."""
    await in_thread(_rewrite, plane.rocks, (keys.tenant_prefix(tenant), BOX))
    own = sorted(plane.collections(tenant))
    tenants = [one for one in await in_thread(_tenants, plane) if not one.startswith(OWN)]
    if collection is None or tenant not in tenants:
        return NotFound(
            f"there is no tenant {tenant!r}, on this box or in its archive. There is: {listed(tenants, SHOWN)}."
        )
    return NotFound(
        f"there is no collection {collection!r} of the tenant {tenant!r}, on this box or in its archive. "
        f"There is: {listed(own, SHOWN)}."
    )


def _tenants(plane: DataPlane) -> list[str]:
    """Who has anything in the database. Steps from tenant to tenant."""
    found = set()
    for family in FAMILIES:
        start: bytes | None = keys.after(BOX)
        while start is not None:
            with contextlib.closing(plane.rocks.scan(family, b"", start=start)) as scan:
                key = next((key for key, _ in scan), None)
            if key is None:
                break
            tenant = tenant_of(key)
            found.add(tenant)
            start = keys.after(keys.tenant_prefix(tenant))
    return sorted(found)


def _has_more(plane: DataPlane, tenant: str) -> bool:
    """Whether a tenant has records or events. A history that cannot be read may have some."""
    prefix = keys.tenant_prefix(tenant)
    if any(plane.rocks.first_key(family, prefix) is not None for family in FAMILIES):
        return True
    try:
        return plane.old_events.count(tenant)[0] > 0
    except Damaged:
        return True


async def _archived(plane: DataPlane, subject: Subject) -> bool:
    if not plane.cold.status().manifest:
        return False
    try:
        return await archive_erasure.names(Bucket(plane.config.cold, default_cold_folder(plane.folder)), subject)
    except DataPlaneError:
        return True


async def erase(
    plane: DataPlane,
    tenant: str,
    collection: str | None = None,
    ids: Iterable[str] | None = None,
    *,
    progress: Progress = silent,
    before: Extent | None = None,
) -> Receipt:
    """Erase a tenant, its collection, or rows of this. What is not there is erased from archive and files all the same.

    `before`: what was there, if the caller has removed some of it already.
    Raises InvalidInput (ids without a collection), StorageFull, Unavailable, Closed, Conflict (something came back meanwhile).
    An archive that cannot be reached is told in the receipt.
    """
    subject = Subject.of(tenant, collection, ids)
    progress("deleting", 0, 0)
    extent = before if before is not None else await measure(plane, tenant, collection)
    taken = await _delete(plane, subject)
    progress("rewriting what is derived", 0, 0)
    for one in _kept(plane, subject):
        await _purge(plane, one, subject.ids, taken.seq)
    progress("rewriting the database", 0, 0)
    await asyncio.to_thread(_rewrite, plane.rocks, taken.rewritten)
    left: list[str] = []
    archive: archive_erasure.Receipt | None = None
    progress("rewriting the archive", 0, 0)
    try:
        archive = await plane.cold.erase(tenant, collection, subject.ids or None)
        left += by_kind("archive", ((one.object, one.what) for one in archive.left)) if archive else []
    except DataPlaneError as error:
        left.append(f"archive: it could not be rewritten, erase again: {error}")
    progress("looking again", 0, 0)
    if collection is None:  # the archive's position, as it was, named the tenant
        await asyncio.to_thread(_rewrite, plane.rocks, (BOX,))
        left += [f"state: {owner} lists the tenant. Erase again." for owner in await plane.state.rosters_with(tenant)]
    searched, found = await asyncio.to_thread(_look_again, plane, subject, taken)
    if archive is not None:
        searched["archive"] = archive.searched
    return Receipt(
        tenant=tenant,
        collection=collection,
        ids=len(subject.ids),
        rows=taken.rows if subject.ids else max(extent.rows, taken.rows),
        files=0 if subject.ids else extent.files,
        collections=0 if subject.ids else extent.collections,
        time_ms=clock.now_ms(),
        searched=searched,
        archive=archive,
        left=(*found, *left),
    )


class _Taken(Struct, frozen=True):
    """What was deleted: how many rows, up to which change; under which prefixes files must be rewritten; what must be empty."""

    rows: int
    seq: int
    rewritten: tuple[bytes, ...]
    empty: tuple[tuple[bytes, tuple[str, ...]], ...]  # prefix, families


async def _delete(plane: DataPlane, subject: Subject) -> _Taken:
    whole = keys.tenant_prefix(subject.tenant)
    named = _named(plane, subject)
    scopes = tuple(one.scope for one in named)
    if subject.ids:
        if not named:  # an earlier collection of this name, perhaps
            return _Taken(0, 0, (whole,), ())
        rows = await plane.delete(subject.tenant, named[0].name, sorted(subject.ids), "durable")
        return _Taken(rows, named[0].published, scopes, ())
    rows = sum(sum(one.counts()) for one in named)
    for one in named:
        with contextlib.suppress(NotFound):
            await plane.drop_collection(subject.tenant, one.name)
    if subject.collection is not None:
        return _Taken(rows, 0, scopes or (whole,), tuple((scope, ROW_FAMILIES) for scope in scopes))
    await plane.state.drop_tenant(subject.tenant)
    await plane.writer.submit(ForgetTenant(subject.tenant), "durable")
    with contextlib.suppress(Damaged):  # what cannot be read, and so may have some, is found when it looks again
        await plane.mover.forget()
    await asyncio.to_thread(_remove_files, plane, subject.tenant)  # their owner stores no new record now
    rosters = [keys.tenant_prefix(owner) for owner, _ in plane.state.rosters]
    return _Taken(rows, 0, (whole, filelist.KNOWN, *rosters), ((whole, FAMILIES),))


def _named(plane: DataPlane, subject: Subject) -> list[Collection]:
    own = [one for one in plane.open_collections() if one.tenant == subject.tenant]
    return [one for one in own if subject.collection in {None, one.name}]


def _remove_files(plane: DataPlane, tenant: str) -> None:
    attachments.remove_tenant(plane.folder, tenant)
    filelist.forget_owner(plane.rocks, f"{attachments.FILES.folder}/{attachments.tenant_folder(tenant)}")


def _kept(plane: DataPlane, subject: Subject) -> list[Collection]:
    """The collection that stays, without some of its rows."""
    if not subject.ids:
        return []
    return [
        one
        for one in plane.open_collections()
        if (one.tenant, one.name) == (subject.tenant, subject.collection) and not one.dropped
    ]


async def _purge(plane: DataPlane, collection: Collection, ids: frozenset[str], seq: int) -> None:
    """Have what is derived of a collection forget the rows that ended up to `seq`."""
    if not await text_built(collection, seq):
        raise Unavailable("the full text does not come up to the rows: erase again later.", retry_after_s=PATIENCE_S)
    if collection.text is not None:
        await asyncio.to_thread(collection.text.index.compact)
    after = 0
    while dead := await in_thread(_texts_of_dead, collection, after, seq):
        await plane.writer.submit(_WithoutText(collection, [key for key, _ in dead]), "durable")
        after = dead[-1][1]
    await asyncio.to_thread(_purge_derived, plane, collection, ids)


def _texts_of_dead(collection: Collection, after: int, through: int) -> list[tuple[bytes, int]]:
    """The next entries of `dead` that have a text: key and sequence number."""
    found: list[tuple[bytes, int]] = []
    scan = collection.rocks.scan("dead", collection.scope, start=keys.number(after + 1))
    with contextlib.closing(scan) as entries:
        for key, value in entries:
            seq = int.from_bytes(key[-8:], "big")
            if seq > through or len(found) == STEP:
                break
            if len(value) > 8:
                found.append((key, seq))
    return found


class _WithoutText(Command):
    """Take the texts out of entries of `dead`. Those that are gone meanwhile stay so."""

    def __init__(self, collection: Collection, entries: Sequence[bytes]) -> None:
        self.weight = len(entries)
        self._collection = collection
        self._entries = entries

    def draft(self, draft: Draft) -> None:
        if self._collection.dropped:
            return
        for key, value in zip(self._entries, draft.get_many("dead", self._entries), strict=True):
            if value is not None:
                draft.put("dead", key, value[:8])


def _purge_derived(plane: DataPlane, collection: Collection, ids: frozenset[str]) -> None:
    with plane.keeper.held():
        if not collection.dropped:
            plane.keeper.moves.purge(collection, collection.shards.holding(ids))


def _rewrite(rocks: Rocks, prefixes: Sequence[bytes]) -> None:
    rocks.flush()
    for prefix in prefixes:
        for family in FAMILIES:
            rocks.compact(family, prefix)
    rocks.renew_manifest()


def _look_again(plane: DataPlane, subject: Subject, taken: _Taken) -> tuple[dict[str, int], list[str]]:
    """What was looked through, by tier, and what was found."""
    searched: dict[str, int] = {}
    left: list[str] = []
    for collection in _kept(plane, subject):
        left += rows_left(collection, subject.ids, searched)
        with plane.keeper.held():  # which else may replace files meanwhile
            left += derived_left(collection, subject.ids, taken.seq, searched)
    if subject.collection is None:
        found = attachments.of_tenant(plane.folder, subject.tenant)
        left += by_kind("files", ((str(path), "still there; was it uploaded again? Erase again.") for path in found))
        left += history_left(plane, subject.tenant, searched)
        searched["files"] = attachments.count(plane.folder, attachments.FILES)
    for prefix, families in taken.empty:
        for family in families:
            if found_keys := count(plane.rocks, family, prefix):
                left.append(f"database: {found_keys} keys in {family}. Erase again.")
        searched["database"] = searched.get("database", 0) + len(families)
    until = time.monotonic() + PATIENCE_S
    while (files := plane.rocks.obsolete_files()) and time.monotonic() < until:
        time.sleep(POLL_S)
    left += by_kind("database", ((name, "a file that is still being read. Erase again.") for name in files))
    return searched, left

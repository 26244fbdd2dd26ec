"""What must go from the archive, whether it is gone from the box, and the proof that it is gone from the bucket.

The proof is a second look at the bucket, by what lies there and not by what was done: it lists every object under the
prefix, reads every manifest, and, for rows, every row segment of the collection. What it still finds is in the receipt.
Of files it goes by the folder in their names. Log shards are many tenants': they hold what those on the box hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from dataplane.cold import attachments, filelist
from dataplane.cold import manifest as manifests
from dataplane.cold.archive_rewrite import holds
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import Manifest, Problem
from dataplane.errors import Conflict, InvalidInput
from dataplane.truth import keys, records
from dataplane.truth.records import CollectionRecord
from dataplane.truth.rocks import FAMILIES, Rocks

_STEP = 256


class Subject(NamedTuple):
    """A tenant; or its collection of this name, also an earlier one; or rows of it."""

    tenant: str
    collection: str | None
    ids: frozenset[str]

    @classmethod
    def of(cls, tenant: str, collection: str | None, ids: Iterable[str] | None) -> Subject:
        """Raises InvalidInput for ids without a collection, or none."""
        subject = cls(tenant, collection, frozenset(ids or ()))
        if ids is not None and (collection is None or not subject.ids):
            raise InvalidInput("to erase rows, name their collection and at least one id.", param="ids")
        return subject


class Receipt(Struct, frozen=True, kw_only=True):
    """What was erased from the archive, and how that was seen.

    `searched`: objects that were there when it looked again. `left`: what it still found; empty, or it is not done.
    A bucket that keeps old versions of objects keeps what was removed until its own rules end it.
    """

    tenant: str
    collection: str | None
    ids: int
    time_ms: int
    bucket: str
    manifest: int
    rewritten: int
    removed: tuple[str, ...]
    searched: int
    left: tuple[Problem, ...]


def check_gone(rocks: Rocks, subject: Subject, folder: Path | None = None) -> None:
    """Raise Conflict if the box still has it. `folder`: the data plane's, if its files are archived."""
    if subject.collection is None:
        if folder is not None and attachments.of_tenant(folder, subject.tenant):
            raise _still_there(f"files of {subject.tenant}")
        for family in FAMILIES:
            with contextlib.closing(rocks.scan(family, keys.tenant_prefix(subject.tenant))) as found:
                if next(found, None) is not None:
                    raise _still_there(f"data of {subject.tenant} ({family})")
        return
    stored = rocks.get("meta", keys.tenant_prefix(subject.tenant) + b"c" + keys.name(subject.collection, "collection"))
    if stored is None:
        return
    if not subject.ids:
        raise _still_there(f"collection {subject.collection}")
    scope = keys.scope(subject.tenant, records.decode(CollectionRecord, stored).number)
    wanted = [scope + keys.name(one) for one in sorted(subject.ids)]
    for start in range(0, len(wanted), _STEP):
        if any(number is not None for number in rocks.get_many("index", wanted[start : start + _STEP])):
            raise _still_there(f"some of these rows of collection {subject.collection}")


async def names(bucket: Bucket, subject: Subject) -> bool:
    """Whether any manifest names the tenant or the collection. Raises Damaged, BucketUnreachable."""
    whole = subject._replace(ids=frozenset())
    for number in await manifests.numbers(bucket):
        if await _held_by(bucket, (await manifests.read(bucket, number))[0], whole):
            return True
    return False


async def look_again(bucket: Bucket, subject: Subject) -> tuple[int, list[Problem]]:
    """How many objects are there, and which of them still hold it, or may. Raises Damaged, BucketUnreachable."""
    objects = [name async for name, _ in bucket.list("")]
    stored = [await manifests.read(bucket, number) for number in await manifests.numbers(bucket)]
    left = []
    named: set[str] = set()
    named |= await manifests.parts_of(bucket, [manifest for manifest, _ in stored])
    for manifest, _ in stored:
        named |= {manifests.name_of(manifest.number), *(segment.name for segment in manifest.segments())}
        left += await _held_by(bucket, manifest, subject)
    left += [Problem(name, "no manifest names it: look at it, and remove it.") for name in objects if name not in named]
    return len(objects), left


async def _held_by(bucket: Bucket, manifest: Manifest, subject: Subject) -> list[Problem]:
    name = manifests.name_of(manifest.number)
    if subject.collection is None:
        tenants = {one.tenant for one in manifest.collections}
        tenants |= {one.tenant for one in manifest.entries if one.family != filelist.FAMILY}
        owners = {one.tenant for one in manifest.entries if one.family == filelist.FAMILY}
        if subject.tenant in tenants or attachments.tenant_folder(subject.tenant) in owners:
            return [Problem(name, "it still names the tenant: erase it again.")]
        return []
    left = []
    for collection in manifest.collections:
        if (collection.tenant, collection.name) != (subject.tenant, subject.collection):
            continue
        if not subject.ids:
            left.append(Problem(name, "it still names the collection: erase it again."))
            continue
        left += [
            Problem(segment.sealed.name, "it still holds rows that must go: erase them again.")
            for segment in collection.rows
            if await holds(bucket, collection, segment, subject.ids)
        ]
    return left


def _still_there(what: str) -> Conflict:
    return Conflict(f"the box still has {what}: delete it there first, or it would be archived again.")

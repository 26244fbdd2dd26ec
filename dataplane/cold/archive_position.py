"""Where the archive of this box stands: a record in RocksDB, beside the truth in the bucket.

It answers without the bucket what is not archived yet (`backlog`), up to where deletions may be forgotten, and whether a
manifest in the bucket is one that this box wrote or was restored from:

    owner              a random name of the box
    number, sha256     the manifest that the box goes on from
    pending            checksums of manifests `number + 1` that were sent, and whose answer did not come yet

`pending` is written before a manifest is sent. So a box that died in between knows its own manifest when it comes back.
A manifest that is neither means that somebody else wrote here, or that the box was set back to an older state: its row
numbers would be given a second time. Then nothing is written; see archive.py.

Beside it lies the marker of a restore that has not ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from dataplane.cold import archive_source as source
from dataplane.cold.archive_source import BOX, Source
from dataplane.cold.manifest import Manifest, Shelf, Stored
from dataplane.errors import Conflict, Damaged
from dataplane.truth.rocks import Batch, Rocks

POSITION_KEY = BOX + b"archive/position"
MARKER_KEY = BOX + b"restore/unfinished"
_RECORD_BYTES = 256  # a row without its vector, until better is known


class Reached(Struct, frozen=True, array_like=True):
    """How far a collection is archived. `row_bytes`: what a row takes in the bucket, about."""

    tenant: str
    number: int
    seq: int
    row_bytes: int


class Position(Struct, frozen=True, array_like=True):
    """See the module."""

    owner: str
    number: int = 0
    sha256: str = ""
    pending: tuple[str, ...] = ()
    reached: tuple[Reached, ...] = ()

    def knows(self, stored: Stored) -> bool:
        """Whether this box wrote this manifest, or was restored from it."""
        number = stored.manifest.number
        if number == self.number:
            return stored.sha256 == self.sha256
        return number == self.number + 1 and stored.sha256 in self.pending

    def moved_to(self, manifest: Manifest, sha256: str) -> Position:
        """Where the box stands once `manifest` is in the bucket."""
        reached = []
        for collection in manifest.collections:
            rows = sum(segment.sealed.count for segment in collection.rows)
            size = sum(segment.sealed.size for segment in collection.rows)
            mean = size // rows if rows else collection.width + _RECORD_BYTES
            reached.append(Reached(collection.tenant, collection.number, collection.seq, mean))
        return Position(self.owner, manifest.number, sha256, (), tuple(reached))


class Backlog(NamedTuple):
    """What is not archived yet: changes of rows, and about how many bytes. State and events are not counted."""

    rows: int
    bytes: int


def load(rocks: Rocks) -> Position | None:
    """The position of this box; None: it never archived. Raises Damaged."""
    stored = rocks.get("meta", POSITION_KEY)
    if stored is None:
        return None
    try:
        return msgspec.msgpack.decode(stored, type=Position)
    except msgspec.MsgspecError as error:
        raise Damaged("the record of the archive's position is damaged: restore the box from the bucket.") from error


def new() -> Position:
    """The position of a box that begins."""
    return Position(secrets.token_hex(16))


def add_to(batch: Batch, position: Position) -> None:
    """Have `batch` store the position."""
    batch.put("meta", POSITION_KEY, msgspec.msgpack.encode(position))


def save(rocks: Rocks, position: Position) -> None:
    """Store the position, durably, and with it everything that was written before."""
    batch = rocks.batch()
    add_to(batch, position)
    rocks.write(batch)
    rocks.sync()


def backlog(rocks: Rocks) -> Backlog:
    """What is not archived yet. Reads only the names and numbers of the collections."""
    return behind(load(rocks), source.read_meta(rocks)[1])


def behind(position: Position | None, sources: Iterable[Source]) -> Backlog:
    """What is not archived yet of collections, where the archive is at `position`. Reads nothing."""
    reached = {(one.tenant, one.number): one for one in position.reached} if position else {}
    rows = size = 0
    for found in sources:
        one = reached.get((found.tenant, found.record.number))
        changes = max(0, found.seq - (one.seq if one else 0))
        rows += changes
        size += changes * (one.row_bytes if one else found.width + _RECORD_BYTES)
    return Backlog(rows, size)


def archived_seq(rocks: Rocks, tenant: str, number: int) -> int:
    """Up to where the archive knows a collection's deletions: those in `dead` above it must stay. 0: none is known."""
    position = load(rocks)
    reached = position.reached if position else ()
    return next((one.seq for one in reached if (one.tenant, one.number) == (tenant, number)), 0)


def check_restored(rocks: Rocks) -> None:
    """Raise Damaged if a restore of this box has begun and not ended. To be called when a box is opened."""
    if rocks.get("meta", MARKER_KEY) is not None:
        raise Damaged("a restore of this box was broken off: run `acu data restore` again. Nothing in it counts.")


def base(position: Position, found: Shelf, where: str) -> Stored | None:
    """The manifest to go on from; None: nothing was archived ever, and the archive begins. Raises Conflict, Damaged."""
    newest = found.whole[0] if found.whole else None
    if newest is not None and position.knows(newest) and newest.manifest.number == found.last:
        return newest
    if not found.last:
        if not position.number:
            return None
        raise Conflict(
            f"the archive in {where}, which had {position.number} manifests, is gone: is its disk mounted, and is this the right "
            "bucket? Run `acu data archive --restart` to begin it anew there."
        )
    owner = newest.manifest.owner if newest is not None else position.owner
    if owner != position.owner:
        raise Conflict(
            f"the archive in {where} belongs to another box: give this one a prefix of its own. If the other is lost, run "
            "`acu data restore --from-bucket` on an empty box instead."
        )
    if found.broken:
        raise Damaged(f"{found.broken[0].what}")
    if found.last < position.number:
        raise Conflict(
            f"the archive in {where} ends with manifest {found.last}, and this box has written {position.number}: was it set "
            "back, or is another disk mounted? Run `acu data archive --restart` to archive there what the box has now."
        )
    raise Conflict(
        f"the archive in {where} is ahead of this box, or was changed: was the box set back to an older backup? Run "
        "`acu data archive --restart` to archive what the box has now, or `acu data restore --from-bucket` on an empty box."
    )


def check_restart(position: Position, found: Shelf, where: str) -> None:
    """Raise Conflict if what is in the bucket is another box's."""
    if any(stored.manifest.owner != position.owner and not position.knows(stored) for stored in found.whole):
        raise Conflict(f"the archive in {where} belongs to another box: give this one a prefix of its own.")

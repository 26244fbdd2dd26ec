"""The list of the archive's attachments: entry segments of a family of their own, which a manifest names beside the others.

    key     the owner (attachments.py) as a tenant's prefix, then the file's name
    value   the Attachment, in msgpack

So there may be many files: the list is cut into ranges (archive_source.py: Chunker), and only ranges that changed are sent.

What is known of a file lies in RocksDB too, among what is the box's own: there an archive run finds the SHA-256 of what it
need not read. A record is written when all parts of its file are in the bucket, and goes when the file has gone. As long as
the file is there, the next manifest names these parts, and none of them is removed. An archive that begins anew forgets all.

    meta    archive/files/<name> -> the Attachment, in msgpack
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dataplane.cold.archive_source import BOX, STEP
from dataplane.cold.attachments import Attachment, Folder, Found
from dataplane.cold.bucket import Bucket
from dataplane.cold.segments import REMEDY, Entry, Sealed, fetch, read_entries
from dataplane.errors import Damaged
from dataplane.threads import in_thread
from dataplane.truth import keys
from dataplane.truth.rocks import Rocks

if TYPE_CHECKING:
    from dataplane.cold.manifest import Manifest

FAMILY = "files"
RANGE_BYTES = 256 << 10  # on average: a thousand files
KNOWN = BOX + b"archive/files/"


def entry(folder: Folder, attachment: Attachment) -> Entry:
    """A file in the list."""
    return keys.tenant_prefix(folder.owner) + attachment.name.encode(), msgspec.msgpack.encode(attachment)


def segments(manifest: Manifest) -> list[Sealed]:
    """The segments of a manifest's list."""
    return [one.sealed for one in manifest.entries if one.family == FAMILY]


async def read(bucket: Bucket, segment: Sealed) -> AsyncIterator[list[Attachment]]:
    """What a segment of the list names, some hundred at a time. Raises Damaged, BucketUnreachable."""
    groups = read_entries(segment.name, await fetch(bucket, segment))
    while (group := await in_thread(_next, groups, segment.name)) is not None:
        yield group


async def each(bucket: Bucket, segments: Iterable[Sealed]) -> AsyncIterator[Attachment]:
    """All that these segments name; a segment that comes again is not read again. Raises as `read` does."""
    for segment in {one.name: one for one in segments}.values():
        async for group in read(bucket, segment):
            for file in group:
                yield file
            await asyncio.sleep(0)


def known(rocks: Rocks, found: Sequence[Found]) -> list[Attachment | None]:
    """What is known of files that are as they were. Raises Damaged."""
    attachments = by_name(rocks, [one.name for one in found])
    return [
        one if one is not None and (one.size, one.modified_ns) == (file.size, file.modified_ns) else None
        for one, file in zip(attachments, found, strict=True)
    ]


def by_name(rocks: Rocks, names: Sequence[str]) -> list[Attachment | None]:
    """What is known of files, whatever they are now. Raises Damaged."""
    stored = rocks.get_many("meta", [KNOWN + name.encode() for name in names])
    return [None if value is None else _decoded(value, "the database") for value in stored]


def remember(rocks: Rocks, attachments: Iterable[Attachment]) -> None:
    """Know files whose parts are in the bucket. A few hundred at a time."""
    batch = rocks.batch()
    for one in attachments:
        batch.put("meta", KNOWN + one.name.encode(), msgspec.msgpack.encode(one))
    if len(batch):
        rocks.write(batch)


def forget_gone(rocks: Rocks, data: Path, after: bytes, kept: Container[str] = ()) -> bytes | None:
    """Forget those of the next few hundred files that are no longer there, but for `kept` names.

    Returns where to go on; None: that was all.
    """
    with contextlib.closing(rocks.scan("meta", KNOWN, start=after)) as scan:
        found = [key for key, _ in itertools.islice(scan, STEP)]
    batch = rocks.batch()
    for key in found:
        name = key[len(KNOWN) :].decode()
        if name not in kept and not (data / name).is_file():
            batch.delete("meta", key)
    if len(batch):
        rocks.write(batch)
    return found[-1][len(KNOWN) :] + b"\x00" if found else None


def forget_owner(rocks: Rocks, folder: str) -> None:
    """Forget what is below a folder."""
    batch = rocks.batch()
    batch.delete_prefix("meta", KNOWN + f"{folder}/".encode())
    rocks.write(batch)


def forget_all(rocks: Rocks) -> None:
    """Know nothing any more."""
    batch = rocks.batch()
    batch.delete_prefix("meta", KNOWN)
    rocks.write(batch)


def _next(groups: Iterator[list[Entry]], name: str) -> list[Attachment] | None:
    group = next(groups, None)
    return None if group is None else [_decoded(value, name) for _, value in group]


def _decoded(value: bytes, where: str) -> Attachment:
    try:
        return msgspec.msgpack.decode(value, type=Attachment)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{where} has a file's record that cannot be read: {error}. {REMEDY}") from error

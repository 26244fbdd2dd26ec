"""Manifests: what the archive consists of, one immutable numbered object after the other. And `verify`.

    manifests/NNNNNNNNNNNNNNNNNNNN.json    {"sha256": "...", "manifest": {...}}

The checksum is that of the bytes of `manifest` as they lie there. A manifest names every segment that counts, with size and
SHA-256; some of them are the list of files, with their parts (filelist.py). The newest one that is whole counts. Of two
writers who put the same number, the store lets one win and tells the other; a manifest also says which box wrote it, and a
box goes on only from a manifest that it knows (archive_position.py).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from dataplane.cold import filelist
from dataplane.cold.attachments import FOLDER as ATTACHMENTS
from dataplane.cold.attachments import Attachment, Part
from dataplane.cold.bucket import Bucket
from dataplane.cold.segments import FOLDER as SEGMENTS
from dataplane.cold.segments import REMEDY, Sealed, fetch
from dataplane.errors import ChecksumMismatch, Conflict, Damaged, DataPlaneError, NotFound, UnsupportedFormat

FORMAT = 2  # 1 had no files
FOLDER = "manifests"
_DIGITS = 20


class RowSegment(Struct, frozen=True, kw_only=True):
    """Rows `first` to `last` of a collection, as they were after deletion `applied`.

    `dead`: how many of its rows were deleted since, at most.
    """

    sealed: Sealed
    first: int
    last: int
    applied: int
    dead: int = 0


class DeletionSegment(Struct, frozen=True, kw_only=True):
    """Deletions of a collection, up to sequence number `last`."""

    sealed: Sealed
    last: int


class Collection(Struct, frozen=True, kw_only=True):
    """A collection up to sequence number `seq`. Its segments follow each other by row number."""

    tenant: str
    name: str
    number: int
    dimensions: int
    seq: int
    rows: tuple[RowSegment, ...] = ()
    deletions: tuple[DeletionSegment, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """What no other collection has, ever."""
        return self.tenant, self.number

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return 4 * self.dimensions


class EntrySegment(Struct, frozen=True, kw_only=True):
    """A range of one tenant's keys in a family. `content` is the SHA-256 of keys and values, before they are encoded."""

    sealed: Sealed
    family: str
    tenant: str
    content: str


class Files(Struct, frozen=True, kw_only=True):
    """How many files a manifest's list has, of how many parts and bytes."""

    count: int = 0
    parts: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, files: Sequence[Attachment]) -> Files:
        """Of these."""
        return cls(count=len(files), parts=sum(len(one.parts) for one in files), bytes=sum(one.size for one in files))

    def plus(self, other: Files) -> Files:
        """Of both."""
        return Files(count=self.count + other.count, parts=self.parts + other.parts, bytes=self.bytes + other.bytes)


class Manifest(Struct, frozen=True, kw_only=True):
    """The archive at one moment. `owner` is the box that wrote it."""

    number: int
    owner: str
    created_ms: int
    collections: tuple[Collection, ...] = ()
    entries: tuple[EntrySegment, ...] = ()
    files: Files = Files()
    format: int = FORMAT

    def segments(self) -> Iterator[Sealed]:
        """All that it names, but for the parts of files."""
        for collection in self.collections:
            for rows in collection.rows:
                yield rows.sealed
            for deletions in collection.deletions:
                yield deletions.sealed
        for entries in self.entries:
            yield entries.sealed


class Problem(NamedTuple):
    """Something that is not as a manifest says. `object` is its name in the bucket; `what` says what is wrong and what to do."""

    object: str
    what: str


class Stored(NamedTuple):
    """A manifest that lies in the bucket, and its checksum."""

    manifest: Manifest
    sha256: str


class Shelf(NamedTuple):
    """The manifests in the bucket: the whole ones, newest first, and the names of those that are not whole."""

    whole: list[Stored]
    broken: list[Problem]
    last: int  # the highest number, whole or not; 0 if there is none


class _Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    manifest: msgspec.Raw


class _Format(Struct, frozen=True):
    format: int


def name_of(number: int) -> str:
    """The object that holds manifest `number`."""
    return f"{FOLDER}/{number:0{_DIGITS}}.json"


def seal(manifest: Manifest) -> tuple[str, bytes]:
    """Its checksum, and the bytes to put."""
    raw = msgspec.json.encode(manifest)
    digest = hashlib.sha256(raw).hexdigest()
    return digest, msgspec.json.encode(_Envelope(digest, msgspec.Raw(raw)))


async def put(bucket: Bucket, number: int, content: bytes) -> None:
    """Put a sealed manifest. Raises Conflict if another one has this number."""
    name = name_of(number)
    # The store may answer that the name is taken when the first answer got lost on the way: then it is ours.
    if not await bucket.put_new(name, content) and bytes(await bucket.get(name)) != content:
        raise Conflict(f"{name} in {bucket.where} was just written by another box: give every box a prefix of its own.")


async def read(bucket: Bucket, number: int) -> Stored:
    """A manifest, checked. Raises NotFound, Damaged, ChecksumMismatch, UnsupportedFormat."""
    name = name_of(number)
    content = bytes(await bucket.get(name))
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{name} in {bucket.where} is no manifest: {error}. {REMEDY}") from error
    raw = bytes(envelope.manifest)
    if hashlib.sha256(raw).hexdigest() != envelope.sha256:
        raise ChecksumMismatch(f"{name} in {bucket.where} is not what was written (its SHA-256 differs). {REMEDY}")
    try:
        format_ = msgspec.json.decode(raw, type=_Format).format
        if format_ > FORMAT:
            raise UnsupportedFormat(
                f"{name} has format {format_}, and this release reads {FORMAT}: use the one that wrote it."
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{name} in {bucket.where} cannot be read: {error}. {REMEDY}") from error
    if manifest.number != number:
        raise Damaged(f"{name} in {bucket.where} is manifest {manifest.number} under a wrong name. {REMEDY}")
    return Stored(manifest, envelope.sha256)


async def numbers(bucket: Bucket) -> list[int]:
    """The numbers of all manifests in the bucket, the newest first."""
    found = []
    async for name, _ in bucket.list(FOLDER):
        stem = name.removeprefix(f"{FOLDER}/").removesuffix(".json")
        if len(stem) == _DIGITS and stem.isascii() and stem.isdigit():
            found.append(int(stem))
    return sorted(found, reverse=True)


async def shelf(bucket: Bucket, most: int = 1) -> Shelf:
    """The newest `most` manifests that are whole, and what is wrong with newer ones. Raises UnsupportedFormat."""
    found = await numbers(bucket)
    whole: list[Stored] = []
    broken: list[Problem] = []
    for number in found:
        if len(whole) == most:
            break
        try:
            whole.append(await read(bucket, number))
        except UnsupportedFormat:
            raise  # a newer release is at work here
        except NotFound:  # its owner has just removed it
            continue
        except Damaged as error:
            broken.append(Problem(name_of(number), str(error)))
    return Shelf(whole, broken, found[0] if found else 0)


async def verify(bucket: Bucket, *, deep: bool = False) -> list[Problem]:
    """The newest whole manifest against the objects that it names: whether they are there, and as long as they should be.

    `deep`: and whether their SHA-256 is right, which reads them all. Newer manifests that are not whole are problems too;
    older ones no longer count. Empty: all is well. Raises BucketUnreachable, UnsupportedFormat.
    """
    found = await shelf(bucket)
    problems = list(found.broken)
    if not found.whole:
        problems.append(Problem(FOLDER, f"no whole manifest is in {bucket.where}: run `acu data archive`."))
    sizes = {name: size for folder in (SEGMENTS, ATTACHMENTS) async for name, size in bucket.list(folder)}
    for stored in found.whole:
        segments = {segment.name: segment for segment in stored.manifest.segments()}
        for name, segment in sorted(segments.items()):
            problems += await _problems(bucket, segment, sizes.get(name), deep=deep)
        problems += await _problems_of_files(bucket, stored.manifest, sizes, deep=deep)
    return problems


async def _problems_of_files(bucket: Bucket, manifest: Manifest, sizes: dict[str, int], *, deep: bool) -> list[Problem]:
    problems: list[Problem] = []
    checked: set[str] = set()
    for segment in filelist.segments(manifest):
        if sizes.get(segment.name) != segment.size:
            continue  # that was told
        try:
            async for file in filelist.each(bucket, [segment]):
                for part in file.parts:
                    if part.name not in checked:
                        checked.add(part.name)
                        what = f" It is a part of the file {file.name}."
                        problems += await _problems(bucket, part, sizes.get(part.name), deep=deep, of=what)
        except Damaged as error:
            if not deep:  # else it was told
                problems.append(Problem(segment.name, str(error)))
    return problems


async def _problems(bucket: Bucket, one: Sealed | Part, size: int | None, *, deep: bool, of: str = "") -> list[Problem]:
    if size is None:
        return [Problem(one.name, f"{one.name} is missing in {bucket.where}, and a manifest names it. {REMEDY}{of}")]
    if size != one.size:
        what = f"{one.name} in {bucket.where} has {size} bytes, and was written with {one.size}. {REMEDY}{of}"
        return [Problem(one.name, what)]
    if deep:
        try:
            await fetch(bucket, one)
        except Damaged as error:
            return [Problem(one.name, f"{error}{of}")]
    return []


async def remove_unnamed(bucket: Bucket, *, keep: int) -> list[str]:
    """Remove manifests but for the newest `keep` whole ones, then the objects that none of these names. Returns the names.

    Only while nobody else archives there. A crash between leaves objects without a manifest, for the next call.
    """
    kept = [stored.manifest for stored in (await shelf(bucket, most=keep)).whole]
    if not kept:
        raise DataPlaneError(f"no whole manifest is in {bucket.where}: nothing is removed.")
    numbers_kept = {manifest.number for manifest in kept}
    old = [name_of(number) for number in await numbers(bucket) if number not in numbers_kept]
    await bucket.delete(old)
    named = {segment.name for manifest in kept for segment in manifest.segments()}
    loose = [name async for name, _ in bucket.list(SEGMENTS) if name not in named]
    with contextlib.suppress(Damaged):  # nobody knows then what an old list names: all parts stay, and verify tells
        parts = await parts_of(bucket, kept)
        loose += [name async for name, _ in bucket.list(ATTACHMENTS) if name not in parts]
    await bucket.delete(loose)
    await bucket.sweep()
    return old + loose


async def parts_of(bucket: Bucket, kept: list[Manifest]) -> set[str]:
    """The names of all parts of files. Raises Damaged."""
    segments = [segment for manifest in kept for segment in filelist.segments(manifest)]
    return {part.name async for file in filelist.each(bucket, segments) for part in file.parts}

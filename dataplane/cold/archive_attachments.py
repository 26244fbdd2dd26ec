"""Attachments on their way: from the box into the bucket, and back (attachments.py has what they are).

Into the bucket. They are listed after RocksDB was read, some hundred at a time; those that are known (filelist.py) are not
read. Whoever moves something from RocksDB into a file makes the file durable first; so what the archive does not have in
RocksDB any more it has in a file. A file that goes away before it was read was deleted, and is left out. Where an index says
which files count, it is read before they are listed and once more when all have been sent: if it changed meanwhile, they are
listed anew, and only what is new then is read. So the files are there that the index in the archive names.

Back. A file is written beside its place, under a name that does not count, while each part's SHA-256 and in the end its own
is checked; then it is made durable and renamed. The restore's marker stands until all files and folders are durable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from dataplane.cold import attachments, filelist
from dataplane.cold.archive_export import Export, Ranges
from dataplane.cold.archive_source import STEP
from dataplane.cold.attachments import HISTORY, PART_BYTES, Attachment, Folder, Found, Kept, Part
from dataplane.cold.bucket import Bucket
from dataplane.cold.manifest import EntrySegment, Files
from dataplane.cold.segments import REMEDY, Entry, fetch
from dataplane.errors import ChecksumMismatch, Damaged, Unavailable
from dataplane.files import TEMPORARY, sha256_file, storage_errors, sync_folder
from dataplane.state.logmanifest import MANIFEST
from dataplane.state.logmanifest import Manifest as HistoryManifest
from dataplane.state.logshards import LogShardEntry
from dataplane.threads import in_thread
from dataplane.truth.rocks import Rocks

ATTEMPTS = 20
RETRY_AFTER_S = 30.0
SHARD_HELP = "Fetch it with `acu data verify --repair` if the archive has it, or restore it from a backup."
REMEMBERED = 128  # files at a time
REMEMBERED_BYTES = 64 << 20  # which a run that is killed has sent in vain, at most, and a file
Index = tuple[Found, bytes] | None


class Guarded(NamedTuple):
    """Files of which something else says what they should be, by name, and what the archive has of damaged ones.

    For uploaded files that is their record, for log shards the history's manifest.
    """

    sha256: Mapping[str, str | None] = MappingProxyType({})
    damaged: Mapping[str, Attachment | None] = MappingProxyType({})

    def with_history(self, rocks: Rocks, data: Path, *, deep: bool = False) -> tuple[Guarded, list[str]]:
        """And the log shards. Those that are missing or cut stay in the archive as it has them, and are told.

        `deep`: so are those that have another SHA-256, whose files are all read. Raises Damaged.
        """
        entries = _history(data)
        wrong = [entry for entry in entries if not _is_whole(data / HISTORY.folder / entry.name, entry, deep=deep)]
        if _history(data) != entries:  # they were merged meanwhile
            return self.with_history(rocks, data, deep=deep)
        names = [f"{HISTORY.folder}/{entry.name}" for entry in wrong]
        known = filelist.by_name(rocks, names)
        damaged = {
            name: one if one is not None and one.sha256 == entry.sha256 else None
            for name, entry, one in zip(names, wrong, known, strict=True)
        }
        sha256 = {f"{HISTORY.folder}/{entry.name}": entry.sha256 for entry in entries}
        told = [f"the shard {name} is missing, or is not what was written. {SHARD_HELP}" for name in names]
        return Guarded({**self.sha256, **sha256}, {**self.damaged, **damaged}), told


class Outgoing:
    """One run's way with the files in `data`. Ranges of the list that are in `known` are not sent."""

    def __init__(
        self,
        export: Export,
        rocks: Rocks,
        data: Path,
        known: Iterable[EntrySegment],
        guarded: Guarded | None = None,
    ) -> None:
        self._export = export
        self._rocks = rocks
        self._data = data
        self._listed = [one for one in known if one.family == filelist.FAMILY]
        self._guarded = guarded or Guarded()

    async def ship(self, *, anew: bool) -> tuple[list[EntrySegment], Files]:
        """Put what is new, and name all. `anew`: nothing is known, whatever was.

        Raises Damaged for a file that cannot be read, Unavailable.
        """
        if anew:
            await in_thread(filelist.forget_all, self._rocks)
            await self._keep_known()
        segments: list[EntrySegment] = []
        total = Files()
        for kept in attachments.KEPT:
            found, files = await self._kept(kept)
            segments += found
            total = total.plus(files)
        after: bytes | None = b""
        while after is not None:
            after = await in_thread(filelist.forget_gone, self._rocks, self._data, after, self._guarded.damaged)
        return segments, total

    async def _kept(self, kept: Kept) -> tuple[list[EntrySegment], Files]:
        index = await in_thread(attachments.read_index, self._data, kept)
        for _ in range(ATTEMPTS):
            segments: list[EntrySegment] = []
            total = Files()
            for folder in await in_thread(self._folders, kept):
                found, files = await self._folder(folder, index)
                segments += found
                total = total.plus(files)
            before, index = index, await in_thread(attachments.read_index, self._data, kept)
            if index == before:
                return segments, total
        raise Unavailable(
            f"the files of {kept.folder} change faster than they can be archived: it is tried again.",
            retry_after_s=RETRY_AFTER_S,
        )

    async def _folder(self, folder: Folder, index: Index) -> tuple[list[EntrySegment], Files]:
        """All files of a folder; its index last."""
        ranges = Ranges(self._export, filelist.FAMILY, self._listed, filelist.RANGE_BYTES)
        total = Files()
        damaged = {name.rpartition("/")[2]: one for name, one in self._damaged(folder).items()}
        names = sorted({*await in_thread(attachments.names_in, self._data, folder), *damaged})
        for at in range(0, len(names), STEP):
            step = names[at : at + STEP]
            whole = [name for name in step if name not in damaged]
            sent = await self._files(await in_thread(attachments.look_at, self._data, folder, whole))
            sent += [one for name in step if (one := damaged.get(name)) is not None]
            sent.sort(key=lambda one: one.name)
            await ranges.add(await in_thread(_entries, folder, sent))
            total = total.plus(await in_thread(Files.of, sent))
        if index is not None:
            sent = [await self._content(*index)]
            await ranges.add(_entries(folder, sent))
            total = total.plus(Files.of(sent))
        return await ranges.end(), total

    def _folders(self, kept: Kept) -> list[Folder]:
        """Those that are there, and those of damaged files, by owner."""
        there = {folder.owner: folder for folder in attachments.folders(self._data, kept)}
        if kept.by_tenant:
            below = f"{kept.folder}/"
            lost = {name.split("/")[-2] for name in self._guarded.damaged if name.startswith(below)}
            there |= {owner: Folder(kept, owner, f"{kept.folder}/{owner}") for owner in lost}
        return [there[owner] for owner in sorted(there)]

    def _damaged(self, folder: Folder) -> dict[str, Attachment | None]:
        return {name: one for name, one in self._guarded.damaged.items() if name.startswith(f"{folder.path}/")}

    async def _keep_known(self) -> None:
        """Go on to know damaged files whose parts are in this bucket, which may be another than before."""
        if not self._guarded.damaged:
            return
        sizes = {name: size async for name, size in self._export.bucket.list(attachments.FOLDER)}
        kept = {
            name: one if one is not None and all(sizes.get(part.name) == part.size for part in one.parts) else None
            for name, one in self._guarded.damaged.items()
        }
        self._guarded = self._guarded._replace(damaged=kept)
        await in_thread(filelist.remember, self._rocks, [one for one in kept.values() if one is not None])

    async def _files(self, found: list[Found]) -> list[Attachment]:
        """Some files; those that have gone away are left out."""
        known = await in_thread(filelist.known, self._rocks, found)
        new: list[Attachment] = []
        for number, (file, one) in enumerate(zip(found, known, strict=True)):
            if one is None and (made := await self._file(file)) is not None:
                known[number] = made
                new.append(made)
                if len(new) == REMEMBERED or sum(each.size for each in new) > REMEMBERED_BYTES:
                    await in_thread(filelist.remember, self._rocks, new)
                    new = []
        await in_thread(filelist.remember, self._rocks, new)
        return [one for one in known if one is not None]

    async def _file(self, found: Found) -> Attachment | None:
        """Read and send a file; None: it has gone away."""
        digest = hashlib.sha256()
        parts: list[Part] = []
        for at in range(0, found.size, PART_BYTES):
            content = await in_thread(_read, self._data / found.name, found, at)
            if content is None:
                return None
            parts.append(await self._part(content))
            await in_thread(digest.update, content)
        if (expected := self._guarded.sha256.get(found.name)) not in (None, digest.hexdigest()):
            (known,) = await in_thread(filelist.by_name, self._rocks, [found.name])
            self._export.report.damaged.append(f"the file {found.name} has another SHA-256 than it was written with.")
            return known if known is not None and known.sha256 == expected else None
        self._export.report.files += 1
        return Attachment(found.name, found.size, digest.hexdigest(), found.modified_ns, tuple(parts))

    async def _content(self, found: Found, content: bytes) -> Attachment:
        """An index, whose content is at hand. Unless it is known, it is sent from there."""
        digest = (await in_thread(hashlib.sha256, content)).hexdigest()
        (known,) = await in_thread(filelist.known, self._rocks, [found])
        if known is not None and known.sha256 == digest:
            return known
        pieces = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
        parts = tuple([await self._part(piece) for piece in pieces])
        made = Attachment(found.name, found.size, digest, found.modified_ns, parts)
        await in_thread(filelist.remember, self._rocks, [made])
        return made

    async def _part(self, content: bytes) -> Part:
        part = Part((await in_thread(hashlib.sha256, content)).hexdigest(), len(content))
        await self._export.put(part.name, content, part.size)
        return part


class Incoming:
    """Brings files back into `data`. `told` hears the size of each part. `finish` when all are there."""

    def __init__(self, bucket: Bucket, data: Path, told: Callable[[int], None]) -> None:
        self._bucket = bucket
        self._data = data
        self._told = told
        self._folders: set[Path] = set()

    async def bring(self, attachment: Attachment) -> None:
        """Write a file, checked. Raises Damaged and ChecksumMismatch, which name it, BucketUnreachable, StorageFull."""
        path = attachments.place_of(self._data, attachment)
        await in_thread(self._make_folders, path.parent)
        temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            await self._write(attachment, temporary)
            await in_thread(_put_in_place, temporary, path, attachment.modified_ns)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    async def finish(self) -> None:
        """Make the names durable."""
        for folder in sorted(self._folders):
            await in_thread(sync_folder, folder)

    async def _write(self, attachment: Attachment, temporary: Path) -> None:
        digest = hashlib.sha256()
        size = 0
        await in_thread(_begin, temporary)
        for part in attachment.parts:
            content = await fetch(self._bucket, part)
            await in_thread(digest.update, content)
            await in_thread(_append, temporary, content)
            size += len(content)
            self._told(len(content))
        if (digest.hexdigest(), size) != (attachment.sha256, attachment.size):
            raise ChecksumMismatch(
                f"the file {attachment.name} in {self._bucket.where} is not what was archived (its size or its SHA-256 "
                f"differs). {REMEDY}"
            )

    def _make_folders(self, folder: Path) -> None:
        if folder in self._folders:
            return
        with storage_errors(folder):
            for one in reversed([folder, *folder.relative_to(self._data).parents]):
                (self._data / one).mkdir(mode=0o700, exist_ok=True)
                self._folders.add(self._data / one)


def _history(data: Path) -> tuple[LogShardEntry, ...]:
    """The log shards that count; none where there is no history, or its manifest cannot be read, which `verify` tells."""
    path = data / HISTORY.folder / MANIFEST
    try:
        return HistoryManifest.read(path).shards if path.exists() else ()
    except Damaged:
        return ()


def _is_whole(path: Path, entry: LogShardEntry, *, deep: bool) -> bool:
    """Whether a shard is a regular file of its size; `deep`: with its content."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size != entry.bytes:
            return False
        return not deep or sha256_file(path) == entry.sha256
    except (OSError, Damaged):  # it cannot be read, or has just gone
        return False


def _entries(folder: Folder, files: Iterable[Attachment]) -> list[Entry]:
    return [filelist.entry(folder, one) for one in files]


def _read(path: Path, found: Found, at: int) -> bytes | None:
    """A part of a file from byte `at` on; None: it has gone away, or is another than the one that was listed."""
    try:
        with path.open("rb", buffering=0) as file:
            known = os.fstat(file.fileno())
            if (known.st_size, known.st_mtime_ns) != (found.size, found.modified_ns):
                return None
            file.seek(at)
            content = bytearray()
            left = min(PART_BYTES, found.size - at)
            while left and (piece := file.read(left)):
                content += piece
                left -= len(piece)
            return None if left else bytes(content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise attachments.unreadable(path, error) from error


def _begin(path: Path) -> None:
    with storage_errors(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _append(path: Path, content: bytes) -> None:
    with storage_errors(path), path.open("ab") as file:
        file.write(content)


def _put_in_place(temporary: Path, path: Path, modified_ns: int) -> None:
    """Give a whole file its time and its name. Its content is durable then."""
    with storage_errors(path):
        os.utime(temporary, ns=(modified_ns, modified_ns))
        descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)

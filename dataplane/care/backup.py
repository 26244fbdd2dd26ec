"""Backup: a copy of the data plane that is taken while it runs, and the way back.

Format. A folder with

    rocks/...       a checkpoint of RocksDB, which opens by itself
    ...             other files, under the names that the caller gave
    MANIFEST        JSON: {"sha256": of the content's bytes, "content": {"format", "created_ms", "files": [{name, size, sha256}]}}

A backup is valid if MANIFEST is, every file that it names is there with that size and checksum, and no other file is.

Links. Files of the same file system are hard-linked: that costs no space and no copying. So only files that are never changed in
place may be given, which RocksDB's tables and finished shards are; the rest of a checkpoint is small, and copied. What
the data plane removes or replaces later stays in the backup. A link does not protect from a broken disk: for that, the target is
a folder on another one, and everything is copied.

Ordering. The other files are linked first, then the checkpoint is made, both in a folder beside the database: so the checkpoint
is at least as new as they are, and `later` files at least as it is. Then, which may take long, all is put together in a hidden
folder beside the target, hashed, fsynced, and renamed at the end. `restore` does the same on the way back. So the final name
stands for a whole backup (or data directory) or for nothing, also after a crash or on a full disk. A hidden folder that a killed
process left is removed by the next backup or restore to the same place; one that is in use is locked (flock), and refused.

All calls block for as long as reading everything takes: run them in a thread. None holds the GIL for long.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec
from msgspec import Struct

from dataplane import clock
from dataplane.errors import (
    AlreadyExists,
    ChecksumMismatch,
    Damaged,
    InvalidInput,
    NotFound,
    StorageFull,
    UnsupportedFormat,
)
from dataplane.files import storage_errors, sync_folder, write_bytes
from dataplane.truth.claims import claimed
from dataplane.truth.rocks import Rocks

FORMAT = 1
MANIFEST = "MANIFEST"
ROCKS = "rocks"
_PIECE = 1 << 20
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES})
_SHOWN = 5  # problems that an error names
Progress = Callable[[int, int], None]  # bytes done, bytes in all


class BackedUpFile(Struct, frozen=True):
    """A file of a backup. `name` is relative, with slashes."""

    name: str
    size: int
    sha256: str


class Manifest(Struct, frozen=True):
    """What a backup consists of. `created_ms`: milliseconds since 1970, UTC."""

    format: int
    created_ms: int
    files: list[BackedUpFile]


class BackupReport(Struct, frozen=True):
    """What was backed up or restored."""

    folder: Path
    files: int
    size: int
    created_ms: int


class _Sealed(Struct):
    sha256: str
    content: msgspec.Raw


def back_up(
    rocks: Rocks,
    data_dir: Path,
    target: Path,
    *,
    files: Mapping[str, Path],
    later: Callable[[Path], Mapping[str, str] | None] | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Back up `rocks`, and `files` (name in the backup -> a file that is never changed in place), to the folder `target`.

    Everything written before the call is in the backup. `data_dir` is a folder on the database's file system, where the
    checkpoint lies for a moment; then `later` links or copies files into the folder that it gets, and returns the SHA-256 that
    files must have, by name, where it is known. Raises AlreadyExists if `target` has anything in it, InvalidInput for a name or a
    target that cannot be, NotFound for a file that is gone, ChecksumMismatch for one that is damaged, Locked if another backup
    runs, StorageFull and Unavailable; then there is no backup.
    """
    for name in files:
        _check_name(name)
        if PurePosixPath(name).parts[0] in {MANIFEST, ROCKS}:
            raise InvalidInput(f"{name!r} is a name of the backup's own.", param="files")
    with _hidden(target) as building, claimed(data_dir / ".tmp-checkpoint") as staged:
        for name, source in files.items():
            link_or_copy(source, staged / name)
        rocks.flush()  # a checkpoint flushes too, but holds the GIL meanwhile
        rocks.checkpoint(staged / ROCKS)
        known = None if later is None else later(staged)
        for name in _names(staged):
            link_or_copy(staged / name, building / name)
        manifest = _describe(building, progress)
        _check_known(manifest, known or {})
        content = msgspec.json.encode(manifest)
        sealed = _Sealed(hashlib.sha256(content).hexdigest(), msgspec.Raw(content))
        write_bytes(building / MANIFEST, msgspec.json.encode(sealed))
        return _finished(building, target, manifest)


def check_backup(folder: Path, progress: Progress | None = None) -> list[str]:
    """What is wrong with a backup, a sentence for each file; empty: nothing. Reads all of it.

    Raises NotFound if there is no backup, UnsupportedFormat for one of a newer release.
    """
    try:
        manifest = _read_manifest(folder)
    except UnsupportedFormat:
        raise
    except Damaged as error:
        return [str(error)]
    return _problems(folder, manifest, _Counter(progress, _size(manifest)))


def restore(folder: Path, data_dir: Path, *, progress: Progress | None = None) -> BackupReport:
    """Make `data_dir` from the backup in `folder`, which stays as it is. It is checked first, then copied.

    Raises AlreadyExists if `data_dir` has anything in it, ChecksumMismatch or another Damaged if the backup is not whole,
    NotFound if there is none, StorageFull; then nothing was restored.
    """
    _check_target(data_dir)
    manifest = _read_manifest(folder)
    size = _size(manifest)
    counter = _Counter(progress, 2 * size)
    if problems := _problems(folder, manifest, counter):
        shown = " ".join(problems[:_SHOWN]) + (f" And {len(problems) - _SHOWN} more." if len(problems) > _SHOWN else "")
        raise ChecksumMismatch(f"the backup {folder} is damaged, and nothing was restored: {shown}")
    with _hidden(data_dir) as building:
        if _free(building) < size:
            raise StorageFull(f"restoring needs {size} bytes, and the disk of {data_dir} has less. Free some space.")
        for file in manifest.files:
            if _copy(folder / file.name, building / file.name, counter) != file.sha256:
                raise ChecksumMismatch(f"{folder / file.name} changed while it was copied: nothing was restored.")
        return _finished(building, data_dir, manifest)


class _Counter:
    """Bytes done, told to whoever wants to know."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


@contextlib.contextmanager
def _hidden(target: Path) -> Iterator[Path]:
    """A folder beside `target` to build in. Removed at the end, unless it was renamed."""
    _check_target(target)
    with storage_errors(target.parent):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with claimed(target.parent / f".tmp-{target.name}") as folder:
        yield folder


def _check_target(target: Path) -> None:
    """Raises what makes `target` no place to put something new."""
    with storage_errors(target):
        if target.is_mount():
            raise InvalidInput(f"{target} is a mount point, which cannot be put in place at once: name a folder in it.")
        if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
            raise AlreadyExists(f"{target} is there already, and nothing is overwritten: name a new or empty folder.")


def _free(folder: Path) -> int:
    with storage_errors(folder):
        return shutil.disk_usage(folder).free


def _finished(building: Path, target: Path, manifest: Manifest) -> BackupReport:
    """Make everything durable, then give it its name."""
    for path in sorted(building.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            _sync_file(path)
    sync_folder(building)
    with storage_errors(target):
        try:
            building.rename(target)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise AlreadyExists(f"{target} was made meanwhile, and nothing is overwritten.") from error
            raise
    sync_folder(target.parent)
    return BackupReport(target, len(manifest.files), _size(manifest), manifest.created_ms)


def _sync_file(path: Path) -> None:
    with storage_errors(path), path.open("rb") as file:
        os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system is the same, else a copy. Makes the folder. Raises NotFound, StorageFull."""
    with storage_errors(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(source, target, follow_symlinks=True)
        except FileNotFoundError as error:
            raise NotFound(f"{source} went away before it was backed up: start the backup again.") from error
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
        else:
            return
    _copy(source, target, _Counter(None, 0))


def _copy(source: Path, target: Path, counter: _Counter) -> str:
    """Returns the SHA-256 of what was copied."""
    with storage_errors(target):
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.touch(mode=0o600, exist_ok=False)
        with target.open("wb") as copy:
            return _hashed(source, counter, copy)


def _hashed(path: Path, counter: _Counter, copy: BinaryIO | None = None) -> str:
    """The SHA-256 of a file, which is copied to `copy`."""
    digest = hashlib.sha256()
    try:
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path.name, error) from error
    with file:
        while True:
            try:
                piece = file.read(_PIECE)
            except OSError as error:
                raise _unreadable(path.name, error) from error
            if not piece:
                return digest.hexdigest()
            digest.update(piece)
            if copy is not None:
                copy.write(piece)
            counter.add(len(piece))


def _unreadable(name: str, error: OSError) -> Damaged:
    return Damaged(f"{name} cannot be read: {error.strerror or error}.")


def _describe(folder: Path, progress: Progress | None) -> Manifest:
    """The manifest of what is in `folder`."""
    names = _names(folder)
    sizes = [(folder / name).stat().st_size for name in names]
    counter = _Counter(progress, sum(sizes))
    files = [BackedUpFile(name, size, _hashed(folder / name, counter)) for name, size in zip(names, sizes, strict=True)]
    return Manifest(FORMAT, clock.now_ms(), files)


def _check_known(manifest: Manifest, known: Mapping[str, str]) -> None:
    """Raise ChecksumMismatch, which names them, for files that have another SHA-256 than the one that is known of them."""
    wrong = [file.name for file in manifest.files if file.sha256 != known.get(file.name, file.sha256)]
    if wrong:
        shown = ", ".join(wrong[:_SHOWN]) + (f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
        raise ChecksumMismatch(
            f"there is no backup, for these files have another SHA-256 than when they were uploaded: {shown}. Bring them back "
            "with `acu data verify --deep --repair`, if the archive has them; else delete them."
        )


def _names(folder: Path) -> list[str]:
    """Everything in `folder` that is no folder, relative to it."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
    )


def _size(manifest: Manifest) -> int:
    return sum(file.size for file in manifest.files)


def _problems(folder: Path, manifest: Manifest, counter: _Counter) -> list[str]:
    """What in `folder` is not as `manifest` says."""
    problems = []
    for file in manifest.files:
        try:
            _check_file(folder, file, counter)
        except Damaged as error:
            problems.append(str(error))
    named = {MANIFEST, *(file.name for file in manifest.files)}
    return problems + [f"{name} does not belong to the backup." for name in _names(folder) if name not in named]


def _check_file(folder: Path, file: BackedUpFile, counter: _Counter) -> None:
    """Raises Damaged for a file that is not as the manifest says."""
    path = folder / file.name
    if not os.path.lexists(path):
        raise Damaged(f"{file.name} is missing.")
    if path.is_symlink() or not path.is_file():
        raise Damaged(f"{file.name} is no regular file.")
    size = path.stat().st_size
    if size != file.size:
        raise Damaged(f"{file.name} has {size} bytes, and had {file.size}.")
    if _hashed(path, counter) != file.sha256:
        raise ChecksumMismatch(f"{file.name} is not what was backed up: its SHA-256 differs.")


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        stored = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{folder} is no backup: it has no {MANIFEST}.") from error
    except OSError as error:
        raise _unreadable(MANIFEST, error) from error
    try:
        sealed = msgspec.json.decode(stored, type=_Sealed)
        if hashlib.sha256(sealed.content).hexdigest() != sealed.sha256:
            raise ChecksumMismatch(f"{MANIFEST} is not what was written: its SHA-256 differs.")
        manifest = msgspec.json.decode(sealed.content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error}.") from error
    if manifest.format > FORMAT:
        raise UnsupportedFormat(
            f"the backup {folder} has format {manifest.format}, and this release reads {FORMAT}: use the release that made it."
        )
    for file in manifest.files:
        try:
            _check_name(file.name)
        except InvalidInput as error:
            raise Damaged(f"{MANIFEST} cannot be read: {error}") from error
    return manifest


def _check_name(name: str) -> None:
    """Raises InvalidInput for a name that leads out of its folder, or can be written in another way."""
    path = PurePosixPath(name)
    if (
        name in {"", "."}
        or not name.isprintable()
        or path.is_absolute()
        or ".." in path.parts
        or path.as_posix() != name
    ):
        raise InvalidInput(f"{name!r} is no name of a file in a folder.", param="files")

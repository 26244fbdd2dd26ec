"""Attachments: files of the data plane's folder that the archive has besides RocksDB, and what a manifest says of them.

    library/files/<tenant's folder>/<file>   uploaded files. The folder's name is a hash of the tenant's (`tenant_folder`)
    history/<shard>                          log shards of old events
    history/manifest.json                    which of these count. It alone is mutable: replaced as a whole

Everything else there is immutable: a file gets its final name when it is whole, keeps its content, and goes. So name, size
and time of change stand for the content, and what an earlier manifest knows by them is not read again.

In the bucket a file lies in parts of PART_BYTES, the last one shorter, each put under the SHA-256 of its content:

    attachments/<sha256>

One part is in memory at a time; a run that was broken off finds its parts there; files with the same content share them.

What lies in deeper folders, what is no regular file, and names that begin with `.tmp-` (writes that have not ended) do not
count. Calls read the disk: run them in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from msgspec import Struct

from dataplane.errors import Damaged
from dataplane.files import TEMPORARY, storage_errors, sync_folder

FOLDER: Final = "attachments"
PART_BYTES: Final = 8 << 20


class Kept(NamedTuple):
    """A folder whose files are archived.

    `mutable`: the name of its index, which says which of them count. `by_tenant`: files lie in tenants' own folders.
    """

    folder: str
    mutable: str | None = None
    by_tenant: bool = False


FILES: Final = Kept("library/files", by_tenant=True)
HISTORY: Final = Kept("history", mutable="manifest.json")
KEPT: Final = (FILES, HISTORY)


class Part(Struct, frozen=True, array_like=True):
    """A piece of a file, and the object that it is. `size` in bytes."""

    sha256: str
    size: int

    @property
    def name(self) -> str:
        """The object's name."""
        return f"{FOLDER}/{self.sha256}"


class Attachment(Struct, frozen=True, array_like=True):
    """A file as the archive names it. `name` is relative to the data plane's folder, with slashes; `size` in bytes.

    `modified_ns`: when it was last changed (nanoseconds since 1970).
    """

    name: str
    size: int
    sha256: str
    modified_ns: int
    parts: tuple[Part, ...]


class Found(NamedTuple):
    """A file as it lies there."""

    name: str
    size: int
    modified_ns: int


class Folder(NamedTuple):
    """A folder whose files lie there. `owner`: the name of a tenant's own folder, else of the folder itself."""

    kept: Kept
    owner: str
    path: str  # relative to the data plane's, with slashes


def tenant_folder(tenant: str) -> str:
    """The name of a tenant's own folder of files: one that no tenant can choose, nor guess another's by."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def folders(data: Path, kept: Kept) -> list[Folder]:
    """The folders of `kept` that are there, by owner. Raises Damaged for one that cannot be read."""
    if not kept.by_tenant:
        return [Folder(kept, kept.folder, kept.folder)] if (data / kept.folder).is_dir() else []
    owners = [name for name in _names(data / kept.folder) if (data / kept.folder / name).is_dir()]
    return [Folder(kept, owner, f"{kept.folder}/{owner}") for owner in owners]


def names_in(data: Path, folder: Folder) -> list[str]:
    """The names of what lies in a folder, sorted, without its index. Raises Damaged."""
    return [name for name in _names(data / folder.path) if name != folder.kept.mutable]


def look_at(data: Path, folder: Folder, names: Sequence[str]) -> list[Found]:
    """The files among `names`, in their order. Those that have gone away are left out. Raises Damaged."""
    found = []
    for name in names:
        path = data / folder.path / name
        try:
            known = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise unreadable(path, error) from error
        if stat.S_ISREG(known.st_mode):
            found.append(Found(f"{folder.path}/{name}", known.st_size, known.st_mtime_ns))
    return found


def read_index(data: Path, kept: Kept) -> tuple[Found, bytes] | None:
    """The index of `kept`; None if there is none. Raises Damaged for one that cannot be read."""
    if kept.mutable is None:
        return None
    path = data / kept.folder / kept.mutable
    try:
        with path.open("rb") as file:
            content, known = file.read(), os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    return Found(f"{kept.folder}/{kept.mutable}", len(content), known.st_mtime_ns), content


def index_times(data: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of change of each index that is there. Others than before: which files count has changed."""
    found = []
    for kept in KEPT:
        if kept.mutable is not None:
            with contextlib.suppress(OSError):
                known = (data / kept.folder / kept.mutable).stat()
                found.append((kept.folder, known.st_size, known.st_mtime_ns))
    return tuple(found)


def place_of(data: Path, attachment: Attachment) -> Path:
    """Where a file belongs. Raises Damaged for a name that leads elsewhere, or into a folder that nobody here knows."""
    path = PurePosixPath(attachment.name)
    known = any(path.is_relative_to(kept.folder) and path != PurePosixPath(kept.folder) for kept in KEPT)
    if not known or ".." in path.parts or "\0" in attachment.name or path.as_posix() != attachment.name:
        raise Damaged(f"the archive names a file {attachment.name!r}, which belongs nowhere in this release's folders.")
    return data / path


def none_in(data: Path) -> bool:
    """Whether there are no files, but for an index."""
    return not any(count(data, kept) for kept in KEPT)


def count(data: Path, kept: Kept) -> int:
    """How many files there are. Raises Damaged."""
    return sum(len(look_at(data, folder, names_in(data, folder))) for folder in folders(data, kept))


def remove_all(data: Path) -> None:
    """Remove all files, and what writing them has left. Raises Unavailable."""
    for kept in KEPT:
        _remove_tree(data / kept.folder)


def of_tenant(data: Path, tenant: str) -> list[Path]:
    """What lies in a tenant's own folders."""
    folders = (data / kept.folder / tenant_folder(tenant) for kept in KEPT if kept.by_tenant)
    return [path for folder in folders for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]


def remove_tenant(data: Path, tenant: str) -> int:
    """Remove a tenant's own folders. Returns how many files that were. Raises Unavailable."""
    found = len(of_tenant(data, tenant))
    for kept in KEPT:
        if kept.by_tenant:
            _remove_tree(data / kept.folder / tenant_folder(tenant))
    return found


def unreadable(path: Path, error: OSError) -> Damaged:
    """What an error of the system says about reading a file."""
    return Damaged(
        f"{path} cannot be read: {error.strerror or error}. Restore it from a backup or the bucket, or remove it."
    )


def _names(folder: Path) -> list[str]:
    """What is in a folder, sorted, but for what does not count."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error
    return sorted(name for name in names if not name.startswith(TEMPORARY) and _is_text(name))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _remove_tree(folder: Path) -> None:
    """Everything in a folder, durably, and the folder itself. One into which somebody writes meanwhile stays, with that."""
    with storage_errors(folder):
        if not folder.is_dir():
            return
        for path in sorted(folder.rglob("*"), reverse=True):  # a folder after what is in it
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.rmdir()
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    sync_folder(folder if folder.is_dir() else folder.parent)

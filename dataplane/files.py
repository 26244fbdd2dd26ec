"""Files that are either whole or not there: how everything outside RocksDB reaches the disk.

`write_atomically` writes under a temporary name in the final name's folder, fsyncs the file, renames it, and fsyncs the
folder. So a final name always stands for whole content: the old or the new. When it has returned, the new content survives
a power loss; when it raised, nothing of it is under the final name, with one exception: if only the last step failed (the
folder's fsync), the new content is there, but a power loss may bring the old one back.

A crash leaves at most files whose names begin with `.tmp-`. The owner of a folder removes them with `remove_leftovers`
when it opens, before it writes.

The system's errors are translated here, for all writers of files: a full disk or quota is StorageFull, everything else
Unavailable.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from typing import TYPE_CHECKING, TypeVar

from dataplane.errors import Damaged, StorageFull, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")

TEMPORARY = ".tmp-"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Translate what the system says about writing `path`: StorageFull or Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            message = f"The disk has no room for {path}. Free some space, then try again."
            raise StorageFull(message) from error
        raise Unavailable(
            f"{path} cannot be written: {error.strerror or error}. Look at the disk and its rights."
        ) from error


def write_atomically(path: Path, write: Callable[[Path], T]) -> T:
    """Put what `write` writes under `path`, whole and durable. Returns what `write` returns.

    `write` gets the path of an empty file (mode 0600), and must have closed it when it returns. A file that is at `path`
    is replaced. Raises StorageFull, Unavailable, and what `write` raises.
    """
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}-{path.name}"[:255])
    try:
        with storage_errors(path):
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            result = write(temporary)
            _fsync(temporary)
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return result


def write_bytes(path: Path, content: bytes) -> None:
    """`write_atomically` for content that is at hand."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: what was created, renamed and removed."""
    with storage_errors(folder):
        _fsync(folder)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the named files of `folder`, durably. Names that are not there are no error. Raises Unavailable.

    A folder that took the place of a file goes with all that is in it.
    """
    for name in names:
        remove(folder / name)
    sync_folder(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder that took its place. What is not there is no error. Raises Unavailable."""
    with storage_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def make_way(path: Path) -> None:
    """Remove a folder that took the place of a file which is about to be written. Raises Unavailable."""
    if path.is_dir():
        remove(path)


def remove_leftovers(folder: Path) -> int:
    """Remove what broken writes left in `folder`. Returns how many files. Only while nobody writes into it."""
    names = [path.name for path in folder.glob(f"{TEMPORARY}*") if path.is_file() or path.is_symlink()]
    if names:
        remove_files(folder, names)
    return len(names)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. Reads in pieces, without the GIL. Raises Damaged when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Damaged(
            f"{path} cannot be read: {error.strerror or error}. Restore it from a backup or the bucket."
        ) from error


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

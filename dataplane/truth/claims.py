"""Claims: a folder in which one process builds something, and nobody else meanwhile.

The folder is locked (flock), so a claim dies with its process; what that left in it is removed by the next claim.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dataplane.errors import Locked
from dataplane.files import storage_errors


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """`folder`, empty and ours alone: its lock dies with the process. Removed at the end, if it still has this name."""
    with storage_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Locked(f"{folder} is in use by another backup or restore: wait until it has ended.") from error
        if not _is(folder, descriptor):
            raise Locked(f"{folder} was in use by another backup or restore until now: look at what it made.")
        with storage_errors(folder):
            _empty(folder)
        try:
            yield folder
        finally:
            if _is(folder, descriptor):
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _is(folder: Path, descriptor: int) -> bool:
    """Whether the open folder still has this name."""
    try:
        return os.path.samestat(folder.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

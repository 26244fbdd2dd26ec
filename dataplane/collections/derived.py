"""Derived: the folder of what is on the disk and can be made anew: graph snapshots, warm shards, full text, by collection.

    derived/<hash of the tenant's name>-<number>/

Nothing in it keeps the data plane from opening. A damaged file is dealt with by whose it is; what is no folder where one must
be, or of which the system says that it cannot be read or written, is removed here with all that is in it. The collection then
begins without, and says so. What the system lacks (files that may be open, memory, space) removes nothing: the data plane does
not open then, and has all that it had when it does.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Container
from pathlib import Path

from dataplane.collections import loading
from dataplane.collections.collection import Collection
from dataplane.errors import Unavailable
from dataplane.files import remove, storage_errors

UNUSABLE = frozenset(
    {
        *(errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP),
        *(errno.EACCES, errno.EPERM, errno.EIO),
    }
)

_log = logging.getLogger(__name__)


class Derived:
    """The folder at `path`, which need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def folder_of(self, tenant: str, number: int) -> Path:
        """A collection's own. Its name is one that no tenant can choose, nor guess another's by."""
        return self._path / f"{hashlib.sha256(tenant.encode()).hexdigest()[:16]}-{number}"

    def load(self, make: Callable[[], Collection]) -> Collection:
        """A collection, loaded: with what is derived of it if that can be used, else without.

        Raises Damaged (of the database), StorageFull, and Unavailable: where the system lacks something, or what is in
        the way cannot be removed.
        """
        collection = make()
        found = self._clear_way(collection.folder)
        try:
            _load(collection)
        except Unavailable as error:
            collection.close()
            if not _tells_of(error, collection.folder):
                raise
            found.append(f"{collection.folder} cannot be used: {error} All in it is made anew.")
            remove(collection.folder)
            collection = make()
            _load(collection)
        if collection.text is not None and collection.text.index.replaced is not None:
            found.append(collection.text.index.replaced)
        for problem in found:
            _log.error("derived data is made anew", extra={"why": problem, "collection": collection.name})
        collection.problems += found
        return collection

    def _clear_way(self, folder: Path) -> list[str]:
        """Remove what is no folder where there must be one. Returns what was there."""
        wrong = [path for path in (self._path, folder) if os.path.lexists(path) and not path.is_dir()]
        for path in wrong:
            remove(path)
        return [f"{path} was no folder. All that belongs there is made anew." for path in wrong]

    def remove_stray(self, known: Container[str]) -> None:
        """Remove all but the `known` names: of collections that were deleted when the process was killed."""
        self._clear_way(self._path)
        with storage_errors(self._path):
            self._path.mkdir(mode=0o700, exist_ok=True)
            stray = [path for path in self._path.iterdir() if path.name not in known]
        for path in stray:
            shutil.rmtree(path, ignore_errors=True)


def _load(collection: Collection) -> None:
    with storage_errors(collection.folder):
        loading.load(collection)


def _tells_of(error: Unavailable, folder: Path) -> bool:
    """Whether the system says of something in the folder itself that it cannot be used."""
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno not in UNUSABLE or not isinstance(cause.filename, str | Path):
        return False
    return Path(cause.filename).is_relative_to(folder)

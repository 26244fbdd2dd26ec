"""Reading: what the system says against looking at a model or its cache, as one error that names the path and what to do.

Every OSError counts, whatever it is: a folder that this user may not enter, a file in a folder's place, a name that is too long,
links that lead in a circle, a disk that fails. What is not there at all is for the caller to tell, who knows whether it should.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from acu.errors import ModelUnreadable

_DENIED = frozenset({errno.EACCES, errno.EPERM})


@contextlib.contextmanager
def reading(place: Path) -> Iterator[None]:
    """Look at the model, or the cache, in folder `place`. Raises ModelUnreadable for what the system refuses meanwhile."""
    try:
        yield
    except OSError as error:
        path = error.filename if isinstance(error.filename, str | Path) else place
        raise ModelUnreadable(
            f"{path} cannot be read: {error.strerror or error}; {_remedy(place, error.errno)}"
        ) from error


def resolved(place: str) -> Path:
    """The folder that a path of the configuration names, without links. Raises ModelUnreadable."""
    try:
        return Path(place).expanduser().resolve()
    except RuntimeError as error:  # whose home is not known, or links that lead in a circle
        raise ModelUnreadable(f"{place} cannot be read: {error}; name the folder itself") from error


def _remedy(place: Path, number: int | None) -> str:
    if number in _DENIED:
        return f"let the user with the id {os.geteuid()} read {place}, and enter the folders on the way, or name another one"
    if number in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return "correct the path, or move away what lies on it"
    return f"look at the disk of {place}, or name another folder"

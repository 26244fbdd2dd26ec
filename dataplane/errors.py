"""Every error that leaves the data plane, drawn as one tree.

    DataPlaneError
    ├── InvalidInput                the caller must change the call
    │   ├── InvalidFilter           an attribute filter that cannot be evaluated
    │   └── DimensionMismatch       a vector of another length than its collection's
    ├── NotFound                    nothing of that name is stored for this tenant
    ├── Conflict                    what is stored is not what the caller believed
    │   ├── AlreadyExists
    │   └── VersionConflict         a compare-and-swap whose expected version is not the stored one
    ├── Unavailable                 the call was fine; it cannot be done now
    │   ├── StorageFull             the disk (or a quota) is full: writes are refused, reads go on
    │   ├── BucketUnreachable       the cold bucket does not answer
    │   └── Closed                  the data plane is closing or closed
    └── Damaged                     stored bytes that are not what was written, or not ours
        ├── ChecksumMismatch
        └── UnsupportedFormat       written by a newer release
    Locked                          (a DataPlaneError) another process has the data directory open

Foreign exceptions (RocksDB's, faiss's, pyarrow's, sqlite3's, obstore's) are translated where they enter, with
`raise ... from`.
"""

from __future__ import annotations


class DataPlaneError(Exception):
    """Root of the tree. `str(error)` is a sentence that may be shown to the caller."""


class InvalidInput(DataPlaneError):
    """The call cannot be served as it is. `param` is the path of the offending field in the caller's terms, or None."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidFilter(InvalidInput):
    """An attribute filter that is malformed, too deep or compares what cannot be compared."""


class DimensionMismatch(InvalidInput):
    """A vector of another length than its collection's."""


class NotFound(DataPlaneError):
    """Nothing of that name is stored for this tenant."""


class Conflict(DataPlaneError):
    """What is stored is not what the caller believed."""


class AlreadyExists(Conflict):
    """The name is taken."""


class VersionConflict(Conflict):
    """A compare-and-swap that expected another version. `version` is the stored one; 0: nothing is stored."""

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class Unavailable(DataPlaneError):
    """The call cannot be done now. `retry_after_s` (seconds) says when to try again."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StorageFull(Unavailable):
    """The disk is full. Nothing of the refused write is stored; reads go on."""


class BucketUnreachable(Unavailable):
    """The cold bucket does not answer, or refuses its credentials."""


class Closed(Unavailable):
    """The data plane is closing or closed."""


class Damaged(DataPlaneError):
    """Stored bytes that are not what was written, or not ours. The message names the file and what to do."""


class ChecksumMismatch(Damaged):
    """A file whose checksum is not the recorded one."""


class UnsupportedFormat(Damaged):
    """A record or file written by a newer release."""


class Locked(DataPlaneError):
    """Another process has the data directory open."""

"""Whether a living process has a data plane open, told by RocksDB's lock on its file LOCK. Takes no lock, makes nothing."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, process


def user_of(folder: Path) -> int | None:
    """The process id of who has the data plane in `folder` open, 0 if it is not known here; None if nobody has.

    Not for a process that has it open itself: to close any descriptor of a file ends the locks that a process has on it.
    """
    try:
        descriptor = os.open(folder / "rocks" / "LOCK", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(0, pid)

"""A file system that does not answer, as a network mount whose server is gone: a FUSE whose program says nothing.

`deaf`: it has not even said hello, and who waits for it can be killed. Else it takes each request and never answers, as a program
that waits for a server: who waits then is deaf to every signal until the mount is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FUSE = Path("/dev/fuse")
_DETACH = 2  # MNT_DETACH
_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQIIIIHHIIHHI28x")
_MAJOR, _MINOR = 7, 31


@contextlib.contextmanager
def silent_mount(place: Path, *, deaf: bool = True) -> Iterator[Path]:
    """`place` as the top of such a file system, until the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    place.mkdir()
    try:
        file = os.open(FUSE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    options = f"fd={file},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"silent", os.fsencode(place), b"fuse", 0, options) != 0:
        os.close(file)
        pytest.skip(f"no FUSE can be mounted here: {os.strerror(ctypes.get_errno())}")
    taker = threading.Thread(target=_take, args=(file,))
    try:
        if not deaf:
            taker.start()
        yield place
    finally:
        assert libc.umount2(os.fsencode(place), _DETACH | 1) == 0  # MNT_FORCE ends what waits
        if not deaf:
            taker.join()
        os.close(file)
        place.rmdir()
        _reap()


def _reap() -> None:
    """Take leave of children that nobody waits for any more, since they waited for the mount and could not be killed."""
    for _ in range(100):
        states = dict(_children())
        for child, state in states.items():
            if state == "Z":
                os.waitpid(child, 0)
        if "D" not in states.values():
            return
        time.sleep(0.01)


def _children() -> Iterator[tuple[int, str]]:
    """Each child of this process, and in which state it is."""
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            yield int(child), Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]


def _take(file: int) -> None:
    """Say hello, and then take requests until the mount is gone."""
    while True:
        try:
            request = os.read(file, 1 << 18)
        except OSError:
            return
        _, code, unique, *_ = _IN.unpack_from(request)
        if code == 26:  # FUSE_INIT
            answer = _OUT.pack(_OUT.size, 0, unique, _MAJOR, _MINOR, 4096, 0, 1, 1, 4096, 1, 0, 0, 0)
            os.write(file, answer)

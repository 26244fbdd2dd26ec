"""Answers: whether the file systems on which the configured places lie answer at all, found out before anything looks at them.

A network mount whose server is gone, or a FUSE whose program is stuck, lets whoever looks at it wait, perhaps for ever and
deaf to SIGKILL. So where there is such a mount at all, a child (touch.py) looks first: at each place, at what a folder holds,
and at the first byte of each file. It tells what it looks at before it does. This process waits for it, and for no disk: a
signal ends it at once, it says after five seconds what does not answer, and refuses after thirty. The child dies with this
process, by the kernel's word (SIGIO) that its standard input has no writer any more.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from acu.config import AcuConfig
from acu.config.loading import texts_in
from acu.errors import StartRefused
from acu.process import touch
from acu.process.mounts import mounts_in

TOLD_S, REFUSED_S = 5.0, 30.0  # a disk that sleeps, or an automounter, may take ten
MOUNTS = Path("/proc/self/mountinfo")
REMOTE = frozenset(
    {
        "9p",
        "afs",
        "autofs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
    }
    | {"ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"}
)
FUSE = re.compile(r"fuse([.].*)?")
_OWN = ("/proc", "/sys", "/dev")  # of the kernel itself, whatever is mounted there
_DIES_S = 0.5


class Remote(Struct, frozen=True):
    """A mount that may not answer: where, of which kind, and what is mounted there."""

    place: str
    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.source} on {self.place}"


def named_places(config: AcuConfig) -> list[tuple[str, str]]:
    """(field, path) of everything in the configuration that is a path."""
    return [(field, text) for field, text in texts_in(msgspec.to_builtins(config)) if text.startswith("/")]


def wait_for_answers(
    places: Sequence[tuple[str, str]],
    tell: Callable[[str], None],
    mounts: Sequence[Remote] | None = None,
    *,
    told_s: float = TOLD_S,
    refused_s: float = REFUSED_S,
) -> None:
    """Return once all of `places`, (field, path), have answered. `tell` is told which one has not for a while.

    Raises StartRefused for one that does not. `mounts`: those that are there, which are looked up.
    """
    mounts = remote_mounts() if mounts is None else mounts
    if not mounts or not places:
        return
    (reader, writer), (asked, held) = os.pipe(), os.pipe()
    try:
        argv = [
            sys.executable,
            "-I",
            "-S",
            touch.__file__,
            str(math.ceil(refused_s) + 5),
            *(path for _, path in places),
        ]
        child = os.posix_spawn(
            sys.executable,
            argv,
            {},
            file_actions=[  # nothing of the caller's: one that cannot end must not keep a pipe open
                (os.POSIX_SPAWN_DUP2, asked, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsigmask=(),
            setsigdef=(signal.SIGALRM, signal.SIGINT, signal.SIGIO, signal.SIGTERM),
        )
    except OSError:  # no more processes, or no rights: it was a help, and the start says what is wrong
        os.close(reader)
        os.close(held)
        return
    finally:
        os.close(writer)
        os.close(asked)
    try:
        _listen(reader, places, mounts, tell, told_s, refused_s)
    finally:
        os.close(reader)
        os.close(held)
        _end(child)


def _listen(
    reader: int,
    places: Sequence[tuple[str, str]],
    mounts: Iterable[Remote],
    tell: Callable[[str], None],
    told_s: float,
    refused_s: float,
) -> None:
    """Hear the child out. Raises StartRefused when it hears nothing more."""
    field, path, rest = "acu", sys.executable, b""
    since, told = time.monotonic(), False
    while True:
        silent_s = time.monotonic() - since
        if silent_s >= refused_s:
            raise StartRefused(
                f"{field}: {path} does not answer: nothing came from its file system{_named(path, mounts)} for {refused_s:g} s; "
                "look at that mount, or name another place"
            )
        if silent_s >= told_s and not told:
            tell(f"{field}: {path} does not answer; waiting for its file system{_named(path, mounts)}")
            told = True
        if not select.select([reader], [], [], (refused_s if told else told_s) - silent_s)[0]:
            continue
        heard = os.read(reader, 1 << 16)
        if not heard:
            return
        *looks, rest = (rest + heard).split(b"\0")
        if looks:
            number, _, place = looks[-1].partition(b" ")
            field, path = places[int(number)][0], os.fsdecode(place)
            since, told = time.monotonic(), False


def _end(child: int) -> None:
    """Have the child end, and wait no longer than it takes one that can."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    give_up_at = time.monotonic() + _DIES_S
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < give_up_at:
            time.sleep(0.005)


def remote_mounts(mounts: Path = MOUNTS) -> tuple[Remote, ...]:
    """The mounts of this process that may not answer. None where the kernel does not tell."""
    try:
        text = mounts.read_text(errors="replace")
    except OSError:
        return ()
    return tuple(
        Remote(mount.point, mount.filesystem, mount.source)
        for mount in mounts_in(text)
        if not mount.point.startswith(_OWN) and (mount.filesystem in REMOTE or FUSE.fullmatch(mount.filesystem))
    )


def _named(path: str, mounts: Iterable[Remote]) -> str:
    """The mount on which a path lies, as far as its name tells."""
    over = [mount for mount in mounts if f"{path}/".startswith(f"{mount.place.rstrip('/')}/")]
    return f" ({max(over, key=lambda mount: len(mount.place))})" if over else ""

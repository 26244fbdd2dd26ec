"""The data plane's folder: whether it may be one, and whose it is while there is nothing in it yet.

A folder that ACU makes is open to its owner alone. One that is there already keeps its mode, for it is the operator's: a
service's StateDirectory, a volume, the top of a file system. What ACU puts into it is closed to others either way. A folder with
other things in it is refused, since it was named by mistake: `/`, a home, a project.

Who has RocksDB open is told by its lock (dataplane/truth/inuse.py). A daemon that has stored nothing has no database, and no
folder that it could lock; so it marks every folder on the way there that exists, `/` among them, by a lock on one byte of it
whose number is made from the rest of the way. The lock is a shared one of an open file description: the only kind for a folder
where a range counts. It makes nothing, and dies with the process (every child is a new program, which closes it). Who begins
marks first and looks then, so of two that begin at once none, or one, goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from acu.config import RESULTS, AcuConfig
from acu.config.loading import texts_in
from acu.errors import StartRefused
from acu.process.mounts import mounts_in
from acu.process.sockets import process_name
from acu.refusals import few
from dataplane.truth.inuse import user_of

OWN = frozenset({"rocks", "history", "reserve", "derived", "library", RESULTS})
NOTHING = frozenset({"lost+found", ".snapshot", ".snapshots"})  # of the file system itself
# What looks like files there is the kernel's; nothing can be kept in it.
KERNELS = frozenset(
    {"binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl", "mqueue"}
    | {"nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"}
)
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, process


def check_data_folder(config: AcuConfig, file: Path | None = None) -> None:
    """Whether the data plane can be made or opened there, as far as looking tells. Raises StartRefused.

    What the configuration itself puts into it, its `file` too, may lie there before there are data.
    """
    path = config.data_plane.path
    try:
        place = Path(path)
        while not place.exists() and place != place.parent:
            if place.is_symlink():
                raise _refused(f"{place} is a link that leads nowhere; choose another path")
            place = place.parent
        if not place.is_dir():
            raise _refused(f"{path} cannot be a folder, since {place} is none; choose another path")
        if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            raise _refused(f"{place} cannot be written; choose another path, or change its rights")
        folder = _resolved(path)
        if folder == folder.parent:
            raise _refused(f"{path} is the root of all files; name a folder of its own, such as /var/lib/acu/data")
        if kernel := _kernels(place):
            raise _refused(f"{path} lies in {kernel}, where nothing can be kept; choose another path")
        if place == Path(path) and (foreign := _foreign(folder, config, file)):
            raise _refused(f"{path} is no data plane, and has {few(foreign)} in it; name a new or empty folder")
    except OSError as error:
        raise _refused(f"{path} cannot be looked at: {error.strerror}; choose another path") from error


def folder_warning(path: str) -> str | None:
    """What is to be said of a folder that is there and works."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return None
    if not mode & stat.S_IWOTH:
        return None
    return (
        f"data_plane.path: everybody may write in {path} (mode {stat.S_IMODE(mode):04o}), and could put other files in the place "
        f"of the data; run chmod o-w {path}"
    )


def check_data_unused(path: str) -> None:
    """Whether no living process has the data plane there open. Raises StartRefused."""
    if (pid := user_of(Path(path))) is not None:
        who = process_name(pid) if pid else "another process"
        raise _refused(f"{path} is in use by {who}; stop it, or choose another path")


@contextlib.contextmanager
def data_claimed(path: str) -> Iterator[None]:
    """Keep the folder for this process, also while it is not there. Raises StartRefused when another one does so."""
    folder = _resolved(path)
    with contextlib.ExitStack() as held:
        for place in (folder, *folder.parents):
            try:
                descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:  # not there, or not to be listed
                continue
            held.callback(os.close, descriptor)
            spot = _spot(folder.relative_to(place))
            with contextlib.suppress(OSError):  # a file system without locks: RocksDB tells, once there are data
                if _marked(descriptor, spot):
                    who = _who(spot)
                    raise _refused(
                        f"{path} is kept by {who}, which has not stored anything yet; stop it, or choose another path"
                    )
        yield


def _marked(descriptor: int, spot: int) -> bool:
    """Mark byte `spot` of an open folder, and tell whether another process has."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, spot, 1, 0))
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, spot, 1, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))[0]
    return kind != fcntl.F_UNLCK


def _spot(way: Path) -> int:
    """A number of 62 bits for the rest of a way."""
    return int.from_bytes(hashlib.sha256(os.fsencode(way)).digest()[:8]) >> 2


def _who(spot: int) -> str:
    """The other process that has marked `spot`, as a message names it. The kernel tells it with the descriptor alone."""
    for folder in Path("/proc").glob("[1-9]*/fdinfo"):
        if (pid := int(folder.parent.name)) != os.getpid():
            with contextlib.suppress(OSError):
                if any(f" {spot} {spot}\n" in one.read_text() for one in folder.iterdir()):
                    return process_name(pid)
    return "another process"


def _kernels(place: Path) -> str | None:
    """The mount on which `place` lies, if what lies there are no files. None, too, where the kernel does not tell."""
    device = place.stat().st_dev
    with contextlib.suppress(OSError):
        for mount in mounts_in(Path("/proc/self/mountinfo").read_text(errors="replace")):
            if mount.filesystem in KERNELS and mount.device == (os.major(device), os.minor(device)):
                return f"{mount.point} ({mount.filesystem})"
    return None


def _foreign(folder: Path, config: AcuConfig, file: Path | None) -> list[str]:
    """What lies in a folder without a database and is not ours, in order of name.

    Ours are also the data of the ACUs that scripts/acu-up numbers, where they share a default.
    """
    names = sorted(path.name for path in folder.iterdir())
    if "rocks" in names:
        return []
    cache = Path(config.gpu.model_cache_dir)
    named = [text for _, text in texts_in(msgspec.to_builtins(config)) if text.startswith("/")]
    places = [*map(Path, named), cache.parent / "compiled", *([file] if file else [])]
    ours = {place.relative_to(folder).parts[0] for place in places if folder in place.parents}
    return [name for name in names if name not in OWN | NOTHING | ours and not name.isdecimal()]


def _resolved(path: str) -> Path:
    """Without links. Path.resolve would raise for a circle of them."""
    return Path(os.path.realpath(path))


def _refused(why: str) -> StartRefused:
    return StartRefused(f"data_plane.path: {why}")

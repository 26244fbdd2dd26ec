"""What an engine leaves on the machine when it is killed, and the removing of it.

In /dev/shm: the ring buffers between EngineCore and its workers, where it has any (`psm_*`, hundreds of MiB), semaphores
(`sem.*`, named after the engine's folder) and the OpenMP runtime's note (`__KMP_REGISTERED_LIB_<pid>_<uid>`). Python's
resource tracker removes the first two, but only when the whole daemon has ended; an engine that is replaced removes its own
as soon as its processes are gone. In the temporary folder: one folder for all sockets and files of the engine; its name
tells the daemon's pid.

Whoever is killed together with its engine cleans nothing up. The next start of an engine does, for what belongs to
this user and names a process that no longer exists.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

_SHM = Path("/dev/shm")  # noqa: S108 - looked into, not written to
_FOLDER = re.compile(r"acu-engine-(?P<pid>\d+)-\w+")
_SEMAPHORE = re.compile(r"sem\.acu-engine-(?P<pid>\d+)-.*")
_OPENMP = re.compile(r"__KMP_REGISTERED_LIB_(?P<pid>\d+)_(?P<uid>\d+)")


def new_folder() -> Path:
    """A new private folder for an engine's sockets and temporary files."""
    return Path(tempfile.mkdtemp(prefix=f"acu-engine-{os.getpid()}-"))


def remove_folder(folder: Path) -> None:
    """Remove it with all it holds. Idempotent."""
    shutil.rmtree(folder, ignore_errors=True)


def shared_memory_of(pid: int) -> frozenset[str]:
    """Names in /dev/shm that process `pid` has mapped, and that it or its peers would leave behind."""
    names = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = line.rpartition(" ")[2]
            if Path(path).parent == _SHM:
                names.add(path.rpartition("/")[2])
    return frozenset(names)


def remove_shared_memory(names: frozenset[str], pids: tuple[int, ...]) -> None:
    """Remove what the ended processes `pids` have left of `names`, and their OpenMP notes."""
    for name in names:
        with suppress(FileNotFoundError):
            (_SHM / name).unlink()
            if name.startswith("psm_"):
                resource_tracker.unregister(f"/{name}", "shared_memory")
    for pid in pids:
        with suppress(FileNotFoundError):
            (_SHM / f"__KMP_REGISTERED_LIB_{pid}_{os.getuid()}").unlink()


def remove_semaphores(folder: Path) -> None:
    """Remove the semaphores of the engine whose folder it is. Its processes have ended."""
    for path in _SHM.glob(f"sem.{folder.name}-*"):
        with suppress(FileNotFoundError):
            path.unlink()
            resource_tracker.unregister(f"/{path.name.removeprefix('sem.')}", "semaphore")


def remove_what_the_dead_left() -> None:
    """Remove folders, semaphores and OpenMP notes of this user whose process no longer exists."""
    for path in Path(tempfile.gettempdir()).glob("acu-engine-*"):
        found = _FOLDER.fullmatch(path.name)
        if found and _mine(path) and not _exists(int(found["pid"])):
            remove_folder(path)
    for path in _SHM.glob("sem.acu-engine-*"):
        found = _SEMAPHORE.fullmatch(path.name)
        if found and not _exists(int(found["pid"])):
            with suppress(FileNotFoundError):  # another daemon that starts may clear up too
                if path.lstat().st_uid == os.getuid():
                    path.unlink()
    for path in _SHM.glob("__KMP_REGISTERED_LIB_*"):
        found = _OPENMP.fullmatch(path.name)
        if found and int(found["uid"]) == os.getuid() and not _exists(int(found["pid"])):
            with suppress(OSError):
                path.unlink()


def _mine(path: Path) -> bool:
    with suppress(OSError):
        return path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink()
    return False


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()

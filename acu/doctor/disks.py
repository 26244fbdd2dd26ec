"""The folders that the configuration names, and the file systems and disks under them.

A folder that is not there yet is judged by its nearest parent that is, where the daemon would make it; one inside a folder that
is closed to this user counts as not there, and not writable. The disk is the one under partitions and mappings (LVM, dm-crypt,
RAID: the first of its members), and under an overlay that of the folder that it writes to, where that can be seen from here: in a
container it cannot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from acu.config import AcuConfig
from acu.doctor.examination import Disk, Place
from acu.doctor.sight import Sight
from acu.process.mounts import Mount, layers, mount_of

SECTOR = 512  # the unit of sysfs, whatever the disk's own
DEPTH = 8  # mappings upon mappings


def places_named(config: AcuConfig) -> tuple[tuple[str, Path], ...]:
    """(purpose, folder) of what the configuration names."""
    data = Path(config.data_plane.path)
    places = [("models", Path(config.gpu.model_cache_dir)), ("data", data)]
    cold = config.data_plane.cold
    if cold.bucket is None:
        places.append(("cold", data.parent / f"{data.name}-cold" if cold.folder == "auto" else Path(cold.folder)))
    return tuple(places)


def read_place(purpose: str, path: Path, mounts: tuple[Mount, ...], sight: Sight) -> tuple[Place, Disk | None]:
    """A folder, and the disk that it is on. Raises OSError where its file system answers with an error."""
    found, seen = nearest(path, sight)
    mount = mount_of(f"/{found.relative_to(sight.root)}", mounts)
    folder = folder_of_disk(found, mounts, sight)
    space = os.statvfs(found)
    place = Place(
        purpose=purpose,
        path=str(path),
        exists=seen and (sight.root / str(path).lstrip("/")).is_dir(),
        writable=seen and os.access(found, os.W_OK | os.X_OK) and (mount is None or mount.writable),
        filesystem=mount.filesystem if mount is not None else "",
        free_mb=space.f_bavail * space.f_frsize >> 20,
        size_mb=space.f_blocks * space.f_frsize >> 20,
        free_files=space.f_favail if space.f_files else None,
        disk=folder.name if folder is not None else None,
        source=mount.source if mount is not None else "",
        read_only=mount is not None and not mount.writable,
    )
    return place, read_disk(folder, sight) if folder is not None else None


def silent_place(purpose: str, path: Path, mounts: tuple[Mount, ...]) -> Place:
    """A folder whose file system does not answer: what mounts tell of it by its name alone, without asking it."""
    mount = mount_of(str(path), mounts)
    return Place(
        purpose=purpose,
        path=str(path),
        exists=False,
        writable=False,
        filesystem=mount.filesystem if mount is not None else "",
        free_mb=0,
        size_mb=0,
        source=mount.source if mount is not None else "",
        answers=False,
    )


def nearest(path: Path, sight: Sight) -> tuple[Path, bool]:
    """The folder, or its nearest parent that exists, with every link followed; and whether all the way could be seen."""
    at = sight.root / str(path).lstrip("/")
    seen = True
    while at != sight.root:
        try:
            if at.is_dir():
                break
        except PermissionError:
            seen = False
        at = at.parent
    at = at.resolve()
    return (at if at.is_relative_to(sight.root) else sight.root), seen


def folder_of_disk(path: Path, mounts: tuple[Mount, ...], sight: Sight) -> Path | None:
    """The folder in sysfs of the disk on which a path without links lies; None where it is on none that can be seen."""
    mount = mount_of(f"/{path.relative_to(sight.root)}", mounts)
    return None if mount is None else block_folder(under_overlay(mount, mounts, sight), sight)


def under_overlay(mount: Mount, mounts: tuple[Mount, ...], sight: Sight) -> Mount:
    """The mount of the folder that an overlay writes to, else of one that it reads; itself where it is none, or nobody tells."""
    for _ in range(DEPTH):
        if mount.filesystem != "overlay":
            break
        found = (mount_of(at, mounts) for at in layers(mount) if (sight.root / at.lstrip("/")).is_dir())
        below = next((one for one in found if one is not None and one.point != mount.point), None)
        if below is None:
            break
        mount = below
    return mount


def block_folder(mount: Mount, sight: Sight) -> Path | None:
    """The folder in sysfs of the disk that a mount lies on; None where it is on none (memory, the network, an overlay)."""
    major, minor = mount.device
    if major == 0 and sight.here and mount.source.startswith("/dev/"):  # btrfs has a number of its own
        try:
            device = Path(mount.source).stat().st_rdev
        except OSError:
            return None
        major, minor = os.major(device), os.minor(device)
    folder = sight.root / f"sys/dev/block/{major}:{minor}"
    if not folder.exists():
        return None
    folder = folder.resolve()
    for _ in range(DEPTH):
        if (folder / "partition").exists():
            folder = folder.parent
        members = sorted((folder / "slaves").iterdir()) if (folder / "slaves").is_dir() else []
        if not members:
            break
        folder = members[0].resolve()
    return folder


def read_disk(folder: Path, sight: Sight) -> Disk:
    """A disk by its folder in sysfs."""
    path = str(folder.relative_to(sight.root))
    return Disk(
        name=folder.name,
        model=sight.text(f"{path}/device/model") or "",
        kind=_kind(folder, sight.text(f"{path}/queue/rotational")),
        size_mb=(sight.number(f"{path}/size") or 0) * SECTOR >> 20,
        scheduler=sight.chosen(f"{path}/queue/scheduler"),
        read_ahead_kb=sight.number(f"{path}/queue/read_ahead_kb"),
        numa_node=_node(folder, sight),
    )


def _kind(folder: Path, rotational: str | None) -> Literal["nvme", "ssd", "hdd", "virtual"]:
    if folder.name.startswith("nvme"):
        return "nvme"
    if "/devices/virtual/" in str(folder) or folder.name.startswith(("vd", "xvd", "nbd", "rbd")):
        return "virtual"
    return "hdd" if rotational == "1" else "ssd"


def _node(folder: Path, sight: Sight) -> int | None:
    """The NUMA node of the controller above a disk."""
    for above in (folder, *_controllers(folder)):
        for at in (above, *above.parents):
            if at == sight.root:
                break
            node = sight.number(str((at / "numa_node").relative_to(sight.root)))
            if node is not None and node >= 0:
                return node
    return None


def _controllers(folder: Path) -> Iterable[Path]:
    """Where NVMe has one disk for several paths, the disk is under no controller: its subsystem links to them."""
    if folder.parent.name.startswith("nvme-subsys"):
        return tuple(link.resolve() for link in sorted(folder.parent.glob("nvme*")) if link.is_symlink())
    return ()

"""Verdicts on the disks and folders that the configuration names: what they are, how fast, how full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from shlex import quote

from acu.doctor.examination import Disk, Examination, Place, ReadTest
from acu.doctor.findings import Check, Sign, size

NETWORK = frozenset(  # as scripts/disk.sh has them
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "9p", "virtiofs"}
    | {f"fuse.{name}" for name in ("sshfs", "s3fs", "rclone", "glusterfs", "ceph")}
)
VOLATILE = frozenset({"tmpfs", "ramfs"})
CONTAINER = frozenset({"overlay", "aufs"})
NO_INODES = frozenset({"btrfs", "bcachefs", "zfs"})  # which make them as they go
READ_AHEAD_KB = 1024
LOAD_S = 20.0  # from here on a start is slow enough to say so
NVME_MB_S = 800.0  # less than that from an NVMe disk: somebody else has it
SCARCE_MB, LOW_MB, LOW_SHARE = 1024, 20_480, 0.10
FEW_FILES, HARDLY_ANY_FILES = 10_000, 500
PURPOSES = {"models": "the model cache", "data": "the data plane", "cold": "the cold tier"}
FIELDS = {"models": "gpu.model_cache_dir", "data": "data_plane.path", "cold": "data_plane.cold"}


def _of(place: Place) -> str:
    return f"{PURPOSES.get(place.purpose, place.purpose)} ({place.path})"


def _heard(examination: Examination) -> tuple[Place, ...]:
    """Those whose file system answers; of the others no more is known than that."""
    return tuple(place for place in examination.places if place.answers)


def _with_places(examination: Examination) -> Iterator[tuple[Disk, tuple[Place, ...]]]:
    for disk in examination.disks:
        places = tuple(place for place in examination.places if place.disk == disk.name)
        if places:
            yield disk, places


def _kinds(examination: Examination, kind: str) -> bool:
    return any(disk.kind == kind for disk, _ in _with_places(examination))


def kind(examination: Examination) -> Iterator[Sign]:
    """Rotating disks."""
    for disk, places in _with_places(examination):
        if disk.kind == "hdd":
            fields = " and ".join(dict.fromkeys(FIELDS.get(place.purpose, place.purpose) for place in places))
            yield Sign(
                "warning",
                f"the disk {disk.name} ({disk.model or 'no model told'}) rotates, and holds {', '.join(map(_of, places))}",
                f"Set {fields} to a folder on an NVMe disk.",
                ("lsblk -d -o NAME,ROTA,SIZE,MODEL",),
            )


def _kinds_well(examination: Examination) -> str:
    return ", ".join(f"{disk.name} is {disk.kind}" for disk, _ in _with_places(examination))


def known(examination: Examination) -> Iterator[Sign]:
    """Folders of which the kernel does not tell the disk; those in memory and over the network are told of elsewhere."""
    unknown: dict[str, list[Place]] = {}
    for place in _heard(examination):
        if place.disk is None and place.filesystem not in NETWORK | VOLATILE:
            unknown.setdefault(place.filesystem, []).append(place)
    for filesystem, places in unknown.items():
        what = f"an overlay of folders ({filesystem}), as containers have" if filesystem in CONTAINER else filesystem
        yield Sign(
            "note",
            f"{', '.join(map(_of, places))}: on {what or 'a file system that is not told'}; on which disk that lies cannot be "
            "known here",
            "Look at the disk on the host; a volume that is mounted into the container, or a folder on a file system of one disk "
            "(XFS, ext4), is seen here too."
            if filesystem in CONTAINER
            else "See the file system's own tools for its disks.",
            (f"findmnt -T {quote(places[0].path)}",),
        )


def scheduler(examination: Examination) -> Iterator[Sign]:
    """A scheduler in front of a disk that has queues of its own."""
    for disk, _ in _with_places(examination):
        if disk.kind == "nvme" and disk.scheduler not in {None, "none"}:
            yield Sign(
                "note",
                f"the disk {disk.name} is NVMe, and its I/O scheduler is {disk.scheduler}",
                "Take it away; `scripts/disk.sh up N` does, and puts it back.",
                (f"echo none > /sys/block/{quote(disk.name)}/queue/scheduler",),
            )


def read_ahead(examination: Examination) -> Iterator[Sign]:
    """Little read-ahead on the disk of the models."""
    for disk, places in _with_places(examination):
        models = any(place.purpose == "models" for place in places)
        if (
            models
            and disk.kind in {"nvme", "ssd"}
            and disk.read_ahead_kb is not None
            and disk.read_ahead_kb < READ_AHEAD_KB
        ):
            yield Sign(
                "note",
                f"the disk {disk.name}, with the model cache, reads {disk.read_ahead_kb} KiB ahead",
                "Raise it; `scripts/disk.sh up N` does, and puts it back.",
                (f"echo 2048 > /sys/block/{quote(disk.name)}/queue/read_ahead_kb",),
            )


def load_time(examination: Examination) -> Iterator[Sign]:
    """How long a start would read, and whether the disk is slower than it should be."""
    for test in examination.reads:
        speed = _speed(test.read_mb, test.seconds)
        if not speed:
            continue
        expected = test.weights_mb / speed
        slow = _kind_read(test, examination) == "nvme" and speed < NVME_MB_S
        if expected >= LOAD_S or (slow and test.weights_mb):
            whose = "; an NVMe disk reads 2000 MB/s and more, so that another process may have it" if slow else ""
            yield Sign(
                "warning",
                f"{size(test.weights_mb)} of weights would take {expected:.0f} s from the disk, at {speed:.0f} MiB/s{whose}",
                "See who else reads and bound them (IOReadBandwidthMax=), or set gpu.model_cache_dir to a folder on "
                "a faster disk. A second start reads from memory.",
                ("iostat -x 1 3", "iotop -o"),
            )


def _kind_read(test: ReadTest, examination: Examination) -> str | None:
    """What kind of disk it read; a report of an older doctor does not name that, and there its path decides."""
    if test.disk is not None:
        return next((disk.kind for disk in examination.disks if disk.name == test.disk), None)
    under = ((place, disk) for disk, places in _with_places(examination) for place in places)
    return next((disk.kind for place, disk in under if PurePath(test.path).is_relative_to(place.path)), None)


def _speed(read_mb: float, seconds: float) -> float:
    return read_mb / seconds if seconds > 0 else 0.0


def _load_well(examination: Examination) -> str:
    said = []
    for test in examination.reads:
        speed = _speed(test.read_mb, test.seconds)
        if speed:
            said.append(f"{size(test.weights_mb)} of weights in {test.weights_mb / speed:.1f} s, at {speed:.0f} MiB/s")
    return "the models are read fast: " + "; ".join(said)


def space(examination: Examination) -> Iterator[Sign]:
    """Room on the file systems; each is told once, with all that lies on it. A cache that is full can still be read."""
    for places in _by_filesystem(examination):
        first = places[0]
        if first.free_mb >= max(SCARCE_MB, min(LOW_MB, first.size_mb * LOW_SHARE)):
            continue
        written = any(place.purpose != "models" for place in places)
        yield Sign(
            "error" if written and first.free_mb < SCARCE_MB else "warning",
            f"{size(first.free_mb)} of {size(first.size_mb)} are free for {', '.join(map(_of, places))}",
            "See what is big; `acu models rm`, `acu data archive` and data_plane.cold make room.",
            (f"du -xh -d1 {quote(first.path)} | sort -h",),
        )


def _by_filesystem(examination: Examination) -> Iterator[tuple[Place, ...]]:
    groups: dict[tuple[str | None, str, str, int, int], list[Place]] = {}
    for place in examination.places:
        if place.size_mb:
            groups.setdefault((place.disk, place.source, place.filesystem, place.size_mb, place.free_mb), []).append(
                place
            )
    yield from map(tuple, groups.values())


def inodes(examination: Examination) -> Iterator[Sign]:
    """File systems that can make few more files."""
    for place in examination.places:
        free = place.free_files
        if free is not None and place.filesystem not in NO_INODES and free < FEW_FILES:
            yield Sign(
                "error" if free < HARDLY_ANY_FILES else "warning",
                f"{free} more files fit where {_of(place)} is",
                "Remove many small files there, or choose another file system.",
                (f"df -i {quote(place.path)}",),
            )


def network(examination: Examination) -> Iterator[Sign]:
    """File systems that lie elsewhere."""
    for place in examination.places:
        if place.filesystem in NETWORK:
            yield Sign(
                "error" if place.purpose == "data" else "warning",
                f"{_of(place)} lies on {place.filesystem}, over the network",
                f"Set {FIELDS.get(place.purpose, place.purpose)} to a folder on a disk of this box.",
                ("lsblk -o NAME,ROTA,SIZE,FSTYPE,MOUNTPOINTS",),
            )


def volatile(examination: Examination) -> Iterator[Sign]:
    """Data that the next start would not find."""
    for place in examination.places:
        if place.purpose == "models":
            continue
        if place.filesystem in VOLATILE:
            yield Sign(
                "warning",
                f"{_of(place)} lies in memory ({place.filesystem})",
                f"Set {FIELDS.get(place.purpose, place.purpose)} to a folder on a disk.",
                (f"findmnt -T {quote(place.path)}",),
            )
        elif place.filesystem in CONTAINER and place.disk is None and place.purpose == "data":
            yield Sign(
                "note",
                f"{_of(place)} lies in a container's own layer ({place.filesystem})",
                f"Mount a volume, and set {FIELDS[place.purpose]} to it.",
                (f"findmnt -T {quote(place.path)}",),
            )


def writable(examination: Examination) -> Iterator[Sign]:
    """Folders that this user may not write to."""
    for place in _heard(examination):
        if place.read_only:
            yield Sign(
                "warning" if place.purpose == "models" else "error",
                f"{_of(place)} is on a file system that is mounted read-only ({place.filesystem})",
                "See why: after an error of the disk the kernel mounts it so by itself; then check the disk first, else mount it "
                "for writing.",
                ("dmesg | grep -i -e 'i/o error' -e remount", f"findmnt -T {quote(place.path)}"),
            )
        elif not place.writable:
            yield Sign(
                "warning" if place.purpose == "models" else "error",
                f"{_of(place)} may not be written to by this user",
                f"Run the doctor as the daemon's user; give the folder to that user (as root, where it is acu: as below), or set "
                f"{FIELDS.get(place.purpose, place.purpose)} to another one.",
                (f"install -d -o acu -g acu {quote(place.path)}",),
            )


def answers(examination: Examination) -> Iterator[Sign]:
    """File systems that do not answer at all: a server that is gone, a disk that hangs."""
    for place in examination.places:
        if not place.answers:
            where = f"{place.filesystem}, from {place.source}" if place.source else "its file system is not told"
            yield Sign(
                "error",
                f"{_of(place)} does not answer ({where})",
                "Look again, where it may have slept; else bring back its server or disk, or unmount it; or set "
                f"{FIELDS.get(place.purpose, place.purpose)} to a folder on another disk.",
                ("dmesg | tail -n 40", f"timeout 5 stat -f {quote(place.path)}"),
            )


def data(examination: Examination) -> Iterator[Sign]:
    """A folder in which a start makes no data, for more than that this user may not write there."""
    place = next((place for place in _heard(examination) if place.purpose == "data"), None)
    if examination.refused and place is not None and place.writable:
        yield Sign(
            "error",
            examination.refused.rstrip("."),
            "Set data_plane.path to a folder of its own, that is new or has ACU's data in it.",
            (f"ls -la {quote(place.path)}",),
        )


def _has_places(examination: Examination) -> bool:
    return bool(examination.places)


CHECKS = (
    Check(
        id="disk.answers",
        worst="error",
        looks_at="whether the file systems answer",
        verdict=answers,
        well="the file systems of models and data answer",
        applies=_has_places,
        why="Whoever touches it waits without an end, and cannot be ended: a start, a backup, `ls`.",
    ),
    Check(
        id="disk.data",
        worst="error",
        looks_at="whether a start would take the data plane's folder",
        verdict=data,
        well="a start takes the data plane's folder",
        applies=lambda e: any(place.purpose == "data" for place in _heard(e)),
        why="The daemon refuses to start rather than to put its data among other things, or where nothing can be kept.",
    ),
    Check(
        id="disk.kind",
        worst="warning",
        looks_at="what kind of disk models and data lie on",
        verdict=kind,
        well=_kinds_well,
        applies=lambda e: any(True for _ in _with_places(e)),
        why="A rotating disk reads weights ten times slower, and each small read of the database takes milliseconds.",
    ),
    Check(
        id="disk.known",
        worst="note",
        looks_at="whether the kernel tells on which disk models and data lie",
        verdict=known,
        well="the disks under models and data are known",
        applies=_has_places,
        why="Its kind, its scheduler, its read-ahead and its NUMA node are not looked at.",
    ),
    Check(
        id="disk.scheduler",
        worst="note",
        looks_at="the I/O scheduler of NVMe disks",
        verdict=scheduler,
        well="NVMe disks have no scheduler in front of them",
        applies=lambda e: _kinds(e, "nvme"),
        why="NVMe orders its own queues: a scheduler costs CPU time and latency for each read. (bfq is the one that weighs "
        "groups against each other: keep it where that is wanted.)",
    ),
    Check(
        id="disk.read-ahead",
        worst="note",
        looks_at="read-ahead of the models' disk",
        verdict=read_ahead,
        well="the models' disk reads far ahead",
        applies=lambda e: any(disk.kind != "virtual" and disk.read_ahead_kb is not None for disk, _ in _with_places(e)),
        why="Weights are mapped and read from front to end: little read-ahead leaves most of a fast disk idle.",
    ),
    Check(
        id="disk.load-time",
        worst="warning",
        looks_at="a short read of the models, against their size",
        verdict=load_time,
        well=_load_well,
        applies=lambda e: any(test.seconds > 0 and test.read_mb > 0 for test in e.reads),
        why="This is how long a first start, and a restart after a long time, waits for the disk.",
    ),
    Check(
        id="disk.space",
        worst="error",
        looks_at="free space",
        verdict=space,
        well="there is room on the disks",
        applies=_has_places,
        why="On a full disk the data plane takes no writes: runs are not stored, and agents stop.",
    ),
    Check(
        id="disk.inodes",
        worst="error",
        looks_at="how many more files fit",
        verdict=inodes,
        well="there is room for files",
        applies=lambda e: any(place.free_files is not None for place in e.places),
        why="Without inodes no file can be made, however much space is free.",
    ),
    Check(
        id="disk.network",
        worst="error",
        looks_at="whether a folder lies on a network file system",
        verdict=network,
        well="models and data are on this box",
        applies=_has_places,
        why="The database counts on local locks and on fsync, and loses data where a server answers too early; weights load at "
        "the network's pace.",
    ),
    Check(
        id="disk.volatile",
        worst="warning",
        looks_at="whether data would outlive a restart",
        verdict=volatile,
        well="data outlives a restart",
        applies=lambda e: any(place.purpose != "models" for place in e.places),
        why="Conversations, runs and vectors are gone after the next boot, or with the container.",
    ),
    Check(
        id="disk.writable",
        worst="error",
        looks_at="whether this user may write",
        verdict=writable,
        well="this user may write where it must",
        applies=_has_places,
        why="The daemon does not start without its data; a model cache that is closed serves what is there, and pulls nothing.",
    ),
)

"""Mounts, as /proc/self/mountinfo lists them, and on which of them a path lies. Pure: who asks has read it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from msgspec import Struct

ESCAPE = re.compile(r"\\([0-7]{3})")  # space, tab, newline and backslash, in octal


class Mount(Struct, frozen=True):
    """One mount. `device` is the file system's, (major, minor); `options` are its own, `writable` is the mount's."""

    point: str
    device: tuple[int, int]
    filesystem: str
    source: str
    options: tuple[str, ...]
    writable: bool


def mounts_in(mountinfo: str) -> tuple[Mount, ...]:
    """All mounts that a mountinfo lists, oldest first: of two on one point the later one counts."""
    return tuple(mount for line in mountinfo.splitlines() if (mount := parse_mount(line)) is not None)


def parse_mount(line: str) -> Mount | None:
    """One line; None where it is none: `36 35 259:2 / /mnt rw,noatime shared:1 - ext4 /dev/nvme0n1p2 rw`."""
    own, dash, system = line.partition(" - ")
    words, rest = own.split(), system.split()
    if not dash or len(words) < 6 or not rest:
        return None
    major, _, minor = words[2].partition(":")
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    filesystem, source, told, *_ = (*rest, "", "")  # a source may have no name
    options = tuple(map(_plain, filter(None, told.split(","))))
    return Mount(
        point=_plain(words[4]),
        device=(int(major), int(minor)),
        filesystem=filesystem,
        source=_plain(source),
        options=options,
        writable="rw" in words[5].split(",") and "ro" not in options,
    )


def layers(mount: Mount) -> tuple[str, ...]:
    """The folders that an overlay is made of, the one that is written to first, as they were called where it was mounted.

    Of a container that is a place of its host: here there may be nothing of that name, or something else.
    """
    named = dict(option.partition("=")[::2] for option in mount.options)
    upper, lower = named.get("upperdir", ""), named.get("lowerdir", "")
    return tuple(folder for folder in (upper, *lower.split(":")) if folder.startswith("/"))


def _plain(text: str) -> str:
    return ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount on which an absolute path without links lies; None where none is known."""
    wanted = PurePosixPath(path)
    best: Mount | None = None
    for mount in mounts:
        if wanted.is_relative_to(mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best

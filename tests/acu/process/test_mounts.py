"""acu.process.mounts: lines of mountinfo, and on which mount a path lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acu.doctor.sight import Sight
from acu.process.mounts import Mount, layers, mount_of, parse_mount


def test_a_line_is_read() -> None:
    line = "36 35 259:2 / /mnt/two\\040words rw,noatime shared:1 master:2 - ext4 /dev/nvme0n1p2 rw,errors=continue"
    assert parse_mount(line) == Mount(
        "/mnt/two words", (259, 2), "ext4", "/dev/nvme0n1p2", ("rw", "errors=continue"), writable=True
    )
    assert parse_mount("36 35 0:5 / /mnt rw - nfs4 box:/export ro") == Mount(
        "/mnt", (0, 5), "nfs4", "box:/export", ("ro",), writable=False
    )


def test_an_overlay_tells_its_folders_the_written_one_first() -> None:
    mount = parse_mount(
        "36 35 0:50 / / rw - overlay overlay rw,lowerdir=/l/A\\040B:/l/C,upperdir=/d/diff,workdir=/d/work"
    )
    assert mount is not None
    assert layers(mount) == ("/d/diff", "/l/A B", "/l/C")
    bare = parse_mount("36 35 0:50 / / ro - overlay overlay ro,lowerdir=relative:/l/C")
    assert bare is not None
    assert layers(bare) == ("/l/C",)


@pytest.mark.parametrize("options", ["ro,relatime", "relatime"])
def test_a_mount_that_is_read_only_is_not_writable(options: str) -> None:
    mount = parse_mount(f"36 35 8:1 / /mnt {options} - ext4 /dev/sda1 rw")
    assert mount is not None
    assert not mount.writable


@pytest.mark.parametrize("line", ["", "36 35 8:1 / /mnt rw", "36 35 8 / /mnt rw - ext4 /dev/sda1 rw", "a - b c d"])
def test_what_is_no_line_is_passed_over(line: str) -> None:
    assert parse_mount(line) is None


def test_the_nearest_mount_counts_and_of_two_the_later() -> None:
    def mount(point: str, source: str) -> Mount:
        return Mount(point, (0, 1), "ext4", source, (), writable=True)

    mounts = (mount("/", "root"), mount("/var", "var"), mount("/var", "over"), mount("/var/lib", "lib"))
    assert [
        found.source
        for path in ("/", "/etc", "/var", "/variety", "/var/log", "/var/lib/acu")
        if (found := mount_of(path, mounts))
    ] == ["root", "root", "over", "root", "over", "lib"]
    assert mount_of("/etc", ()) is None


def test_the_mount_of_this_file_has_its_device() -> None:
    mounts = Sight().mounts()
    here = Path(__file__).resolve()
    mount = mount_of(str(here), mounts)
    assert mount is not None
    if mount.device[0]:  # else the file system has numbers of its own
        device = here.stat().st_dev
        assert mount.device == (os.major(device), os.minor(device))

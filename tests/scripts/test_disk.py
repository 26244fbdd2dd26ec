"""scripts/disk.sh: against trees of sysfs for disks that are not here, and for real on a loop device."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scripts.parts import fields, needs_root, part, tree

Disk = Callable[..., subprocess.CompletedProcess[str]]
NVME = "devices/pci0000:15/0000:17:00.0/nvme/nvme0/nvme0n1"
SATA = "devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block"


def disk_files(folder: str, numbers: str, scheduler: str, read_ahead: int = 128, rotational: int = 0) -> dict[str, str]:
    """A disk as sysfs has it, with one partition (the next minor number)."""
    name = folder.rpartition("/")[2]
    up = "->../../"
    partition = f"{name}p1" if name[-1].isdigit() else f"{name}1"
    major, minor = numbers.split(":")
    return {
        f"{folder}/dev": numbers + "\n",
        f"{folder}/queue/scheduler": scheduler + "\n",
        f"{folder}/queue/read_ahead_kb": f"{read_ahead}\n",
        f"{folder}/queue/rotational": f"{rotational}\n",
        f"{folder}/{partition}/partition": "1\n",
        f"{folder}/{partition}/dev": f"{major}:{int(minor) + 1}\n",
        f"block/{name}": f"->../{folder}",
        f"class/block/{name}": f"{up}{folder}",
        f"class/block/{partition}": f"{up}{folder}/{partition}",
        f"dev/block/{numbers}": f"{up}{folder}",
        f"dev/block/{major}:{int(minor) + 1}": f"{up}{folder}/{partition}",
    }


class Box:
    """A box whose disks are a tree, and whose mounts are what a `findmnt` of the test prints."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir, self.sys = folder, folder / "run", folder / "sys"
        (folder / "bin").mkdir()
        for name in ("models", "data"):
            (folder / name).mkdir()
        self.config = folder / "acu.yaml"
        self.config.write_text(
            f"gpu: {{model_cache_dir: {folder}/models}}\ndata_plane: {{path: {folder}/data/new/one}}\n"
        )

    def mount(self, models: str, data: str | None = None) -> None:
        """What findmnt prints of each: numbers, type, source, target, options."""
        program = self.folder / "bin/findmnt"
        program.write_text(f'#!/bin/sh\ncase "$*" in */data*) echo "{data or models}";; *) echo "{models}";; esac\n')
        program.chmod(0o755)

    def disk(self, verb: str, number: int = 210, *options: str) -> subprocess.CompletedProcess[str]:
        """Call disk.sh as acu-up does."""
        environment = {"ACU_SYS_ROOT": str(self.sys), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        environment["ACU_FIELDS"] = fields(self.config.read_text())
        return part(
            "disk.sh", verb, number, "--config", self.config, *options, run_dir=self.run_dir, environment=environment
        )

    def queue(self, disk: str, name: str) -> str:
        """A value of a disk's queue."""
        return (self.sys / "block" / disk / "queue" / name).read_text().strip()


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@needs_root
def test_an_up_that_changes_nothing_leaves_nothing(box: Box) -> None:
    box.mount("0:40 tmpfs tmpfs / rw")
    up = box.disk("up")
    assert up.returncode == 0, up.stderr
    assert not box.run_dir.exists()


@needs_root
def test_nvme_schedules_by_itself_and_reads_ahead_until_the_last_acu_goes(box: Box) -> None:
    tree(box.sys, disk_files(NVME, "259:0", "[mq-deadline] kyber none"))
    box.mount("259:1 xfs /dev/nvme0n1p1 /srv rw,relatime")
    up = box.disk("up", 210)
    assert up.returncode == 0, up.stderr
    assert f"models: {box.folder}/models: xfs at /srv on nvme0n1 (nvme)" in up.stderr
    assert "mount -o remount,noatime /srv" in up.stderr
    assert "allocsize=64m" in up.stderr
    # The tree keeps what is written; the kernel would show it among the others, in brackets.
    scheduler = box.sys / "block/nvme0n1/queue/scheduler"
    assert scheduler.read_text() == "none\n"
    scheduler.write_text("mq-deadline kyber [none]\n")
    assert box.queue("nvme0n1", "read_ahead_kb") == "2048"

    assert box.disk("up", 210, "--dry-run").stdout == ""
    assert box.disk("up", 211).returncode == 0
    status = box.disk("status", 211)
    assert status.returncode == 0
    assert "none for nvme0n1" in status.stdout

    assert box.disk("down", 210).returncode == 0
    assert "[none]" in box.queue("nvme0n1", "scheduler")
    assert box.disk("down", 211).returncode == 0
    assert box.queue("nvme0n1", "scheduler") == "mq-deadline"
    assert box.queue("nvme0n1", "read_ahead_kb") == "128"
    assert not box.run_dir.exists()


@needs_root
def test_a_scheduler_that_somebody_has_set_since_stays_and_is_told(box: Box) -> None:
    tree(box.sys, disk_files(NVME, "259:0", "[mq-deadline] kyber none"))
    box.mount("259:1 xfs /dev/nvme0n1p1 /srv rw")
    assert box.disk("up", 210).returncode == 0
    (box.sys / "class/block/nvme0n1/queue/scheduler").write_text("mq-deadline [kyber] none\n")
    down = box.disk("down", 210)
    assert (down.returncode, "the scheduler of nvme0n1 since (kyber): it stays" in down.stderr) == (0, True)
    assert box.queue("nvme0n1", "scheduler") == "mq-deadline [kyber] none"
    assert not box.run_dir.exists()


@needs_root
def test_what_is_as_it_should_be_is_not_touched(box: Box) -> None:
    tree(box.sys, disk_files(NVME, "259:0", "[none] mq-deadline", read_ahead=8192))
    box.mount("259:1 xfs /dev/nvme0n1p1 /srv rw,noatime,allocsize=65536k")
    up = box.disk("up")
    assert (up.returncode, up.stdout) == (0, "")
    assert "advice" not in up.stderr
    assert not (box.run_dir / "host").exists()


def test_disks_are_found_below_raid_encryption_and_btrfs(box: Box) -> None:
    files = disk_files(NVME, "259:0", "[mq-deadline] none")
    files |= disk_files(NVME.replace("nvme0", "nvme1"), "259:8", "[mq-deadline] none")
    virtual = "devices/virtual/block"
    files |= {
        f"{virtual}/md0/dev": "9:0\n",
        f"{virtual}/md0/queue/read_ahead_kb": "1024\n",
        f"{virtual}/md0/slaves/nvme0n1p1": f"->../../../../../{NVME}/nvme0n1p1",
        f"{virtual}/md0/slaves/nvme1n1p1": f"->../../../../../{NVME.replace('nvme0', 'nvme1')}/nvme1n1p1",
        f"{virtual}/dm-0/dev": "253:0\n",
        f"{virtual}/dm-0/queue/read_ahead_kb": "128\n",
        f"{virtual}/dm-0/slaves/md0": "->../../md0",
        "block/dm-0": f"->../{virtual}/dm-0",
        "class/block/dm-0": f"->../../{virtual}/dm-0",
        "dev/block/253:0": f"->../../{virtual}/dm-0",
    }
    tree(box.sys, files)
    box.mount("253:0 xfs /dev/mapper/crypt /srv rw,noatime", "0:42 btrfs /dev/nvme0n1p1[/volume] /data rw")
    up = box.disk("up", 210, "--dry-run")
    assert up.returncode == 0, up.stderr
    assert "on nvme0n1 (nvme) nvme1n1 (nvme)" in up.stderr
    lines = [line for line in up.stdout.splitlines() if f"> {box.sys}" in line]
    assert lines == [
        f"echo none > {box.sys}/block/nvme0n1/queue/scheduler",
        f"echo none > {box.sys}/block/nvme1n1/queue/scheduler",
        f"echo 2048 > {box.sys}/block/dm-0/queue/read_ahead_kb",  # what the file system reads from reads ahead
    ]


def test_spinning_disks_are_warned_of_and_read_ahead_as_asked(box: Box) -> None:
    tree(box.sys, disk_files(f"{SATA}/sda", "8:0", "[mq-deadline] none", rotational=1))
    box.mount("8:1 ext4 /dev/sda1 / rw,relatime")
    up = box.disk("up", 210, "--read-ahead", "4096", "--dry-run")
    assert "sda (hdd)" in up.stderr
    assert up.stderr.count("spinning disk") == 1  # of one file system, though it holds both
    assert [line for line in up.stdout.splitlines() if f"> {box.sys}" in line] == [
        f"echo 4096 > {box.sys}/block/sda/queue/read_ahead_kb"
    ]
    assert box.disk("up", 210, "--read-ahead", "0", "--dry-run").stdout == ""


def test_virtual_disks_and_file_systems_of_the_network_are_left_and_said(box: Box) -> None:
    folder = "devices/pci0000:00/0000:00:05.0/virtio1/block/vda"
    tree(box.sys, disk_files(folder, "254:0", "[mq-deadline] none"))
    box.mount("0:50 nfs4 server:/models /mnt/models rw", "254:1 ext4 /dev/vda1 / rw")
    up = box.disk("up", 210, "--dry-run")
    assert (up.returncode, up.stdout) == (0, "")
    assert "is on a file system of the network (nfs4)" in up.stderr
    assert "vda (virtual)" in up.stderr
    assert "/ is on a virtual disk" in up.stderr


def test_nonsense_is_refused(box: Box) -> None:
    assert box.disk("up", 210, "--read-ahead", "much").returncode == 2


# For real


@pytest.fixture
def loop_mount(tmp_path: Path) -> Iterator[Path]:
    """A file system on a loop device: a virtual disk, whose values could be changed."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4") or not shutil.which("losetup"):
        pytest.skip("needs root, mkfs.ext4 and losetup")
    image, target = tmp_path / "image", tmp_path / "mounted"
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, target], capture_output=True, check=False).returncode:
        pytest.skip("this box mounts no loop device")
    try:
        yield target
    finally:
        subprocess.run(["umount", target], check=True)


def test_a_real_loop_device_is_found_and_left_as_it_is(loop_mount: Path, tmp_path: Path) -> None:
    config = tmp_path / "acu.yaml"
    config.write_text(f"gpu: {{model_cache_dir: {loop_mount}/models}}\ndata_plane: {{path: {loop_mount}/data}}\n")
    up = part("disk.sh", "up", 210, "--config", config, run_dir=tmp_path / "run")
    assert (up.returncode, up.stdout) == (0, "")
    source = subprocess.run(["findmnt", "-no", "SOURCE", loop_mount], capture_output=True, text=True, check=True).stdout
    name = Path(source.strip()).name
    assert f"models: {loop_mount}/models: ext4 at {loop_mount} on {name} (virtual)" in up.stderr
    assert "nothing is changed" in up.stderr
    assert part("disk.sh", "down", 210, "--config", config, run_dir=tmp_path / "run").returncode == 0
    assert not (tmp_path / "run").exists()

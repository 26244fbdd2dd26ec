"""acu.doctor.disks: places on real and recorded disks, under partitions, mappings and NVMe's several paths."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from acu.config import AcuConfig, GpuConfig
from acu.doctor.disks import block_folder, nearest, places_named, read_disk, read_place, silent_place, under_overlay
from acu.doctor.examination import Disk
from acu.doctor.sight import Sight
from acu.process.mounts import Mount
from dataplane.cold_config import ColdConfig
from dataplane.config import DataPlaneConfig
from tests.acu.hardware.recorded import machine_root


def mount_on(device: tuple[int, int], source: str = "/dev/x") -> Mount:
    return Mount("/", device, "ext4", source, (), writable=True)


def disk_under(sight: Sight, device: tuple[int, int]) -> Disk | None:
    folder = block_folder(mount_on(device), sight)
    return read_disk(folder, sight) if folder is not None else None


def overlay_on(point: str, *options: str) -> Mount:
    return Mount(point, (0, 50), "overlay", "overlay", options, writable=True)


def test_an_overlay_lies_on_the_disk_of_the_folder_that_it_writes_to(tmp_path: Path) -> None:
    for folder in ("disk/diff", "lower", "merged"):
        (tmp_path / folder).mkdir(parents=True)
    disk, slash = Mount("/disk", (8, 1), "ext4", "/dev/x", (), writable=True), mount_on((8, 2))
    written = overlay_on("/merged", "rw", "lowerdir=/lower", "upperdir=/disk/diff")
    mounts, sight = (slash, disk, written), Sight(tmp_path)
    assert under_overlay(written, mounts, sight) == disk
    assert under_overlay(overlay_on("/merged", "lowerdir=/lower"), mounts, sight) == slash
    assert under_overlay(disk, mounts, sight) == disk
    above = overlay_on("/top", "upperdir=/merged")
    assert under_overlay(above, (*mounts, above), sight) == disk


def test_an_overlay_whose_folders_are_its_hosts_is_on_no_disk_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    sight = Sight(tmp_path)
    hosts = overlay_on("/", "upperdir=/var/lib/docker/overlay2/x/diff")
    assert under_overlay(hosts, (hosts,), sight) == hosts
    own = overlay_on("/", "upperdir=/here")  # the name is there, and it is the container's own
    assert under_overlay(own, (own,), sight) == own
    assert block_folder(own, sight) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_the_disk_under_a_real_overlay_is_found(tmp_path: Path) -> None:
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for folder in (lower, upper, work, merged):
        folder.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(mounted.stderr)
    try:
        place, disk = read_place("data", merged, Sight().mounts(), Sight())
    finally:
        subprocess.run(["umount", str(merged)], check=True)
    assert place.filesystem == "overlay"
    assert disk == read_place("data", upper, Sight().mounts(), Sight())[1]


def config_of(where: str, /, **cold: str) -> AcuConfig:
    return AcuConfig(
        gpu=GpuConfig(model_cache_dir=f"{where}/models"),
        data_plane=DataPlaneConfig(path=f"{where}/data", cold=ColdConfig(**cold)),  # type: ignore[arg-type]
    )


def test_places_are_those_of_the_configuration() -> None:
    names = [(purpose, str(path)) for purpose, path in places_named(config_of("/srv"))]
    assert names == [("models", "/srv/models"), ("data", "/srv/data"), ("cold", "/srv/data-cold")]
    assert places_named(config_of("/srv", folder="/mnt/cold"))[2] == ("cold", Path("/mnt/cold"))
    assert len(places_named(config_of("/srv", bucket="b"))) == 2  # a bucket is no folder
    root = AcuConfig(data_plane=DataPlaneConfig(path="/"))
    assert [str(path) for _, path in places_named(root)[1:]] == ["/", "/-cold"]


def test_a_folder_that_is_not_there_is_judged_by_its_parent(tmp_path: Path) -> None:
    sight = Sight()
    place, _ = read_place("data", tmp_path / "a" / "b", sight.mounts(), sight)
    assert (place.exists, place.writable, place.path) == (False, True, f"{tmp_path}/a/b")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert read_place("data", tmp_path / "a" / "b", sight.mounts(), sight)[0].exists


def test_a_place_on_this_machine_is_where_its_device_says(tmp_path: Path) -> None:
    sight = Sight()
    place, disk = read_place("data", tmp_path, sight.mounts(), sight)
    space = os.statvfs(tmp_path)
    assert place.size_mb == space.f_blocks * space.f_frsize >> 20
    assert place.filesystem != ""
    device = tmp_path.stat().st_dev
    if os.major(device) and Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists():
        assert disk is not None
        assert (Path("/sys/block") / disk.name).exists()
        assert disk.size_mb > 0
        assert place.disk == disk.name


def test_a_mount_in_memory_is_on_no_disk() -> None:
    sight = Sight()
    place, disk = read_place("data", Path("/dev/shm/acu-not-there"), sight.mounts(), sight)
    assert (place.filesystem, place.disk, disk) == ("tmpfs", None, None)


def test_a_link_leads_to_another_mount(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    sight = Sight()
    assert read_place("models", tmp_path / "link" / "models", sight.mounts(), sight)[0].filesystem == "tmpfs"


def test_nothing_leads_out_of_a_recorded_tree(tmp_path: Path) -> None:
    (tmp_path / "var").symlink_to("/tmp")
    assert nearest(Path("/var/lib"), Sight(tmp_path)) == (tmp_path, True)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """With the file system's eyes of a user without rights."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_folder_behind_a_closed_one_is_not_writable() -> None:
    sight = Sight()
    mounts = sight.mounts()
    with tempfile.TemporaryDirectory() as folder:
        closed = Path(folder) / "closed"
        (closed / "data").mkdir(parents=True)
        Path(folder).chmod(0o755)
        closed.chmod(0)
        with as_nobody():
            place, _ = read_place("data", closed / "data", mounts, sight)
        assert (place.exists, place.writable, place.path) == (False, False, f"{closed}/data")
        assert place.size_mb > 0
        closed.chmod(0o700)


def test_a_folder_on_a_closed_mount_is_not_writable(tmp_path: Path) -> None:
    closed = Mount("/", (0, 1), "ext4", "/dev/x", (), writable=False)
    place, _ = read_place("data", tmp_path, (closed,), Sight())
    assert (place.exists, place.writable) == (True, False)


def test_under_a_partition_is_its_disk() -> None:
    found = disk_under(Sight(machine_root("a10g")), (259, 2))
    assert found == Disk("nvme0n1", "Dell Ent NVMe P5600 MU U.2 1.6TB", "nvme", 1_526_185, "none", 128, 0)


def test_under_a_mapping_is_the_disk_of_its_first_member() -> None:
    found = disk_under(Sight(machine_root("none")), (252, 0))
    assert found is not None
    assert (found.name, found.kind, found.scheduler, found.numa_node) == ("sda", "ssd", "mq-deadline", None)


def test_a_device_that_sysfs_does_not_have_is_no_disk() -> None:
    assert disk_under(Sight(machine_root("none")), (9, 9)) is None
    assert disk_under(Sight(machine_root("none")), (0, 44)) is None


def block(root: Path, path: str, device: str, **files: str) -> Path:
    """A disk's folder in a tree of sysfs."""
    folder = root / "sys/devices" / path
    for name, text in {"size": "2048000", "queue/rotational": "0", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    (root / "sys/dev/block").mkdir(parents=True, exist_ok=True)
    (root / "sys/dev/block" / device).symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    ("path", "rotational", "kind"),
    [
        ("pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", "1", "hdd"),
        ("pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", "0", "ssd"),
        ("pci0000:00/0000:00:02.0/virtio1/block/vda", "1", "virtual"),
        ("vbd-51712/block/xvda", "0", "virtual"),
        ("virtual/block/zram0", "0", "virtual"),
    ],
)
def test_what_kind_of_disk_it_is(path: str, rotational: str, kind: str, tmp_path: Path) -> None:
    block(tmp_path, path, "8:0", **{"queue/rotational": rotational})
    found = disk_under(Sight(tmp_path), (8, 0))
    assert found is not None
    assert (found.kind, found.size_mb, found.scheduler, found.model) == (kind, 1000, None, "")


def test_an_nvme_disk_of_several_paths_is_on_its_controllers_node(tmp_path: Path) -> None:
    folder = block(tmp_path, "virtual/nvme-subsystem/nvme-subsys0/nvme0n1", "259:0")
    controller = tmp_path / "sys/devices/pci0000:c9/0000:ca:00.0/nvme/nvme0"
    controller.mkdir(parents=True)
    (controller.parents[1] / "numa_node").write_text("1\n")
    (folder.parent / "model").write_text("INTEL SSDPE2KX010T8   \n")
    (folder.parent / "nvme0").symlink_to(controller)
    (folder / "device").symlink_to(folder.parent)
    found = disk_under(Sight(tmp_path), (259, 0))
    assert found == Disk("nvme0n1", "INTEL SSDPE2KX010T8", "nvme", 1000, numa_node=1)


def test_a_place_that_does_not_answer_is_known_by_its_mount_alone() -> None:
    mounts = (mount_on((8, 1)), Mount("/srv", (0, 41), "nfs4", "server:/models", (), writable=True))
    place = silent_place("models", Path("/srv/models"), mounts)
    assert (place.answers, place.filesystem, place.source) == (False, "nfs4", "server:/models")
    assert silent_place("models", Path("/srv/models"), ()).filesystem == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_mount_that_takes_no_writes_is_told_with_where_it_is_from(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "acu-test", str(tmp_path)], check=True)
    try:
        place, _ = read_place("data", tmp_path / "data", Sight().mounts(), Sight())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (place.read_only, place.writable, place.source) == (True, False, "acu-test")

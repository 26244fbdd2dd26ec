"""acu.doctor.box: the kernel's own figures on this machine, and firmware, cgroups and abilities of trees."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acu.doctor.box import (
    find_program,
    read_abilities,
    read_cgroups,
    read_clock,
    read_firmware,
    read_kernel,
    read_limits,
)
from acu.doctor.sight import Sight
from tests.acu.hardware.recorded import machine_root
from tests.acu.running import ROOT


def put(root: Path, path: str, text: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())


def box(root: Path, flags: str = "fpu", **dmi: str) -> Sight:
    put(root, "proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}")
    for name, text in dmi.items():
        put(root, f"sys/class/dmi/id/{name}", text)
    return Sight(root)


@pytest.mark.parametrize(
    ("vendor", "product", "flags", "virtual"),
    [
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "fpu hypervisor", "QEMU"),
        ("Red Hat", "KVM", "hypervisor", "KVM"),
        ("VMware, Inc.", "VMware7,1", "hypervisor", "VMware"),
        ("Microsoft Corporation", "Virtual Machine", "hypervisor", "Hyper-V"),
        ("Amazon EC2", "g5.2xlarge", "hypervisor", "Amazon EC2"),
        ("Amazon EC2", "g5.metal", "fpu", None),
        ("Microsoft Corporation", "Surface", "fpu", None),
        ("Dell Inc.", "PowerEdge R750xa", "fpu", None),
        ("", "", "hypervisor", "of an unknown kind"),
    ],
)
def test_a_guest_is_told_from_a_machine(
    vendor: str, product: str, flags: str, virtual: str | None, tmp_path: Path
) -> None:
    assert read_firmware(box(tmp_path, flags, sys_vendor=vendor, product_name=product)).virtual == virtual


def test_a_processor_without_flags_is_judged_by_the_maker(tmp_path: Path) -> None:
    put(tmp_path, "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd")
    put(tmp_path, "sys/class/dmi/id/sys_vendor", "QEMU")
    assert read_firmware(Sight(tmp_path)).virtual == "QEMU"
    put(tmp_path, "sys/class/dmi/id/sys_vendor", "Amazon EC2")  # which has machines of metal too
    assert read_firmware(Sight(tmp_path)).virtual is None


def slot(size: int, extended: int = 0) -> bytes:
    return struct.pack("<BBH8xH14xI", 17, 0x28, 0x1100, size, extended).ljust(0x28, b"\0")


def test_the_slots_of_smbios_are_counted(tmp_path: Path) -> None:
    for number, raw in enumerate(
        (slot(16_384), slot(0), slot(0xFFFF), slot(0x7FFF, 65_536), slot(0x8000 | 2048), b"\x11\x28")
    ):
        put(tmp_path, f"sys/firmware/dmi/entries/17-{number}/raw", raw)
    put(tmp_path, "sys/firmware/dmi/entries/16-0/raw", slot(99))
    put(tmp_path, "sys/devices/system/edac/mc/mc0/dimm0/size", "1")
    assert read_firmware(Sight(tmp_path)).installed_mb == 16_384 + 65_536 + 2


def test_where_smbios_is_closed_the_memory_controllers_count(tmp_path: Path) -> None:
    for path, size in (("mc0/dimm0", 16_384), ("mc0/dimm3", 16_384), ("mc1/rank0", 8192)):
        put(tmp_path, f"sys/devices/system/edac/mc/{path}/size", str(size))
    put(tmp_path, "sys/devices/system/edac/mc/power/size", "7")
    assert read_firmware(Sight(tmp_path)).installed_mb == 40_960
    assert read_firmware(Sight(tmp_path / "nothing")).installed_mb is None


def test_processors_are_counted_where_they_are_real(tmp_path: Path) -> None:
    sight = box(tmp_path)
    for cpu in range(4):
        put(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(cpu % 2))
    put(tmp_path, "sys/devices/system/cpu/cpufreq/topology/physical_package_id", "7")
    assert read_firmware(sight).sockets == 2
    assert read_firmware(box(tmp_path, "hypervisor")).sockets is None


def test_the_kernels_settings_are_the_kernels() -> None:
    found = read_kernel(Sight())
    assert found.release == platform.release()
    assert found.settings["vm.swappiness"] == int(Path("/proc/sys/vm/swappiness").read_text())
    assert found.settings["net.core.somaxconn"] == int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert all(name in found.settings for name in ("vm.max_map_count", "vm.overcommit_memory"))
    swap_kb = sum(int(line.split()[2]) for line in Path("/proc/swaps").read_text().splitlines()[1:])
    assert found.swap_mb == swap_kb >> 10


def test_what_the_iommu_does(tmp_path: Path) -> None:
    assert read_kernel(Sight(tmp_path)).iommu is None
    (tmp_path / "sys/class/iommu").mkdir(parents=True)
    assert read_kernel(Sight(tmp_path)).iommu == "off"
    (tmp_path / "sys/class/iommu/dmar0").mkdir()
    assert read_kernel(Sight(tmp_path)).iommu is None
    put(tmp_path, "sys/kernel/iommu_groups/0/type", "identity")
    assert read_kernel(Sight(tmp_path)).iommu == "passthrough"
    put(tmp_path, "sys/kernel/iommu_groups/1/type", "DMA-FQ")
    assert read_kernel(Sight(tmp_path)).iommu == "translated"


V2 = "34 23 0:29 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup {0},relatime - tmpfs tmpfs {0},mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 / /sys/fs/cgroup/memory {0} - cgroup cgroup {0},memory\n"
    "40 31 0:37 / /sys/fs/cgroup/systemd ro - cgroup cgroup ro,name=systemd\n"
)
UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mounts", "uid", "version", "controllers", "writable"),
    [
        (V2, 0, "v2", ("cpu", "io", "memory"), True),
        (V2, 1000, "v2", ("cpu", "io", "memory"), False),
        (V2.replace("rw", "ro", 1), 0, "v2", ("cpu", "io", "memory"), False),
        (V1.format("rw"), 0, "v1", ("cpu", "cpuacct", "memory"), True),
        (V1.format("ro"), 0, "v1", ("cpu", "cpuacct", "memory"), False),
        (V1.format("rw") + UNIFIED, 0, "hybrid", ("cpu", "cpuacct", "memory"), True),
        ("", 0, "none", (), False),
    ],
)
def test_which_cgroups_there_are(
    mounts: str, uid: int, version: str, controllers: tuple[str, ...], writable: bool, tmp_path: Path
) -> None:
    put(tmp_path, "proc/self/mountinfo", mounts)
    put(tmp_path, "proc/self/status", f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}")
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu io memory")
    found = read_cgroups(Sight(tmp_path))
    assert (found.version, found.controllers, found.writable) == (version, controllers, writable)


def test_this_machines_cgroups_are_as_a_try_says() -> None:
    found = read_cgroups(Sight())
    v2 = Path("/sys/fs/cgroup/cgroup.controllers")
    if found.version == "v2":
        assert set(found.controllers) == set(v2.read_text().split())
    elif found.version in {"v1", "hybrid"}:
        assert not v2.exists()
    if found.version != "none" and os.geteuid() == 0:
        folder = Path("/sys/fs/cgroup") / ("" if found.version == "v2" else "memory") / "acu-probe-test"
        try:
            folder.mkdir()
        except OSError:
            assert not found.writable
        else:
            folder.rmdir()
            assert found.writable


@pytest.mark.parametrize(
    ("capabilities", "able"),
    [("000001ffffffffff", True), ("0000000000201000", True), ("0000000000200000", False), ("0000000000001000", False)],
)
def test_namespaces_need_two_capabilities(capabilities: str, able: bool, tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status", f"Uid:\t1\t0\t0\t0\nCapEff:\t{capabilities}")
    assert not read_abilities(Sight(tmp_path)).namespaces  # a kernel without network namespaces
    (tmp_path / "proc/self/ns").mkdir()
    (tmp_path / "proc/self/ns/net").symlink_to("net:[4026531840]")
    found = read_abilities(Sight(tmp_path))
    assert (found.root, found.namespaces, found.systemd) == (True, able, False)


def test_this_machine_makes_a_namespace_where_it_says_so() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    assert read_abilities(Sight()).namespaces is (made.returncode == 0)


def test_a_program_is_found_though_path_lacks_roots_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_program("sh", Sight()) in {"/usr/bin/sh", "/bin/sh"}
    assert find_program("no-such-program", Sight()) is None
    assert find_program("nvidia-smi", Sight(machine_root("a10g"))) == "/usr/bin/nvidia-smi"
    assert find_program("sh", Sight(machine_root("a10g"))) is None


def test_limits_are_this_processs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        assert read_limits(Sight()).nofile == (soft - 1, None if hard == resource.RLIM_INFINITY else hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_clock_is_asked_and_left_alone() -> None:
    wall, steady = time.time(), time.monotonic()
    found = read_clock()
    assert found.synchronised in {True, False}
    assert (found.error_ms is not None) is found.synchronised
    assert abs((time.time() - wall) - (time.monotonic() - steady)) < 1


def test_the_cgroup_with_the_least_left_bounds_the_tasks(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/system.slice/acu.service")
    assert read_limits(Sight(tmp_path)).pids is None
    for folder, used, most in (("system.slice/acu.service", 10, "max"), ("system.slice", 95, "100"), ("", 300, "1000")):
        put(tmp_path, f"sys/fs/cgroup/{folder}/pids.current", str(used))
        put(tmp_path, f"sys/fs/cgroup/{folder}/pids.max", most)
    assert read_limits(Sight(tmp_path)).pids == (95, 100)


def test_the_tasks_of_v1_are_in_the_hierarchy_of_their_controller(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "4:pids:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/")
    put(tmp_path, "sys/fs/cgroup/pids/docker/x/pids.current", "7")
    put(tmp_path, "sys/fs/cgroup/pids/docker/x/pids.max", "9")
    assert read_limits(Sight(tmp_path)).pids == (7, 9)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_users_own_tasks_are_counted_where_they_are_bounded() -> None:
    code = """
import os, resource, threading
from acu.doctor.box import read_limits
from acu.doctor.sight import Sight
os.setgroups([])
os.setresgid(61235, 61235, 61235)
os.setresuid(61235, 61235, 61235)
done = threading.Event()
threads = [threading.Thread(target=done.wait) for _ in range(3)]
for thread in threads: thread.start()
unbounded = read_limits(Sight()).user_tasks
resource.setrlimit(resource.RLIMIT_NPROC, (50, 50))
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
found = read_limits(Sight())
done.set()
assert unbounded is None or resource.getrlimit(resource.RLIMIT_NPROC)[0] != resource.RLIM_INFINITY
assert (found.nproc, found.user_tasks) == ((50, 50), 4), found
assert found.address_space == (1 << 40, 1 << 40)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

"""The box and its kernel, as far as they are files: firmware, settings, cgroups, what this user may do, limits, the clock.

Reads through a Sight, so that a recorded tree answers as its box would; limits and the clock are this process's and this
kernel's own. Nothing here needs root: what only root may read is left unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import struct
from pathlib import Path
from typing import Literal

from acu.doctor.examination import Abilities, Cgroups, Clock, Firmware, Kernel, Limits
from acu.doctor.sight import Sight
from acu.hardware.probe import cgroup_tasks
from acu.process.mounts import Mount

SETTINGS = (
    "kernel.numa_balancing",
    "net.core.somaxconn",
    "net.ipv4.tcp_max_syn_backlog",
    "vm.max_map_count",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
)
"""The kernel's settings that are looked at, as sysctl names them."""

PROGRAMS = (
    "ip",
    "nft",
    "iptables",
    "nvidia-smi",
    "nvidia-cuda-mps-control",
    "nvidia-modprobe",
    "systemctl",
    "findmnt",
)
"""The programs that scripts/acu-up and its parts call."""

FOLDERS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
CONTROLLERS = frozenset(
    {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "io", "pids", "hugetlb", "rdma", "misc"}
    | {"net_cls", "net_prio", "perf_event"}
)
BOUNDING = frozenset(
    {"cpuset", "memory", "devices", "blkio", "pids"}
)  # those of v1 that scripts/cgroup.sh makes groups in
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
HYPERVISORS = (
    ("qemu", "QEMU"),
    ("kvm", "KVM"),
    ("vmware", "VMware"),
    ("microsoft", "Hyper-V"),
    ("virtualbox", "VirtualBox"),
    ("innotek", "VirtualBox"),
    ("xen", "Xen"),
    ("amazon", "Amazon EC2"),
    ("google", "Google Compute Engine"),
    ("openstack", "OpenStack"),
    ("nutanix", "Nutanix"),
    ("bhyve", "bhyve"),
)
MEMORY_DEVICE = 17  # the SMBIOS structure of one memory slot
TIME_ERROR, STA_UNSYNC = 5, 0x40


def read_firmware(sight: Sight) -> Firmware:
    """Who made the box and its BIOS, whether it is a guest, its processors, and the memory in its slots."""
    dmi = "sys/class/dmi/id"
    vendor = sight.text(f"{dmi}/sys_vendor") or ""
    product = sight.text(f"{dmi}/product_name") or ""
    version, date = sight.text(f"{dmi}/bios_version") or "", sight.text(f"{dmi}/bios_date") or ""
    virtual = _hypervisor(sight, f"{vendor} {product}")
    return Firmware(
        vendor=vendor,
        product=product,
        bios=f"{version} ({date})" if version and date else version,
        virtual=virtual,
        installed_mb=_slots_mb(sight) or _edac_mb(sight),
        sockets=None if virtual else _sockets(sight),  # a guest's are what somebody typed
    )


def _hypervisor(sight: Sight, maker: str) -> str | None:
    """The hypervisor's name; None on real hardware. Processors other than x86 have no flag: there the maker's name tells."""
    known = next((name for word, name in HYPERVISORS if word in maker.lower()), None)
    info = sight.text("proc/cpuinfo") or ""
    first, _, _ = info.partition("\n\n")
    for line in first.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return (known or "of an unknown kind") if "hypervisor" in value.split() else None
    return None if known in {"Amazon EC2", "Google Compute Engine"} else known  # which have real machines too


def _slots_mb(sight: Sight) -> int | None:
    """MiB of memory in all slots, as SMBIOS tells root."""
    total = 0
    entries = "sys/firmware/dmi/entries"
    with contextlib.suppress(OSError, struct.error, IndexError):
        for name in sight.names(entries):
            if name.startswith(f"{MEMORY_DEVICE}-"):
                total += _slot_mb((sight.root / entries / name / "raw").read_bytes())
    return total or None


def _slot_mb(raw: bytes) -> int:
    """MiB in one slot. Raises struct.error for a structure that ends early."""
    (size,) = struct.unpack_from("<H", raw, 0x0C)
    if size in {0, 0xFFFF}:
        return 0
    if size == 0x7FFF:  # 32 GiB and more
        (extended,) = struct.unpack_from("<I", raw, 0x1C)
        return int(extended & 0x7FFF_FFFF)
    return int(size & 0x7FFF) // 1024 if size & 0x8000 else int(size)


def _edac_mb(sight: Sight) -> int | None:
    """MiB of memory in all slots, as the memory controllers' drivers tell everybody."""
    total = 0
    controllers = "sys/devices/system/edac/mc"
    for controller in sight.names(controllers):
        if controller.startswith("mc") and controller[2:].isdecimal():
            folder = f"{controllers}/{controller}"
            slots = [name for name in sight.names(folder) if name.startswith(("dimm", "rank"))]
            total += sum(sight.number(f"{folder}/{slot}/size") or 0 for slot in slots)
    return total or None


def _sockets(sight: Sight) -> int | None:
    """How many processors there are: their packages, over all CPUs that are online."""
    cpus = "sys/devices/system/cpu"
    packages = {
        package
        for name in sight.names(cpus)
        if name.startswith("cpu")
        and name[3:].isdecimal()
        and (package := sight.text(f"{cpus}/{name}/topology/physical_package_id")) not in {None, "", "-1"}
    }
    return len(packages) or None


def read_kernel(sight: Sight) -> Kernel:
    """The kernel's release and settings."""
    settings = {}
    for name in SETTINGS:
        value = sight.number(f"proc/sys/{name.replace('.', '/')}")
        if value is not None:
            settings[name] = value
    return Kernel(
        release=sight.text("proc/sys/kernel/osrelease") or "",
        settings=settings,
        huge_pages=sight.chosen("sys/kernel/mm/transparent_hugepage/enabled") or "",
        iommu=_iommu(sight),
        governor=sight.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "",
        swap_mb=_swap_mb(sight),
    )


def _swap_mb(sight: Sight) -> int | None:
    words = sight.fields("proc/meminfo").get("SwapTotal", "").split()
    return int(words[0]) >> 10 if words and words[0].isdecimal() else None


def _iommu(sight: Sight) -> str | None:
    """`off`, `passthrough` (devices see memory as it is) or `translated`; None where the kernel does not tell."""
    if not sight.names("sys/class/iommu"):
        return "off" if (sight.root / "sys/class/iommu").is_dir() else None
    kinds = {
        sight.text(f"sys/kernel/iommu_groups/{group}/type") or "" for group in sight.names("sys/kernel/iommu_groups")
    }
    if any(kind.startswith("DMA") for kind in kinds):
        return "translated"
    return "passthrough" if "identity" in kinds else None


def read_cgroups(sight: Sight) -> Cgroups:
    """The hierarchies that are mounted, their controllers, and whether this user may make groups."""
    mounts = sight.mounts()
    old = [mount for mount in mounts if mount.filesystem == "cgroup"]
    new = [mount for mount in mounts if mount.filesystem == "cgroup2"]
    controllers: set[str] = set()
    for mount in old:
        controllers.update(CONTROLLERS.intersection(mount.options))
    for mount in new:
        controllers.update((sight.text(f"{mount.point.lstrip('/')}/cgroup.controllers") or "").split())
    version: Literal["v2", "v1", "hybrid", "none"] = "none"
    if old:
        version = "hybrid" if new else "v1"
    elif new:
        version = "v2"
    bounding = [mount for mount in old if BOUNDING.intersection(mount.options)] or new
    writable = bool(bounding) and all(_may_make(mount, sight) for mount in bounding)
    return Cgroups(version=version, controllers=tuple(sorted(controllers)), writable=writable)


def _may_make(mount: Mount, sight: Sight) -> bool:
    """Whether this user may make a group below a hierarchy's root, or below its own group there."""
    if not mount.writable:
        return False
    if not sight.here:
        return _effective_uid(sight) == 0
    own = ""
    if mount.filesystem == "cgroup2":
        own = (sight.text("proc/self/cgroup") or "").rpartition("0::")[2].partition("\n")[0]
    folders = (Path(mount.point), Path(mount.point) / own.lstrip("/"))
    return any(os.access(folder, os.W_OK | os.X_OK) for folder in folders)


def _effective_uid(sight: Sight) -> int:
    words = sight.fields("proc/self/status").get("Uid", "").split()
    return int(words[1]) if len(words) > 1 else -1


def read_abilities(sight: Sight) -> Abilities:
    """What scripts/acu-up needs."""
    status = sight.fields("proc/self/status")
    held = int(status.get("CapEff", "0"), 16)
    namespaces = "net" in sight.names("proc/self/ns") and bool(held >> CAP_SYS_ADMIN & held >> CAP_NET_ADMIN & 1)
    return Abilities(
        root=_effective_uid(sight) == 0,
        systemd=(sight.root / "run/systemd/system").is_dir(),
        namespaces=namespaces,
        programs={name: find_program(name, sight) for name in PROGRAMS},
    )


def find_program(name: str, sight: Sight) -> str | None:
    """Where a program lies: on PATH, else where root's are, which users often lack on theirs."""
    found = shutil.which(name) if sight.here else None
    if found is None:
        found = shutil.which(name, path=os.pathsep.join(str(sight.root / folder) for folder in FOLDERS))
    if found is None or sight.here:
        return found
    return f"/{Path(found).relative_to(sight.root)}"


def read_limits(sight: Sight) -> Limits:
    """The limits of this process; of a recorded tree, those of the cgroup alone are its own."""

    def limit(kind: int) -> tuple[int | None, int | None]:
        soft, hard = resource.getrlimit(kind)
        return (
            None if soft == resource.RLIM_INFINITY else soft,
            None if hard == resource.RLIM_INFINITY else hard,
        )

    nproc = limit(resource.RLIMIT_NPROC)
    return Limits(
        nofile=limit(resource.RLIMIT_NOFILE),
        memlock=limit(resource.RLIMIT_MEMLOCK),
        nproc=nproc,
        address_space=limit(resource.RLIMIT_AS),
        user_tasks=_tasks_of(os.getuid(), sight) if nproc[0] is not None and os.getuid() != 0 else None,
        pids=min(cgroup_tasks(sight.root), key=lambda group: group[1] - group[0], default=None),
    )


def _tasks_of(uid: int, sight: Sight) -> int:
    """How many processes and threads a user has, as far as this one may see. Of root none are counted by the kernel's limit."""
    total = 0
    for name in sight.names("proc"):
        with contextlib.suppress(OSError, ValueError, StopIteration):
            if name.isdecimal() and (sight.root / "proc" / name).stat().st_uid == uid:
                lines = (sight.root / "proc" / name / "status").read_text().splitlines()
                total += int(next(line for line in lines if line.startswith("Threads:")).split()[1])
    return total


class Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2), on machines of 64 bits."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


def read_clock() -> Clock:
    """Whether a time service keeps the kernel's clock. Changes nothing (`modes` is 0).

    Raises OSError where it may not be asked.
    """
    asked = Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    kept = state != TIME_ERROR and not asked.status & STA_UNSYNC
    return Clock(synchronised=kept, error_ms=asked.esterror / 1000 if kept else None)

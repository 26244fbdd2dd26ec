"""Verdicts on the box as a whole: CPU, memory, clock, and what scripts/acu-up needs of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, Level, Sign, size
from acu.doctor.verdicts.gpu import runs

X86_FEATURES = frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
CONTROLLERS: Final = {"cpuset": "CPUs", "memory": "memory", "pids": "processes"}
PACKAGES: Final[dict[str, tuple[Level, str, str, str]]] = {
    "ip": ("warning", "iproute2", "iproute", "scripts/netns.sh makes no namespace without it"),
    "nft": ("warning", "nftables", "nftables", "scripts/netns.sh gives a namespace no way out without it"),
    "nvidia-smi": (
        "warning",
        "nvidia-smi",
        "nvidia-driver-cuda",
        "scripts/gpu.sh cannot set the compute mode",
    ),
    "nvidia-cuda-mps-control": (
        "warning",
        "nvidia-cuda-mps",
        "nvidia-driver-cuda",
        "several engines take turns on the card",
    ),
    "nvidia-modprobe": (
        "note",
        "nvidia-modprobe",
        "nvidia-modprobe",
        "device files may lack at the first start after a boot",
    ),
    "findmnt": ("note", "util-linux", "util-linux-core", "scripts/disk.sh does not find the disk of a folder"),
}
"""Of each program that acu-up calls: how bad it is to lack it, its package for apt and for dnf, what does not work then."""


def cpu_features(examination: Examination) -> Iterator[Sign]:
    """Instructions that the engine on a CPU computes with."""
    features = frozenset(examination.machine.cpu_features)
    if "asimd" in features:
        return
    if "avx2" not in features:
        yield Sign("error", f"{examination.machine.cpu_model} has no AVX2", "Use a newer CPU, or a GPU.")
    elif "avx512f" not in features:
        yield Sign(
            "note",
            f"{examination.machine.cpu_model} has no AVX-512",
            "Choose small models; a CPU with AVX-512 or AMX computes several times faster.",
            ("acu models list",),
        )


def memory(examination: Examination) -> Iterator[Sign]:
    """Memory, against what the configuration keeps there."""
    hot = examination.needs.hot_mb
    total, available = examination.machine.memory_total >> 20, examination.machine.memory_available >> 20
    if hot > total:
        yield Sign(
            "error",
            f"{size(hot)} are meant for vectors in memory, and {size(total)} are there",
            "Set data_plane.hot_layer_mem_mb to less, or raise the limit of memory (MemoryMax= of its unit, its cgroup).",
            ("free -m",),
        )
    elif hot > available and not runs(examination):
        yield Sign(
            "warning",
            f"{size(hot)} are meant for vectors in memory, and {size(available)} of {size(total)} are available",
            "See who has it, or set data_plane.hot_layer_mem_mb to less.",
            ("ps aux --sort=-rss | head",),
        )


def clock(examination: Examination) -> Iterator[Sign]:
    """A clock that nobody keeps."""
    if examination.clock.synchronised is False:
        yield Sign(
            "warning",
            "the kernel's clock is not kept by a time service",
            "Let a time service keep it (chrony, systemd-timesyncd). In a container the host keeps it: look there.",
            ("timedatectl set-ntp true",),
        )


def _clock_well(examination: Examination) -> str:
    error = examination.clock.error_ms
    return "the clock is kept" + (f", to about {error:.1f} ms" if error is not None else "")


def virtual(examination: Examination) -> Iterator[Sign]:
    """A guest with a card: the hypervisor says where things are."""
    if examination.firmware.virtual:
        yield Sign(
            "note",
            f"this is a virtual machine ({examination.firmware.virtual}): NUMA and PCIe are as it shows them",
            "Give the guest the card's NUMA node and CPUs in the hypervisor; BIOS settings are the host's.",
        )


def root(examination: Examination) -> Iterator[Sign]:
    """Who is asking."""
    if not examination.abilities.root:
        yield Sign(
            "note",
            "this is not root, which scripts/acu-up needs",
            "Call it as root; `acu serve` needs no root.",
            ("sudo scripts/acu-up 0",),
        )


def namespaces(examination: Examination) -> Iterator[Sign]:
    """Whether namespaces can be made."""
    if not examination.abilities.namespaces:
        wanted = examination.needs.namespace
        yield Sign(
            "warning" if wanted else "note",
            "network namespaces cannot be made here" + (f", and network.namespace is {wanted}" if wanted else ""),
            "Give the container the capabilities NET_ADMIN and SYS_ADMIN, or use another kernel (CONFIG_NET_NS). This command "
            "is silent once they can be made.",
            ("unshare --net true",),
        )


def cgroups(examination: Examination) -> Iterator[Sign]:
    """Whether groups can be made."""
    found = examination.cgroups
    if found.version == "none":
        yield Sign("warning", "no cgroup hierarchy is mounted", "Mount it.", ("mount -t cgroup2 none /sys/fs/cgroup",))
    elif not found.writable and not examination.abilities.systemd:
        yield Sign(
            "note",
            f"cgroups ({found.version}) may not be made here, and there is no systemd that would",
            "Mount it writable; a container needs --privileged for that.",
            ("mount -o remount,rw /sys/fs/cgroup",),
        )


def controllers(examination: Examination) -> Iterator[Sign]:
    """Controllers that scripts/cgroup.sh sets."""
    missing = [name for name in CONTROLLERS if name not in examination.cgroups.controllers]
    if missing:
        means = ", ".join(CONTROLLERS[name] for name in missing)
        yield Sign(
            "note",
            f"the cgroup hierarchy has no controller {', '.join(missing)}: {means} of an ACU cannot be bounded",
            "Enable it in the root group, and cgroup_enable=memory on the kernel's command line where it is off.",
            (f"echo '{' '.join('+' + name for name in missing)}' > /sys/fs/cgroup/cgroup.subtree_control",),
        )


def programs(examination: Examination) -> Iterator[Sign]:
    """Programs of acu-up, where what they are for is there."""
    found = examination.abilities.programs
    for name, (level, apt, dnf, lost) in PACKAGES.items():
        if name not in found or found[name] is not None or not _wanted(name, examination):
            continue
        yield Sign(
            level,
            f"the program {name} is not installed: {lost}",
            "Install its package, by the first command (Debian, Ubuntu) or the second (Fedora, RHEL).",
            (f"apt-get install -y {apt}", f"dnf install -y {dnf}"),
        )


def _wanted(name: str, examination: Examination) -> bool:
    if name == "nft":
        return examination.abilities.programs.get("iptables") is None  # which does the same
    if name == "nvidia-cuda-mps-control":
        return bool(examination.machine.gpus) and examination.needs.engines_on_gpu > 1
    return not name.startswith("nvidia") or bool(examination.machine.gpus)


def systemd(examination: Examination) -> Iterator[Sign]:
    """Nobody who starts the daemon again."""
    if not examination.abilities.systemd:
        yield Sign(
            "note",
            "systemd does not run here",
            "Start the daemon by scripts/acu-up, which bounds it by scripts/cgroup.sh, and let something start it after a boot.",
            ("scripts/acu-up 0",),
        )


CHECKS = (
    Check(
        id="machine.cpu",
        worst="error",
        looks_at="the CPU's vector instructions, where there is no card",
        verdict=cpu_features,
        well="the CPU has the instructions that the engine computes with",
        applies=lambda e: not e.machine.gpus and bool(e.machine.cpu_features),
        why="The engine for CPUs is built for AVX-512, and slower for AVX2; without either it stops at an illegal instruction.",
    ),
    Check(
        id="machine.memory",
        worst="error",
        looks_at="memory, against data_plane.hot_layer_mem_mb",
        verdict=memory,
        well=lambda e: (
            f"{size(e.machine.memory_available >> 20)} of {size(e.machine.memory_total >> 20)} memory are available"
        ),
        why="The kernel ends the daemon when memory is short, or vectors leave memory for the disk early.",
    ),
    Check(
        id="machine.clock",
        worst="warning",
        looks_at="whether the clock is kept (adjtimex)",
        verdict=clock,
        well=_clock_well,
        applies=lambda e: e.clock.synchronised is not None,
        why="TLS, S3 (which refuses 15 minutes), expiry of what is stored and the order of events in traces count on it.",
    ),
    Check(
        id="machine.virtual",
        worst="note",
        looks_at="whether a card is in a virtual machine",
        verdict=virtual,
        well="the card is in a real machine",
        applies=lambda e: bool(e.machine.gpus),
        why="What the guest believes about nodes and links may be wrong, and no BIOS setting of it changes the host.",
    ),
    Check(
        id="machine.root",
        worst="note",
        looks_at="whether this is root",
        verdict=root,
        well="this is root",
        why="Namespaces, cgroups, compute mode and I/O schedulers are root's.",
    ),
    Check(
        id="machine.namespaces",
        worst="warning",
        looks_at="whether network namespaces can be made",
        verdict=namespaces,
        well="network namespaces can be made",
        applies=lambda e: e.abilities.root,
        why="Without one an ACU shares the box's ports and addresses with everything else.",
    ),
    Check(
        id="machine.cgroups",
        worst="warning",
        looks_at="the cgroup hierarchy",
        verdict=cgroups,
        well=lambda e: f"cgroups {e.cgroups.version} may be made",
        applies=lambda e: e.abilities.root,
        why="Nothing bounds what an ACU takes from the others on the box.",
    ),
    Check(
        id="machine.cgroup-controllers",
        worst="note",
        looks_at="controllers for CPUs, memory and processes",
        verdict=controllers,
        well="the controllers that bound an ACU are there",
        applies=lambda e: e.cgroups.version != "none",
        why="What has no controller has no bound.",
    ),
    Check(
        id="machine.programs",
        worst="warning",
        looks_at="the programs that scripts/acu-up calls",
        verdict=programs,
        well="the programs that scripts/acu-up calls are there",
        applies=lambda e: bool(e.abilities.programs),
        why="scripts/acu-up stops where it needs one, before it has changed anything.",
    ),
    Check(
        id="machine.systemd",
        worst="note",
        looks_at="whether systemd runs",
        verdict=systemd,
        well="systemd runs",
        why="The units in systemd/ start the daemon at boot, watch it, and start it again.",
    ),
)

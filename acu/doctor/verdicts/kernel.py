"""Verdicts on the kernel's limits and settings. They read a network namespace's own values where the doctor runs in one."""

from __future__ import annotations

from collections.abc import Iterator

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, Sign, setting

SPARE_FILES = 192  # beside connections, as acu/process/descriptors.py counts
LEAST_MEMLOCK = 64 << 20  # bytes; 8 MiB, the kernel's default, is one staging buffer
BACKLOG = 4096  # what the daemon asks listen(2) for
SYN_BACKLOG = 1024
MAP_COUNT = 65530  # the kernel's own default
SWAPPINESS = 10


def files(examination: Examination) -> Iterator[Sign]:
    """The hard limit of open files, to which the daemon raises its own, against its connections."""
    hard, connections = examination.limits.nofile[1], examination.needs.connections
    if hard is not None and connections and hard < connections + SPARE_FILES:
        yield Sign(
            "warning",
            f"a process may have {hard} open files, and {connections} connections need {connections + SPARE_FILES}",
            f"Set LimitNOFILE={connections + SPARE_FILES} in the unit, or a `nofile` line in /etc/security/limits.d/90-acu.conf; "
            "or set a smaller network.max_connections.",
        )


def memlock(examination: Examination) -> Iterator[Sign]:
    """Memory that may be locked, where a card wants pinned buffers."""
    hard = examination.limits.memlock[1]
    if hard is not None and hard < LEAST_MEMLOCK:
        yield Sign(
            "note",
            f"a process may lock {hard >> 20} MiB of memory",
            "Set LimitMEMLOCK=infinity in the unit, or a `memlock` line in /etc/security/limits.d/90-acu.conf.",
        )


def somaxconn(examination: Examination) -> Iterator[Sign]:
    """What the kernel makes of the daemon's listen backlog."""
    value = examination.kernel.settings.get("net.core.somaxconn", BACKLOG)
    if value < BACKLOG:
        yield Sign(
            "warning",
            f"net.core.somaxconn is {value}: so many connections wait to be accepted, and not {BACKLOG}",
            "Raise it; the second command keeps it. (`scripts/netns.sh up N` does in the ACU's own namespace.)",
            setting("net.core.somaxconn", BACKLOG),
        )


def syn_backlog(examination: Examination) -> Iterator[Sign]:
    """Connections that are being opened."""
    value = examination.kernel.settings.get("net.ipv4.tcp_max_syn_backlog", SYN_BACKLOG)
    if value < SYN_BACKLOG:
        yield Sign(
            "note",
            f"net.ipv4.tcp_max_syn_backlog is {value}",
            "Raise it; the second command keeps it. (`scripts/netns.sh up N` does in the ACU's own namespace.)",
            setting("net.ipv4.tcp_max_syn_backlog", 8192),
        )


def overcommit(examination: Examination) -> Iterator[Sign]:
    """Strict accounting of address space."""
    if examination.kernel.settings.get("vm.overcommit_memory") == 2:
        yield Sign(
            "error",
            "vm.overcommit_memory is 2: address space counts as memory",
            "Set it to 0; the second command keeps it.",
            setting("vm.overcommit_memory", 0),
        )


def map_count(examination: Examination) -> Iterator[Sign]:
    """Mappings of a process."""
    value = examination.kernel.settings.get("vm.max_map_count", MAP_COUNT)
    if value < MAP_COUNT:
        yield Sign(
            "warning",
            f"vm.max_map_count is {value}",
            "Raise it; the second command keeps it.",
            setting("vm.max_map_count", 262_144),
        )


def swappiness(examination: Examination) -> Iterator[Sign]:
    """How readily memory goes to swap."""
    value = examination.kernel.settings.get("vm.swappiness", 0)
    if value > SWAPPINESS:
        yield Sign(
            "note",
            f"vm.swappiness is {value}",
            "Lower it (the second command keeps it), or have no swap.",
            setting("vm.swappiness", 1),
        )


def huge_pages(examination: Examination) -> Iterator[Sign]:
    """Transparent huge pages for everybody."""
    if examination.kernel.huge_pages == "always":
        yield Sign(
            "note",
            "transparent huge pages are on for every allocation (always)",
            "Give them to those who ask (madvise); transparent_hugepage=madvise on the kernel's command line keeps it.",
            ("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",),
        )


def iommu(examination: Examination) -> Iterator[Sign]:
    """An IOMMU that translates what the host's own drivers do."""
    if examination.kernel.iommu == "translated":
        yield Sign(
            "note",
            "the IOMMU translates every access of the card and of the disks",
            "Put iommu=pt on the kernel's command line (devices of the host pass through), or disable VT-d or AMD's IOMMU in the "
            "BIOS where no virtual machine needs it.",
            ("cat /proc/cmdline",),
        )


def governor(examination: Examination) -> Iterator[Sign]:
    """CPUs that are clocked down."""
    if examination.kernel.governor in {"powersave", "conservative"}:
        yield Sign(
            "note",
            f"the CPUs' governor is {examination.kernel.governor}",
            "Set it to performance (the program is in linux-cpupower; dnf: kernel-tools), and a performance profile in the BIOS. "
            "With intel_pstate, powersave clocks up too, but later.",
            ("cpupower frequency-set -g performance",),
        )


CHECKS = (
    Check(
        id="kernel.files",
        worst="warning",
        looks_at="the hard limit of open files, against network.max_connections",
        verdict=files,
        well="connections have the file descriptors that they need",
        applies=lambda e: bool(e.needs.connections),
        why="The daemon admits only as many connections as there are descriptors for: the others are answered 503.",
    ),
    Check(
        id="kernel.memlock",
        worst="note",
        looks_at="the limit of locked memory",
        verdict=memlock,
        well="memory may be locked",
        applies=lambda e: bool(e.machine.gpus),
        why="Buffers that are registered for direct transfers (RDMA, io_uring, mlock) are refused beyond it.",
    ),
    Check(
        id="kernel.somaxconn",
        worst="warning",
        looks_at="net.core.somaxconn",
        verdict=somaxconn,
        well="a burst of connections may wait to be accepted",
        applies=lambda e: "net.core.somaxconn" in e.kernel.settings,
        why="In a burst the kernel drops connections, and clients see timeouts of one and three seconds.",
    ),
    Check(
        id="kernel.syn-backlog",
        worst="note",
        looks_at="net.ipv4.tcp_max_syn_backlog",
        verdict=syn_backlog,
        well="a burst of connections may be opened",
        applies=lambda e: "net.ipv4.tcp_max_syn_backlog" in e.kernel.settings,
        why="In a burst over TCP, connections are dropped before they are open, or opened by cookies, without their options.",
    ),
    Check(
        id="kernel.overcommit",
        worst="error",
        looks_at="vm.overcommit_memory",
        verdict=overcommit,
        well="address space may be reserved",
        applies=lambda e: "vm.overcommit_memory" in e.kernel.settings,
        why="CUDA and the allocators reserve far more address space than they use: the engine fails with `Cannot allocate "
        "memory` while memory is free.",
    ),
    Check(
        id="kernel.map-count",
        worst="warning",
        looks_at="vm.max_map_count",
        verdict=map_count,
        well="a process may map the files that it needs",
        applies=lambda e: "vm.max_map_count" in e.kernel.settings,
        why="Weights, the database's files and threads' stacks are mappings; beyond the limit mmap fails.",
    ),
    Check(
        id="kernel.swappiness",
        worst="note",
        looks_at="vm.swappiness, where vectors are kept in memory",
        verdict=swappiness,
        well="memory goes to swap last",
        applies=lambda e: bool(e.needs.hot_mb) and "vm.swappiness" in e.kernel.settings,
        why="Where there is swap, vectors that were not searched for a while go there, and the next search waits for the disk.",
    ),
    Check(
        id="kernel.huge-pages",
        worst="note",
        looks_at="transparent huge pages",
        verdict=huge_pages,
        well="huge pages go to those that ask for them",
        applies=lambda e: bool(e.kernel.huge_pages),
        why="The database's memory grows beyond its cap, and compaction of pages shows as pauses.",
    ),
    Check(
        id="kernel.iommu",
        worst="note",
        looks_at="whether the IOMMU translates",
        verdict=iommu,
        well="the IOMMU is out of the card's way",
        applies=lambda e: bool(e.machine.gpus) and e.kernel.iommu is not None,
        why="Each mapping for a transfer costs time, and direct transfers between cards are off.",
    ),
    Check(
        id="kernel.governor",
        worst="note",
        looks_at="the CPUs' frequency governor",
        verdict=governor,
        well=lambda e: f"the CPUs' governor is {e.kernel.governor}",
        applies=lambda e: bool(e.kernel.governor),
        why="A token's way through the CPU begins at a low clock: the first token comes later, and times scatter.",
    ),
)

"""Verdicts on the kernel's limits and settings. They read a network namespace's own values where the doctor runs in one."""

from __future__ import annotations

from collections.abc import Iterator

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, OfSetting, Sign, size
from acu.doctor.verdicts.gpu import runs
from acu.process.descriptors import SPARE

LEAST_MEMLOCK = 64 << 20  # bytes; 8 MiB, the kernel's default, is one staging buffer
BACKLOG = 4096  # what the daemon asks listen(2) for
SYN_BACKLOG = 1024
MAP_COUNT = 65530  # the kernel's own default
SWAPPINESS = 10
IN_NAMESPACE = "Raise it; the second command keeps it. (`scripts/netns.sh up N` does in the ACU's own namespace.)"

SOMAXCONN = OfSetting(
    "net.core.somaxconn",
    "warning",
    lambda value: value < BACKLOG,
    BACKLOG,
    f"net.core.somaxconn is {{value}}: so many connections wait to be accepted, and not {BACKLOG}",
    IN_NAMESPACE,
)
SYN = OfSetting(
    "net.ipv4.tcp_max_syn_backlog",
    "note",
    lambda value: value < SYN_BACKLOG,
    8192,
    "net.ipv4.tcp_max_syn_backlog is {value}",
    IN_NAMESPACE,
)
OVERCOMMIT = OfSetting(
    "vm.overcommit_memory",
    "error",
    lambda value: value == 2,
    0,
    "vm.overcommit_memory is 2: address space counts as memory",
    "Set it to 0; the second command keeps it.",
)
MAPS = OfSetting(
    "vm.max_map_count",
    "warning",
    lambda value: value < MAP_COUNT,
    262_144,
    "vm.max_map_count is {value}",
    "Raise it; the second command keeps it.",
)
SWAP = OfSetting(
    "vm.swappiness",
    "note",
    lambda value: value > SWAPPINESS,
    1,
    "there is swap, and vm.swappiness is {value}",
    "Lower it (the second command keeps it), or have no swap.",
    lambda e: bool(e.kernel.swap_mb and e.needs.hot_mb),
)


def files(examination: Examination) -> Iterator[Sign]:
    """The hard limit of open files, to which the daemon raises its own, against its connections."""
    hard, connections = examination.limits.nofile[1], examination.needs.connections
    needed = connections + SPARE
    if hard is not None and connections and hard < needed:
        yield Sign(
            "warning",
            f"a process may have {hard} open files, and {connections} connections need {needed}",
            f"Set LimitNOFILE={needed} in the unit; without one raise it by this for the next login; or set a "
            "smaller network.max_connections.",
            (f"echo '* hard nofile {needed}' >> /etc/security/limits.d/90-acu.conf",),
        )


def memlock(examination: Examination) -> Iterator[Sign]:
    """Memory that may be locked, where a card wants pinned buffers."""
    hard = examination.limits.memlock[1]
    if hard is not None and hard < LEAST_MEMLOCK:
        yield Sign(
            "note",
            f"a process may lock {hard >> 20} MiB of memory",
            "Set LimitMEMLOCK=infinity in the unit; without one raise it by this for the next login.",
            ("echo '* - memlock unlimited' >> /etc/security/limits.d/90-acu.conf",),
        )


def address_space(examination: Examination) -> Iterator[Sign]:
    """A bound on what is reserved, which is far more than what is used."""
    soft = examination.limits.address_space[0]
    held = (examination.machine.memory_total >> 20) + sum(card.memory_mb for card in examination.machine.gpus)
    if soft is not None and (examination.machine.gpus or soft >> 20 < held):
        yield Sign(
            "error" if soft >> 20 < held else "warning",
            f"a process may have {size(soft >> 20)} of address space",
            "Set LimitAS=infinity in the unit; without one take the limit away, as below, in the shell that starts the daemon.",
            ("ulimit -v unlimited",),
        )


def tasks(examination: Examination) -> Iterator[Sign]:
    """Processes and threads that may still be made, against those that a start makes."""
    if runs(examination):
        return
    needed, limits = tasks_needed(examination), examination.limits
    soft, own, pids = limits.nproc[0], limits.user_tasks, limits.pids
    if soft is not None and own is not None and soft - own < needed:
        yield Sign(
            "warning",
            f"this user may have {soft} processes and threads, and has {own}: a start makes about {needed} more",
            "Set LimitNPROC=infinity in the unit; without one raise it by this for the next login.",
            ("echo '* - nproc unlimited' >> /etc/security/limits.d/90-acu.conf",),
        )
    if pids is not None and pids[1] - pids[0] < needed:
        yield Sign(
            "warning",
            f"the cgroup may have {pids[1]} processes and threads, and has {pids[0]}: a start makes about {needed} more",
            "Set TasksMax= in the unit to more; of a container its limit of processes (--pids-limit).",
            ("grep . /sys/fs/cgroup/pids.max /sys/fs/cgroup/*/pids.max",),
        )


def tasks_needed(examination: Examination) -> int:
    """About how many the daemon and its engines make, on the safe side: pools of threads have one a CPU."""
    return 128 + max(1, examination.needs.engines) * (64 + 2 * examination.machine.cpus)


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
        id="kernel.address-space",
        worst="error",
        looks_at="the limit of address space (ulimit -v)",
        verdict=address_space,
        well="address space is not bounded",
        why="CUDA reserves as much as all memory and all cards have; weights, the database's files and each thread's arena are "
        "mappings too. The engine fails with `Cannot allocate memory` while memory is free.",
    ),
    Check(
        id="kernel.tasks",
        worst="warning",
        looks_at="how many more processes and threads this user and the cgroup may have, while no ACU runs",
        verdict=tasks,
        well="a start may make the processes and threads that it needs",
        applies=lambda e: not runs(e) and (e.limits.user_tasks is not None or e.limits.pids is not None),
        why="A thread that cannot be made ends the engine, mostly with nothing but `can't start new thread`.",
    ),
    Check(
        id="kernel.somaxconn",
        worst="warning",
        looks_at="net.core.somaxconn",
        verdict=SOMAXCONN,
        well="a burst of connections may wait to be accepted",
        applies=SOMAXCONN.known,
        why="In a burst the kernel drops connections, and clients see timeouts of one and three seconds.",
    ),
    Check(
        id="kernel.syn-backlog",
        worst="note",
        looks_at="net.ipv4.tcp_max_syn_backlog",
        verdict=SYN,
        well="a burst of connections may be opened",
        applies=SYN.known,
        why="In a burst over TCP, connections are dropped before they are open, or opened by cookies, without their options.",
    ),
    Check(
        id="kernel.overcommit",
        worst="error",
        looks_at="vm.overcommit_memory",
        verdict=OVERCOMMIT,
        well="address space may be reserved",
        applies=OVERCOMMIT.known,
        why="CUDA and the allocators reserve far more address space than they use: the engine fails with `Cannot allocate "
        "memory` while memory is free.",
    ),
    Check(
        id="kernel.map-count",
        worst="warning",
        looks_at="vm.max_map_count",
        verdict=MAPS,
        well="a process may map the files that it needs",
        applies=MAPS.known,
        why="Weights, the database's files and threads' stacks are mappings; beyond the limit mmap fails.",
    ),
    Check(
        id="kernel.swappiness",
        worst="note",
        looks_at="vm.swappiness, where there is swap and vectors are kept in memory",
        verdict=SWAP,
        well="memory goes to swap last",
        applies=SWAP.known,
        why="Vectors that were not searched for a while go to swap, and the next search waits for the disk.",
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

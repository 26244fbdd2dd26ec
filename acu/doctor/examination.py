"""Examination: everything that `acu doctor` looked at, as one frozen value that can be saved on one box and judged on another.

It holds what was seen and no judgement: verdicts are pure functions of it (see findings.py). What could not be read is None
or empty, and `unread` says why, a sentence each.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from acu.config import NumaConfig
from acu.hardware.report import Driver, Node, Report

FORM = 1
"""The version of this form: a report of another one is refused with a clear text."""


class Disk(Struct, frozen=True):
    """One block device that has a place on it. `numa_node` is None where it is not known; size in MiB."""

    name: str
    model: str
    kind: Literal["nvme", "ssd", "hdd", "virtual"]
    size_mb: int
    scheduler: str | None = None
    read_ahead_kb: int | None = None
    numa_node: int | None = None


class Place(Struct, frozen=True):
    """A folder that the configuration names, as it is or as its nearest existing parent is. Space in MiB.

    `purpose`: `models`, `data` or `cold`; `disk` names one of the examination's disks. `source` is what its file system is
    mounted from. Of one that does not answer all else is unknown.
    """

    purpose: str
    path: str
    exists: bool
    writable: bool
    filesystem: str
    free_mb: int
    size_mb: int
    free_files: int | None = None
    disk: str | None = None
    source: str = ""
    read_only: bool = False
    answers: bool = True


class ModelFiles(Struct, frozen=True):
    """A configured model, by its key; `problem` is why its files cannot be served, if so, and `path` where that is.

    `pulled`: there is something of it on this box.
    """

    key: str
    model: str
    pulled: bool = False
    problem: str = ""
    path: str = ""


class ReadTest(Struct, frozen=True):
    """A short read of a large file past the page cache, from the disk of that name. `weights_mb`: what a start reads there."""

    path: str
    read_mb: float
    seconds: float
    direct: bool
    weights_mb: int = 0
    disk: str | None = None


class Firmware(Struct, frozen=True):
    """Who made the box and its BIOS, from DMI; `installed_mb` is the memory in its slots, `sockets`
    how many processors it has, where they are known; `virtual` names the hypervisor."""

    vendor: str = ""
    product: str = ""
    bios: str = ""
    virtual: str | None = None
    installed_mb: int | None = None
    sockets: int | None = None


class Cgroups(Struct, frozen=True):
    """The hierarchy, its controllers, and whether this user may make groups in it."""

    version: Literal["v2", "v1", "hybrid", "none"] = "none"
    controllers: tuple[str, ...] = ()
    writable: bool = False


class Abilities(Struct, frozen=True):
    """What scripts/acu-up needs here. `programs` maps each program that it calls to its path, None where it is missing."""

    root: bool = False
    systemd: bool = False
    namespaces: bool = False
    programs: dict[str, str | None] = {}


class Limits(Struct, frozen=True):
    """Limits of this process, (soft, hard); None: unlimited. `memlock` and `address_space` in bytes.

    `user_tasks` are those that this user has, which count against `nproc`, where that bounds this user; `pids` are (tasks, most)
    of the cgroup with the least left.
    """

    nofile: tuple[int | None, int | None] = (None, None)
    memlock: tuple[int | None, int | None] = (None, None)
    nproc: tuple[int | None, int | None] = (None, None)
    address_space: tuple[int | None, int | None] = (None, None)
    user_tasks: int | None = None
    pids: tuple[int, int] | None = None


class Xid(Struct, frozen=True):
    """What the NVIDIA driver has reported of the card at `bdf`, by its number, and how many times."""

    bdf: str
    code: int
    times: int = 1


class Kernel(Struct, frozen=True):
    """The kernel's release and settings, by their names under /proc/sys, and which transparent huge pages are on.

    `governor` is the first CPU's (cpufreq), empty where there is none; `swap_mb` the swap that is on, None where nobody tells.
    """

    release: str = ""
    settings: dict[str, int] = {}
    huge_pages: str = ""
    iommu: str | None = None
    governor: str = ""
    swap_mb: int | None = None


class Clock(Struct, frozen=True):
    """Whether the kernel's clock is kept by somebody (adjtimex), and its estimated error in milliseconds."""

    synchronised: bool | None = None
    error_ms: float | None = None


class Address(Struct, frozen=True):
    """An address that the daemon listens on, or would. `held_by` names who has it; `answers` whether an ACU answers there.

    `full`: with all its connections taken. `pids`: the ACU's own process, and its engines'.
    """

    address: str
    held_by: str | None = None
    answers: bool = False
    detail: str = ""
    full: bool = False
    pids: tuple[int, ...] = ()


class Versions(Struct, frozen=True):
    """Versions of what runs; `cuda` is the one that torch was built for, None for a CPU build."""

    acu: str
    python: str
    vllm: str | None = None
    torch: str | None = None
    cuda: str | None = None
    glibc: str = ""


class Needs(Struct, frozen=True):
    """What the configuration asks of the box; sizes in MiB. `engines_on_gpu`: processes that compute on the card.

    `engines`: all processes of vLLM. `numa` is that section of it, as it is.
    """

    gpu_id: int = 0
    engines_on_gpu: int = 0
    weights_mb: int = 0
    hot_mb: int = 0
    numa: NumaConfig = NumaConfig()
    connections: int = 0
    namespace: str | None = None
    engines: int = 0


class Examination(Struct, frozen=True, kw_only=True):
    """One look at one box, at `at` (ISO 8601, UTC). `cpus` and `memory_nodes`: those that this process may use.

    `own`: processes on the cards that belong to an ACU that answers, or to MPS. `xids` is None where the kernel's log was not
    read. `refused` is why a start would be refused for its data folder, if so.
    """

    form: int = FORM
    at: str
    machine: Report
    versions: Versions
    needs: Needs = Needs()
    driver: Driver = Driver()
    cpus: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    nodes: tuple[Node, ...] = ()
    disks: tuple[Disk, ...] = ()
    places: tuple[Place, ...] = ()
    reads: tuple[ReadTest, ...] = ()
    firmware: Firmware = Firmware()
    cgroups: Cgroups = Cgroups()
    abilities: Abilities = Abilities()
    limits: Limits = Limits()
    kernel: Kernel = Kernel()
    clock: Clock = Clock()
    addresses: tuple[Address, ...] = ()
    models: tuple[ModelFiles, ...] = ()
    own: tuple[int, ...] = ()
    xids: tuple[Xid, ...] | None = None
    refused: str = ""
    unread: tuple[str, ...] = ()

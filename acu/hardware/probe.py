"""What the machine has, read from /proc, /sys and NVML into one frozen Report. Takes milliseconds; changes nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acu.hardware.cards import device_nodes, has_card, read_cards
from acu.hardware.numa import SLASH, allowed_cpus, cores_of
from acu.hardware.report import Gpu, Report

CPU_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "amx_bf16",
    "asimd",
    "bf16",
)  # that decide how fast an engine computes


def gpu_present(root: Path = SLASH) -> bool:
    """Whether an NVIDIA device can be used, without loading NVML."""
    return has_card(device_nodes(root))


def probe_machine(root: Path = SLASH, nvml: Any = None) -> Report:
    """Look at the machine. `root` is `/` or a recorded tree, `nvml` None or what stands for the module pynvml."""
    gpus, _ = read_cards(nvml, root)
    return report_on(gpus, root)


def report_on(gpus: tuple[Gpu, ...], root: Path = SLASH) -> Report:
    """The machine with its GPUs, which have been read already."""
    info = cpu_info(root)
    total, available = memory(root)
    allowed = allowed_cpus(root)
    return Report(
        cpu_model=info.get("model name", info.get("CPU part", "unknown")),
        cpus=len(allowed),
        cores=len(cores_of(allowed, root)),
        cpu_features=tuple(
            word for word in CPU_FEATURES if word in info.get("flags", info.get("Features", "")).split()
        ),
        memory_total=total,
        memory_available=available,
        gpus=gpus,
    )


def cpu_info(root: Path = SLASH) -> dict[str, str]:
    """The fields of /proc/cpuinfo's first processor."""
    with contextlib.suppress(OSError):
        first, _, _ = (root / "proc/cpuinfo").read_text().partition("\n\n")
        pairs = (line.partition(":") for line in first.splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs}
    return {}


def memory(root: Path = SLASH) -> tuple[int, int]:
    """(total, available) bytes: the machine's, or what the cgroup leaves if that is less.

    Where there is no /proc/meminfo, the kernel is asked without it, of `/`; of a recorded tree OSError is raised.
    """
    fields: dict[str, int] = {}
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) * 1024
        total, available = fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"])
    except OSError:
        if root != SLASH:
            raise
        page = os.sysconf("SC_PAGE_SIZE")
        total, available = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    return bounded(total, available, cgroup_memory(root))


def bounded(total: int, available: int, cgroups: list[tuple[int, int]]) -> tuple[int, int]:
    """(total, available) bytes within the (limit, use) of every cgroup."""
    for limit, used in cgroups:
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return total, available


def cgroup_memory(slash: Path = SLASH) -> list[tuple[int, int]]:
    """(limit, unreclaimable use) in bytes of every memory cgroup above this process that has a limit, v2 or v1."""
    names = {False: ("memory.max", "memory.current"), True: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
    found = []
    for place, old in cgroups_of("memory", slash):
        with contextlib.suppress(OSError, ValueError):  # `max`, or the root, which has no limit
            limit, used = (int((place / name).read_text()) for name in names[old])
            found.append((limit, used - reclaimable(place)))
    return found


def cgroup_tasks(slash: Path = SLASH) -> list[tuple[int, int]]:
    """(tasks, most) of every cgroup above this process that bounds processes and threads, v2 or v1."""
    found = []
    for place, _ in cgroups_of("pids", slash):
        with contextlib.suppress(OSError, ValueError):
            used, most = (int((place / name).read_text()) for name in ("pids.current", "pids.max"))
            found.append((used, most))
    return found


def cgroups_of(controller: str, slash: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it is of v1) of this process's cgroups that the controller may have, upwards; none where nobody tells."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (slash / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = slash / "sys/fs/cgroup" / (controller if controllers else "")
        folder = root / path.lstrip("/")
        yield from ((place, bool(controllers)) for place in (folder, *folder.parents) if place.is_relative_to(root))


def reclaimable(cgroup: Path) -> int:
    """Bytes of page cache that the kernel would give up first."""
    for line in (cgroup / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in {"inactive_file", "total_inactive_file"}:
            return int(value)
    return 0

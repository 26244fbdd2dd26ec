"""What the machine has, read from /proc, /sys and NVML into one frozen Report. Takes milliseconds; changes nothing."""

from __future__ import annotations

import contextlib
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
    """(total, available) bytes: the machine's, or what the cgroup leaves if that is less."""
    fields: dict[str, int] = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    return bounded(fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"]), cgroup_memory(root))


def bounded(total: int, available: int, cgroups: list[tuple[int, int]]) -> tuple[int, int]:
    """(total, available) bytes within the (limit, use) of every cgroup."""
    for limit, used in cgroups:
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return total, available


def cgroup_memory(slash: Path = SLASH) -> list[tuple[int, int]]:
    """(limit, unreclaimable use) in bytes of every memory cgroup above this process that has a limit, v2 or v1."""
    found = []
    for line in (slash / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in {"", "memory"} and "memory" not in controllers.split(","):
            continue
        root = slash / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(root):
                break
            with contextlib.suppress(OSError, ValueError):  # `max`, or the root, which has no limit
                limit = int((place / names[0]).read_text())
                used = int((place / names[1]).read_text()) - reclaimable(place)
                found.append((limit, used))
    return found


def reclaimable(cgroup: Path) -> int:
    """Bytes of page cache that the kernel would give up first."""
    for line in (cgroup / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in {"inactive_file", "total_inactive_file"}:
            return int(value)
    return 0

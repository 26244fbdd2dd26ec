"""NUMA as the kernel shows it: the nodes under /sys/devices/system/node, and on which of them a PCI device lies.

Only reading: what is done with the nodes is decided in placement.py and done in pin.py. A kernel without NUMA has no such
folder: then no node is known, which is not the same as one node. Sizes are MiB, as in `Node.MemTotal`.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from acu.hardware.report import Node

SLASH = Path("/")
NODES = "sys/devices/system/node"
BDF = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


def cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of a kernel's list (`0-3,8,10-11`), in order, each once. Raises ValueError where it is none.

    An empty list is what a node without CPUs has. The kernel's stride (`0-14:2/4`: the first two of every four) is read too.
    """
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        span, _, pattern = part.partition(":")
        first, dash, last = span.partition("-")
        used, _, group = pattern.partition("/")
        low, high = int(first), int(last if dash else first)
        step, width = (int(group), int(used)) if pattern else (1, 1)
        if low > high or step < 1 or low < 0:
            raise ValueError(f"{part!r} is no range of numbers")
        found.update(
            number for start in range(low, high + 1, step) for number in range(start, min(start + width, high + 1))
        )
    return tuple(sorted(found))


def allowed_cpus(root: Path = SLASH) -> tuple[int, ...]:
    """The CPUs that this process may use, in order; of a recorded tree, the process whose `self` it holds."""
    if root == SLASH:
        with contextlib.suppress(OSError):  # a seccomp filter
            return tuple(sorted(os.sched_getaffinity(0)))
    return _allowed("Cpus_allowed_list", root)


def allowed_nodes(root: Path = SLASH) -> tuple[int, ...]:
    """The nodes whose memory the cpuset of this process has; none where the kernel does not tell."""
    return _allowed("Mems_allowed_list", root)


def _allowed(field: str, root: Path) -> tuple[int, ...]:
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return cpu_list(value)
    return ()


def cores_of(cpus: tuple[int, ...], root: Path = SLASH) -> tuple[tuple[int, ...], ...]:
    """The physical cores that the CPUs are on, each as all its CPUs; one whose siblings are not known is a core of its own."""
    cores = set()
    for cpu in cpus:
        try:
            text = (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
            cores.add(cpu_list(text))
        except (OSError, ValueError):
            cores.add((cpu,))
    return tuple(sorted(cores))


def read_nodes(root: Path = SLASH) -> tuple[Node, ...]:
    """The nodes that are online, by id. A node that vanishes or cannot be read while we look is left out."""
    nodes = []
    with contextlib.suppress(OSError):
        for folder in (root / NODES).iterdir():
            if folder.name.startswith("node") and folder.name[4:].isdecimal():
                with contextlib.suppress(OSError, ValueError):
                    nodes.append(read_node(folder))
    return tuple(sorted(nodes, key=lambda node: node.id))


def read_node(folder: Path) -> Node:
    """One node. Raises OSError, or ValueError where the kernel's list is none."""
    sizes = _sizes(folder)
    distances: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        distances = tuple(map(int, (folder / "distance").read_text().split()))
    return Node(
        id=int(folder.name[4:]),
        cpus=cpu_list((folder / "cpulist").read_text()),
        memory_mb=sizes.get("MemTotal", 0),
        free_mb=sizes.get("MemFree", 0),
        distances=distances,
    )


def available_mb(node: int, root: Path = SLASH) -> int:
    """MiB that can be had of the node: free, or the page cache's and so given up for the asking. 0 where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        sizes = _sizes(root / NODES / f"node{node}")
        return sum(sizes.get(name, 0) for name in ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable"))
    return 0


def _sizes(folder: Path) -> dict[str, int]:
    """The figures of a node's memory, in MiB. Raises OSError, ValueError."""
    sizes = {}
    for line in (folder / "meminfo").read_text().splitlines():  # `Node 0 MemTotal:       16384000 kB`
        words = line.split()
        if len(words) > 3:
            sizes[words[2].rstrip(":")] = int(words[3]) >> 10
    return sizes


def node_of_device(bdf: str, root: Path = SLASH) -> int | None:
    """The node on which a PCI device lies; None where the firmware does not tell (the kernel's -1) or there is no such device.

    `bdf` is the kernel's address (`0000:3b:00.0`), or NVML's, whose domain has eight digits and whose letters are large.
    """
    parts = BDF.fullmatch(bdf.strip())
    if parts is None:
        return None
    domain, bus, device, function = parts.groups()
    address = f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function}"
    with contextlib.suppress(OSError, ValueError):
        node = int((root / "sys/bus/pci/devices" / address / "numa_node").read_text())
        return node if node >= 0 else None
    return None

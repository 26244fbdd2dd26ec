"""Placement: on which CPUs and beside which memory the daemon and its engines shall live. Pure: values in, a Placement out.

The section `numa` of the configuration asks; what the process may use (its affinity, its cpuset) and what the machine has
decide. Three rules: what systemd, a cgroup or taskset has given is never widened; what was asked for by number and does not
exist refuses the start; everything else that cannot be is told in `short`, a sentence each, and the daemon starts without it.

CPUs are taken core by core: one of each physical core first, in order, then their siblings, so that two CPUs are two cores.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from acu.config import NumaConfig
from acu.errors import StartRefused
from acu.hardware.report import Gpu, Node

NOMINAL = 1.1
"""A node that is sold as 16 GiB shows up to a tenth less: firmware and kernel keep some."""


class Room(Struct, frozen=True):
    """What this process may use: CPUs of its affinity, nodes whose memory its cpuset and its policy leave.

    `free_mb` of a node counts page cache too; `cores`: the CPUs of each physical core, as far as they matter.
    """

    nodes: tuple[Node, ...]
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...] = ()


class Placement(Struct, frozen=True):
    """What to bind: `cpus` (empty: as they are), and memory to `node` (None: as it is).

    `why` says in a sentence why there, or why nowhere; `short` what cannot be as it was asked for or should be.
    """

    node: int | None = None
    cpus: tuple[int, ...] = ()
    why: str = ""
    short: tuple[str, ...] = ()


class NodeBudget(Struct, frozen=True):
    """How the node's memory is divided, in MiB. `left_mb` is what `hot` could have; `spare_mb` what then remains, or lacks."""

    memory_mb: int
    engines_mb: int
    hot_mb: int

    @property
    def left_mb(self) -> int:
        """What the engines leave for the hot layer; never below 0."""
        return max(0, self.memory_mb - self.engines_mb)

    @property
    def spare_mb(self) -> int:
        """What remains of it beside the hot layer; negative where it does not fit."""
        return self.memory_mb - self.engines_mb - self.hot_mb


def node_budget(memory_mb: int, engines_mb: int, hot_mb: int) -> NodeBudget:
    """`memory_mb` of the node (see `memory_of`), less the host memory of the engines and of the daemon itself, less hot."""
    return NodeBudget(memory_mb, engines_mb, hot_mb)


def memory_of(numa: NumaConfig, node: Node | None) -> int | None:
    """MiB on the node that are meant for this daemon: what `numa.memory_mb` says and the node has. None: nobody tells."""
    told = [size for size in (numa.memory_mb, node.memory_mb if node else None) if size]
    return min(told) if told else None


def place(numa: NumaConfig, room: Room, gpu: Gpu | None = None) -> Placement:
    """Decide. `gpu` is the card that the engines use. Raises StartRefused where a number of `numa` cannot be."""
    if numa.node is None:
        return Placement(why="numa.node is null")
    node, why, lacking = _asked(numa.node, room) if numa.node != "auto" else _own_choice(room, gpu)
    short = [] if lacking is None else [lacking]
    cpus = _cpus(numa.cpus, node, room, short)
    if node is None:
        return Placement(cpus=_changed(cpus, room), why=why, short=tuple(short))
    if numa.memory_mb is not None and numa.memory_mb > node.memory_mb * NOMINAL:
        short.append(f"numa.memory_mb is {numa.memory_mb}, and node {node.id} has {node.memory_mb} MiB")
    if numa.node == "auto" and len(room.nodes) == 1:
        return Placement(cpus=_changed(cpus, room), why=why, short=tuple(short))
    lack = _no_memory(node, room, asked=numa.node != "auto")
    if lack:
        short.append(lack)
    return Placement(None if lack else node.id, _changed(cpus, room), why, tuple(short))


def _asked(number: int, room: Room) -> tuple[Node, str, None]:
    """The node of that number. Raises StartRefused."""
    node = next((node for node in room.nodes if node.id == number), None)
    if node is None:
        there = _numbers(node.id for node in room.nodes)
        raise StartRefused(
            f"numa.node: {number} does not exist; there {_are(room.nodes)} {there}"
            if room.nodes
            else f"numa.node: {number} does not exist; this kernel knows no NUMA nodes; set it to auto"
        )
    if number not in room.memory_nodes:
        raise StartRefused(
            f"numa.node: the memory of node {number} is not among what this process may use (cpuset and policy leave "
            f"{_numbers(room.memory_nodes)}); set it to auto, or give the unit or cgroup that node"
        )
    return node, f"numa.node is {number}", None


def _own_choice(room: Room, gpu: Gpu | None) -> tuple[Node | None, str, str | None]:
    """The node, why it, and what is lacking: the GPU's; without one the node with most free memory; none where there is one."""
    if not room.nodes:
        return None, "this kernel knows no NUMA nodes", None
    if len(room.nodes) == 1:
        return room.nodes[0], "all memory is on one node", None
    if gpu is not None:
        node = _node_of(gpu, room.nodes)
        if node is not None:
            return node, f"{gpu.name} (GPU {gpu.index}) lies there", None
        there = _numbers(node.id for node in room.nodes)
        lacking = (
            f"the firmware does not tell on which of the nodes {there} {gpu.name} (GPU {gpu.index}) lies; set numa.node"
        )
        return None, "nobody tells on which node the GPU lies", lacking
    fit = [node for node in room.nodes if node.id in room.memory_nodes and node.memory_mb and _within(node, room)]
    if not fit:
        return None, "no node has both CPUs and memory that this process may use", None
    best = max(fit, key=lambda node: (node.free_mb, -node.id))
    return best, f"of {len(room.nodes)} nodes it has the most free memory ({best.free_mb} MiB)", None


def _node_of(gpu: Gpu, nodes: tuple[Node, ...]) -> Node | None:
    """The node that the firmware tells, or on which all CPUs beside the card lie."""
    if gpu.numa_node is not None:
        return next((node for node in nodes if node.id == gpu.numa_node), None)
    beside = [node for node in nodes if gpu.cpus and set(gpu.cpus) <= set(node.cpus)]
    return beside[0] if len(beside) == 1 else None


def _no_memory(node: Node, room: Room, *, asked: bool) -> str:
    """Why memory is not bound to the node, or an empty text.

    Without CPUs there the CPUs would reach for all of it across, which is worse than a GPU that does: only who asks gets that.
    """
    if node.id not in room.memory_nodes:
        return (
            f"memory is not bound: that of node {node.id} is not among what this process may use (cpuset and policy leave "
            f"{_numbers(room.memory_nodes)}); give the unit or cgroup that node"
        )
    if not node.memory_mb:
        return f"memory is not bound: node {node.id} has none"
    if not asked and not _within(node, room):
        return f"memory is not bound to node {node.id} either, so that it lies beside the CPUs"
    return ""


def _cpus(wanted: int | None, node: Node | None, room: Room, short: list[str]) -> tuple[int, ...]:
    """The CPUs to use, which are among those that this process may. Raises StartRefused where the node has not as many."""
    usable = room.cpus if node is None else _within(node, room)
    where = "this machine" if node is None else f"node {node.id}"
    has = len(room.cpus) if node is None else len(node.cpus)
    if wanted is not None and wanted > has:
        raise StartRefused(
            f"numa.cpus: {wanted} CPUs are asked of {where}, which has {has}; lower it, or set it to null"
        )
    if not usable:
        short.append(
            f"CPUs are not bound: {where} has {ranges(node.cpus if node else ()) or 'none'}, and this process may use "
            f"{ranges(room.cpus)}; let its unit, cgroup or taskset have some of them"
        )
        return room.cpus
    if wanted is not None and wanted > len(usable):
        short.append(f"numa.cpus is {wanted}, and this process may use {len(usable)} of {where} ({ranges(usable)})")
    return spread(usable, room.cores)[:wanted]


def spread(cpus: Iterable[int], cores: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The CPUs in the order in which they are taken: the first of each core, then the second of each, and so on."""
    core_of = {cpu: min(core) for core in cores for cpu in core}
    turn: dict[int, int] = {}
    rank = {}
    for cpu in sorted(cpus):
        core = core_of.get(cpu, cpu)
        rank[cpu] = turn[core] = turn.get(core, -1) + 1
    return tuple(sorted(rank, key=lambda cpu: (rank[cpu], cpu)))


def _changed(cpus: tuple[int, ...], room: Room) -> tuple[int, ...]:
    """The CPUs in their order, or nothing where they are those that the process has."""
    return () if set(cpus) == set(room.cpus) else tuple(sorted(cpus))


def _within(node: Node, room: Room) -> tuple[int, ...]:
    return tuple(cpu for cpu in node.cpus if cpu in room.cpus)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes a list: `0-3,8`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in found)


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"


def _are(things: tuple[Node, ...]) -> str:
    return "is" if len(things) == 1 else "are"

"""Verdicts on NUMA: whether card, CPUs, memory and disk lie together, and what the BIOS did to the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from acu.doctor.examination import Examination
from acu.doctor.findings import Check, OfSetting, Sign, size
from acu.doctor.verdicts.gpu import as_far_as_real, card_of, runs
from acu.errors import StartRefused
from acu.hardware.placement import NOMINAL, Room, place, ranges
from acu.hardware.report import Node

MIRRORED = 0.6  # visible of installed memory: mirroring leaves half, and the firmware takes a little
SHORT = 0.9  # sparing and partial mirroring leave less than this
LITTLE_FREE = 0.5  # of what is meant for the daemon on its node


def beside(examination: Examination) -> Node | None:
    """The card's node, or the only one."""
    card = card_of(examination)
    if len(examination.nodes) == 1 and (card is None or card.numa_node is None):
        return examination.nodes[0]
    return _node(None if card is None else card.numa_node, examination)


def home(examination: Examination) -> Node | None:
    """The node that the daemon binds itself to, as far as it is told: the configured one, else the card's, or the only one."""
    wanted = examination.needs.numa.node
    if wanted is None:
        return None
    return beside(examination) if wanted == "auto" else _node(wanted, examination)


def _node(number: int | None, examination: Examination) -> Node | None:
    return next((node for node in examination.nodes if node.id == number), None)


def _several(examination: Examination) -> bool:
    return len(examination.nodes) > 1


def _card_on_several(examination: Examination) -> bool:
    return _several(examination) and card_of(examination) is not None


def _card_placed(examination: Examination) -> bool:
    return _card_on_several(examination) and beside(examination) is not None


def asked(examination: Examination) -> Iterator[Sign]:
    """Numbers of the section `numa` for which the start is refused."""
    nodes, cpus = examination.nodes, examination.cpus
    room = Room(nodes, cpus, examination.memory_nodes or tuple(node.id for node in nodes))
    try:
        place(examination.needs.numa, room, card_of(examination))
    except StartRefused as refused:
        node, wanted = home(examination), examination.needs.numa
        most = len(cpus) if node is None else len(node.cpus)
        write = []
        if wanted.node != "auto":
            write.append("`numa.node: auto`" + (f", or one of {ranges(one.id for one in nodes)}" if nodes else ""))
        if wanted.cpus is not None:
            write.append(f"`numa.cpus: null`, or {most} at most")
        yield Sign(
            "error",
            str(refused),
            f"Write {'; and '.join(write)}.",
            ("lscpu | grep NUMA",),
        )


def gpu_unknown(examination: Examination) -> Iterator[Sign]:
    """The firmware does not tell the card's node (-1 in sysfs)."""
    card = card_of(examination)
    if card is not None and card.numa_node is None and not isinstance(examination.needs.numa.node, int):
        yield Sign(
            "warning",
            f"the firmware does not say which NUMA node GPU {card.index} is on (numa_node is -1)",
            "Find it by its slot in the board's manual, and set numa.node by hand; a newer BIOS may tell it.",
            ("lspci -vt",),
        )


def _node_known(examination: Examination) -> str:
    card, named = card_of(examination), examination.needs.numa.node
    if card is not None and card.numa_node is None and isinstance(named, int):
        return f"numa.node names the card's NUMA node: {named}"
    return "the firmware tells the card's NUMA node"


def gpu_node(examination: Examination) -> Iterator[Sign]:
    """Neither this process nor the configuration is where the card is: CPUs, memory, and `numa.node`."""
    card, node = card_of(examination), beside(examination)
    if card is None or node is None:
        return
    cpus, memory, wanted = examination.cpus, examination.memory_nodes, examination.needs.numa.node
    there = f"GPU {card.index} is on node {node.id}"
    allow = f"AllowedCPUs={ranges(node.cpus)} and AllowedMemoryNodes={node.id} in its unit, or the cpuset of its cgroup"
    allowed = "grep -e Cpus_allowed_list -e Mems_allowed_list /proc/self/status"
    if cpus and not set(node.cpus) & set(cpus):
        yield Sign(
            "warning",
            f"{there} (CPUs {ranges(node.cpus)}), and this process may only use CPUs {ranges(cpus)}, which are on another",
            f"Let it use the card's CPUs: {allow}; after taskset or numactl, start it as below; or move the card to a slot of "
            "the other processor.",
            (f"numactl -N {node.id} --preferred={node.id} acu serve", allowed),
        )
    elif memory and node.id not in memory:
        yield Sign(
            "warning",
            f"{there}, and this process may only use memory of node {ranges(memory)}",
            f"Let it use the card's memory: {allow}.",
            (allowed,),
        )
    elif isinstance(wanted, int) and wanted != node.id and _node(wanted, examination):
        yield Sign(
            "warning", f"{there}, and numa.node is {wanted}", f"Write `numa.node: auto`, or {node.id}.", ("numactl -H",)
        )


def disk_node(examination: Examination) -> Iterator[Sign]:
    """The disk of the models is on another node than the card."""
    node = beside(examination)
    places = {place.disk: place for place in examination.places if place.purpose == "models" and place.disk}
    for disk in examination.disks:
        if node is not None and disk.name in places and disk.numa_node not in {None, node.id}:
            yield Sign(
                "warning",
                f"the card is on node {node.id}, and {disk.name} with {places[disk.name].path} on node {disk.numa_node}",
                "Move the disk to a slot of the card's processor, or set gpu.model_cache_dir to a disk that is there.",
                ("grep . /sys/class/nvme/nvme*/numa_node", "lsblk -o NAME,MODEL,MOUNTPOINTS"),
            )


def _disk_placed(examination: Examination) -> bool:
    named = {place.disk for place in examination.places if place.purpose == "models"}
    known = any(disk.name in named and disk.numa_node is not None for disk in examination.disks)
    return _card_placed(examination) and known


def interleaving(examination: Examination) -> Iterator[Sign]:
    """Two sockets and one node: the BIOS, or a hypervisor, hides where memory is."""
    sockets = examination.firmware.sockets or 0
    if sockets < 2 or len(examination.nodes) != 1:
        return
    if examination.firmware.virtual:
        yield Sign(
            "note",
            f"the hypervisor shows {sockets} processors and one NUMA node",
            "Where a card is passed through, give the guest the host's nodes (virtual NUMA) in the hypervisor.",
        )
    else:
        yield Sign(
            "error",
            f"{sockets} processors and one NUMA node: the BIOS interleaves memory over all of them",
            "Disable Node Interleaving in the BIOS; each processor must then have a node.",
            ("lscpu | grep NUMA",),
        )


def clustering(examination: Examination) -> Iterator[Sign]:
    """More nodes than sockets: NPS2 and NPS4 of AMD, SNC of Intel."""
    sockets = examination.firmware.sockets or 0
    nodes = sum(1 for node in examination.nodes if node.cpus)
    if sockets and nodes > sockets:
        yield Sign(
            "note",
            f"each of {sockets} processor(s) is split into {nodes // sockets} nodes (NPS or SNC)",
            "Good only with pinning, which `numa.node: auto` does: see that the card's node alone has the memory that is needed, "
            "else set NPS1 or disable SNC in the BIOS.",
            ("numactl -H",),
        )


def empty_node(examination: Examination) -> Iterator[Sign]:
    """A node with CPUs and no memory."""
    needed = home(examination)
    for node in examination.nodes:
        if node.cpus and not node.memory_mb:
            yield Sign(
                "error" if node == needed else "warning",
                f"NUMA node {node.id} has {len(node.cpus)} CPUs and no memory",
                f"Put memory into the slots of processor {node.id}, or see in the BIOS why it is not counted.",
                ("dmidecode -t memory | grep -e Size -e Locator",),
            )


def mirroring(examination: Examination) -> Iterator[Sign]:
    """Less memory than is installed."""
    installed, visible = examination.firmware.installed_mb, sum(node.memory_mb for node in examination.nodes)
    if not installed or not visible or visible >= SHORT * installed:
        return
    if visible < MIRRORED * installed:
        yield Sign(
            as_far_as_real(examination, "warning"),
            f"{size(visible)} of {size(installed)} are visible: the BIOS keeps memory twice (mirroring)",
            "Set the memory's mode to one without mirroring (Optimizer, Independent) in the BIOS.",
            ("free -m",),
        )
    else:
        yield Sign(
            "note",
            f"{size(visible)} of {size(installed)} are visible: memory is spared, mirrored in part, or given to a device",
            "See memory mode and sparing in the BIOS.",
            ("dmidecode -t memory",),
        )


def memory(examination: Examination) -> Iterator[Sign]:
    """The node's memory, against numa.memory_mb."""
    node, need = home(examination), examination.needs.numa.memory_mb
    if node is None or not need:
        return
    if need > node.memory_mb * NOMINAL:
        yield Sign(
            "warning",
            f"numa.memory_mb is {need}, and node {node.id} has {node.memory_mb} MiB",
            f"Write `numa.memory_mb: {node.memory_mb}` or less, or null: what the node has; or put memory into the slots of "
            "that processor.",
            ("numactl -H",),
        )
    elif node.free_mb < need * LITTLE_FREE and not runs(examination):
        yield Sign(
            "note",
            f"node {node.id} has {size(node.free_mb)} free, and {size(need)} are meant for this daemon; page cache gives way",
            "See what is page cache (FilePages) there; the second command frees it.",
            ("numastat -m | grep -e MemFree -e FilePages", "sync; echo 1 > /proc/sys/vm/drop_caches"),
        )


def unequal(examination: Examination) -> Iterator[Sign]:
    """Processors with much more memory than others; one with none is told of elsewhere."""
    sizes = {node.id: node.memory_mb for node in examination.nodes if node.cpus and node.memory_mb}
    if sizes and min(sizes.values()) < SHORT * max(sizes.values()):
        have = ", ".join(f"node {number} {size(mb)}" for number, mb in sizes.items())
        yield Sign(
            "note",
            f"memory is not the same on all nodes: {have}",
            "Put the same modules into the same slots of each processor; see in the BIOS whether one of them was left out.",
            ("dmidecode -t memory | grep -e Size -e Locator",),
        )


BALANCING = OfSetting(
    "kernel.numa_balancing",
    "warning",
    bool,
    0,
    "the kernel balances NUMA memory by itself (kernel.numa_balancing is on)",
    "Switch it off; the second command keeps it off.",
    _several,
)
RECLAIM = OfSetting(
    "vm.zone_reclaim_mode",
    "warning",
    bool,
    0,
    "vm.zone_reclaim_mode is {value}",
    "Set it to 0; the second command keeps it.",
)

CHECKS = (
    Check(
        id="numa.asked",
        worst="error",
        looks_at="numa.node and numa.cpus, against the nodes that are there",
        verdict=asked,
        well="numa.node and numa.cpus can be had",
        applies=lambda e: e.needs.numa.node is not None and bool(e.cpus),
        why="The daemon does not start with a number that cannot be.",
    ),
    Check(
        id="numa.gpu-unknown",
        worst="warning",
        looks_at="whether the firmware tells the card's node",
        verdict=gpu_unknown,
        well=_node_known,
        applies=_card_on_several,
        why="The daemon cannot bind itself beside the card, and half of all copies may cross the processors' link.",
    ),
    Check(
        id="numa.gpu-node",
        worst="warning",
        looks_at="whether CPUs and memory that this process may use, and numa.node, are beside the card",
        verdict=gpu_node,
        well=lambda e: f"CPUs and memory of the card's node ({node.id if (node := beside(e)) else '?'}) may be used",
        applies=lambda e: _card_placed(e) and bool(e.cpus),
        why="Every copy to the card and every kernel launch crosses the link between the processors: less bandwidth, and "
        "tail latency.",
    ),
    Check(
        id="numa.disk-node",
        worst="warning",
        looks_at="whether the disk of the models is beside the card",
        verdict=disk_node,
        well="the models' disk is on the card's node",
        applies=_disk_placed,
        why="Weights cross the processors' link on their way to the card.",
    ),
    Check(
        id="numa.interleaving",
        worst="error",
        looks_at="NUMA nodes against processors",
        verdict=interleaving,
        well="each processor has its own NUMA node",
        applies=lambda e: (e.firmware.sockets or 0) > 1 and bool(e.nodes),
        why="Memory cannot be asked for beside the card: half of every buffer is on the other processor, and allocations that "
        "want a node fail while the GPU idles.",
    ),
    Check(
        id="numa.clustering",
        worst="note",
        looks_at="processors that are split into several nodes",
        verdict=clustering,
        well="no processor is split into several nodes",
        applies=lambda e: bool(e.firmware.sockets and e.nodes),
        why="A node has a half or a quarter of the processor's memory and channels: what is not pinned goes over its edges.",
    ),
    Check(
        id="numa.empty-node",
        worst="error",
        looks_at="nodes without memory",
        verdict=empty_node,
        well="every NUMA node with CPUs has memory",
        applies=lambda e: bool(e.nodes),
        why="All memory of those CPUs is remote, and binding to the node fails.",
    ),
    Check(
        id="numa.mirroring",
        worst="warning",
        looks_at="visible memory against what is installed",
        verdict=mirroring,
        well="all installed memory is visible",
        applies=lambda e: bool(e.firmware.installed_mb and e.nodes),
        why="Half of the memory that was paid for is not there for models and vectors.",
    ),
    Check(
        id="numa.balancing",
        worst="warning",
        looks_at="kernel.numa_balancing",
        verdict=BALANCING,
        well="the kernel leaves NUMA memory where it was put",
        applies=BALANCING.known,
        why="It unmaps pages to see who touches them, which shows as pauses, and may move what was put beside the card.",
    ),
    Check(
        id="numa.zone-reclaim",
        worst="warning",
        looks_at="vm.zone_reclaim_mode",
        verdict=RECLAIM,
        well="page cache may lie on any node",
        applies=RECLAIM.known,
        why="The kernel throws cached weights away, and stalls, though other nodes have room.",
    ),
    Check(
        id="numa.memory",
        worst="warning",
        looks_at="the node's memory, against numa.memory_mb",
        verdict=memory,
        well="the node has the memory that is meant for this daemon",
        applies=lambda e: bool(e.needs.numa.memory_mb) and home(e) is not None,
        why="What does not fit lies on another node, or is not given at all where the policy is strict.",
    ),
    Check(
        id="numa.unequal",
        worst="note",
        looks_at="memory of the nodes, against each other",
        verdict=unequal,
        well="all nodes have as much memory",
        applies=_several,
        why="The smaller node is full first; its memory channels that are empty, or filled unequally, cost bandwidth.",
    ),
)

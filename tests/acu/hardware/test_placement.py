"""acu.hardware.placement: where the daemon is to be, on recorded machines and on rooms made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from acu.config import NumaConfig
from acu.errors import StartRefused
from acu.hardware.numa import cpu_list, read_nodes
from acu.hardware.pin import look
from acu.hardware.placement import Placement, Room, memory_of, node_budget, place, ranges, spread
from acu.hardware.report import Gpu, Node
from tests.acu.hardware.recorded import machine_root

AUTO = NumaConfig()
EVEN, ODD = tuple(range(0, 32, 2)), tuple(range(1, 32, 2))  # the two nodes of the recorded machines with one card
A10G = Gpu(index=0, name="NVIDIA A10G", memory_mb=23_028, memory_free_mb=22_600, numa_node=0)
TWO = Room(
    nodes=(Node(0, (0, 1, 4, 5), 16_000, 9_000), Node(1, (2, 3, 6, 7), 16_000, 12_000)),
    cpus=tuple(range(8)),
    memory_nodes=(0, 1),
    cores=((0, 4), (1, 5), (2, 6), (3, 7)),
)
ONE = Room(nodes=(Node(0, (0, 1), 24_000, 18_000),), cpus=(0, 1), memory_nodes=(0,), cores=((0,), (1,)))


def recorded(name: str, numa: NumaConfig = AUTO) -> Room:
    root = machine_root(name)
    status = (root / "proc/self/status").read_text()
    allowed = next(line for line in status.splitlines() if line.startswith("Cpus_allowed_list"))
    return look(numa, root, cpu_list(allowed.partition(":")[2]))


def test_beside_an_a10g_cpus_and_memory_are_its_nodes() -> None:
    found = place(AUTO, recorded("a10g"), A10G)
    assert (found.node, found.cpus, found.short) == (0, EVEN, ())
    assert found.why == "NVIDIA A10G (GPU 0) lies there"


def test_two_cpus_beside_an_a10g_are_two_cores() -> None:
    numa = NumaConfig(cpus=2, memory_mb=16_384)
    found = place(numa, recorded("a10g", numa), A10G)
    assert (found.node, found.cpus, found.short) == (0, (0, 2), ())  # 16 and 18 are their siblings


def test_a_card_whose_cpus_this_process_may_not_use_gets_no_memory_across_either() -> None:
    found = place(AUTO, recorded("a10g-far"), replace(A10G, numa_node=1))
    assert (found.node, found.cpus) == (None, ())
    cpus, memory = found.short
    assert cpus.startswith(f"CPUs are not bound: node 1 has {ranges(ODD)}, and this process may use {ranges(EVEN)}; ")
    assert memory == "memory is not bound to node 1 either, so that it lies beside the CPUs"


@pytest.mark.parametrize(("index", "node", "cpus"), [(0, 0, "0-7,16-23"), (1, 1, "8-15,24-31")])
def test_of_two_cards_the_one_that_the_engines_use_decides(index: int, node: int, cpus: str) -> None:
    found = place(AUTO, recorded("two-gpus"), replace(A10G, index=index, numa_node=node))
    assert (found.node, ranges(found.cpus), found.short) == (node, cpus, ())


def test_on_one_node_there_is_nothing_to_bind() -> None:
    found = place(AUTO, recorded("none"))
    assert found == Placement(why="all memory is on one node")


def test_on_one_node_cpus_can_be_asked_for_and_the_node_too() -> None:
    numa = NumaConfig(cpus=3)
    assert place(numa, recorded("none", numa)).cpus == (0, 1, 2)
    asked = place(NumaConfig(node=0), ONE)
    assert (asked.node, asked.cpus, asked.why) == (0, (), "numa.node is 0")


def test_without_a_card_the_node_with_most_free_memory_is_taken() -> None:
    found = place(AUTO, TWO)
    assert (found.node, found.cpus) == (1, (2, 3, 6, 7))
    assert found.why == "of 2 nodes it has the most free memory (12000 MiB)"
    alike = replace(TWO, nodes=tuple(replace(node, free_mb=9_000) for node in TWO.nodes))
    assert place(AUTO, alike).node == 0


def test_without_a_card_only_nodes_count_that_this_process_may_use() -> None:
    assert place(AUTO, replace(TWO, memory_nodes=(0,))).node == 0
    narrow = place(AUTO, replace(TWO, cpus=(1, 5)))
    assert (narrow.node, narrow.cpus) == (0, ())  # it has no others: nothing is to be changed
    nowhere = place(AUTO, replace(TWO, cpus=(1, 5), memory_nodes=(1,)))
    assert (nowhere.node, nowhere.cpus) == (None, ())
    assert nowhere.why == "no node has both CPUs and memory that this process may use"
    bare = replace(TWO, nodes=tuple(replace(node, memory_mb=0, free_mb=0) for node in TWO.nodes))
    assert place(AUTO, bare).why == nowhere.why


def test_null_binds_nothing() -> None:
    assert place(NumaConfig(node=None), TWO, A10G) == Placement(why="numa.node is null")


def test_a_kernel_without_numa_binds_no_memory_and_cpus_on_demand() -> None:
    room = Room(nodes=(), cpus=(0, 1, 2, 3), memory_nodes=())
    assert place(AUTO, room).why == "this kernel knows no NUMA nodes"
    assert place(NumaConfig(cpus=2), room).cpus == (0, 1)


def test_a_card_whose_node_nobody_tells_is_found_by_its_cpus_or_said() -> None:
    unknown = replace(A10G, numa_node=None)
    assert place(AUTO, TWO, replace(unknown, cpus=(2, 3, 6, 7))).node == 1
    partly, all_of_them = replace(unknown, cpus=(2, 3, 8)), replace(unknown, cpus=tuple(range(8)))
    for vague in (unknown, partly, all_of_them, replace(unknown, numa_node=9)):
        found = place(AUTO, TWO, vague)
        assert (found.node, found.cpus) == (None, ())
        assert "set numa.node" in found.short[0]


def test_memory_that_the_cpuset_lacks_is_said_and_cpus_are_bound() -> None:
    found = place(AUTO, replace(TWO, memory_nodes=(1,)), A10G)
    assert (found.node, found.cpus) == (None, (0, 1, 4, 5))
    assert "that of node 0 is not among what this process may use (cpuset and policy leave 1)" in found.short[0]


def test_a_node_without_memory_or_without_cpus_is_used_for_what_it_has() -> None:
    bare = replace(TWO, nodes=(replace(TWO.nodes[0], memory_mb=0), TWO.nodes[1]))
    found = place(AUTO, bare, A10G)
    assert (found.node, found.cpus, found.short) == (None, (0, 1, 4, 5), ("memory is not bound: node 0 has none",))
    far = replace(TWO, nodes=(*TWO.nodes, Node(2, (), 64_000, 60_000)), memory_nodes=(0, 1, 2))
    asked = place(NumaConfig(node=2), far)
    assert (asked.node, asked.cpus) == (2, ())
    assert "node 2 has none" in asked.short[0]
    assert place(AUTO, far).node == 1


@pytest.mark.parametrize(
    ("numa", "room", "text"),
    [
        ({"node": 7}, ONE, "numa.node: 7 does not exist; there is 0"),
        ({"node": 7}, TWO, "numa.node: 7 does not exist; there are 0, 1"),
        (
            {"node": 0},
            Room((), (0,), ()),
            "numa.node: 0 does not exist; this kernel knows no NUMA nodes; set it to auto",
        ),
        (
            {"node": 1},
            replace(TWO, memory_nodes=(0,)),
            (
                "numa.node: the memory of node 1 is not among what this process may use (cpuset and policy leave 0); set it "
                "to auto, or give the unit or cgroup that node"
            ),
        ),
        ({"cpus": 3}, ONE, "numa.cpus: 3 CPUs are asked of node 0, which has 2; lower it, or set it to null"),
        (
            {"node": 1, "cpus": 5},
            TWO,
            "numa.cpus: 5 CPUs are asked of node 1, which has 4; lower it, or set it to null",
        ),
    ],
)
def test_a_number_that_cannot_be_is_refused(numa: dict[str, Any], room: Room, text: str) -> None:
    with pytest.raises(StartRefused) as refused:
        place(NumaConfig(**numa), room)
    assert refused.value.problems == (text,)


def test_fewer_cpus_than_asked_and_less_memory_are_said() -> None:
    found = place(NumaConfig(node=0, cpus=3, memory_mb=64_000), replace(TWO, cpus=(0, 4, 6)))
    assert (found.node, found.cpus) == (0, (0, 4))
    assert found.short == (
        "numa.cpus is 3, and this process may use 2 of node 0 (0,4)",
        "numa.memory_mb is 64000, and node 0 has 16000 MiB",
    )
    assert place(NumaConfig(node=0, memory_mb=16_384), TWO).short == ()  # what is sold as 16 GiB


def test_cores_come_before_siblings() -> None:
    cores = ((0, 4), (1, 5), (2, 6), (3, 7))
    assert spread(range(8), cores) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert spread((0, 1, 4, 5, 6), cores) == (0, 1, 6, 4, 5)  # 6 is the only one left of its core
    assert spread((5, 3), ()) == (3, 5)


def test_numbers_are_written_as_the_kernel_writes_them() -> None:
    assert ranges(()) == ""
    assert ranges((8, 2, 0, 1, 2, 4)) == "0-2,4,8"


@given(st.data())
def test_what_the_process_has_is_never_widened(data: st.DataObject) -> None:
    cpus = tuple(sorted(data.draw(st.sets(st.integers(0, 7), min_size=1))))
    memory = tuple(sorted(data.draw(st.sets(st.integers(0, 1), min_size=1))))
    room = replace(TWO, cpus=cpus, memory_nodes=memory)
    numa = NumaConfig(
        node=data.draw(st.sampled_from(["auto", None, 0, 1])), cpus=data.draw(st.sampled_from([None, 1, 2, 4]))
    )
    gpu = data.draw(st.sampled_from([None, A10G, replace(A10G, numa_node=1)]))
    try:
        found = place(numa, room, gpu)
    except StartRefused:
        return
    assert set(found.cpus) <= set(cpus)
    assert found.node is None or found.node in memory
    if numa.node is not None and numa.cpus is not None and found.cpus:
        assert len(found.cpus) <= numa.cpus


def test_the_node_is_divided_among_engines_and_hot() -> None:
    budget = node_budget(16_384, 3_000, 12_288)
    assert (budget.left_mb, budget.spare_mb) == (13_384, 1_096)
    over = node_budget(8_000, 9_000, 1_000)
    assert (over.left_mb, over.spare_mb) == (0, -2_000)


def test_what_is_meant_of_a_node_is_what_is_asked_and_there() -> None:
    node = read_nodes(machine_root("a10g"))[0]
    assert memory_of(NumaConfig(memory_mb=16_384), node) == 16_384
    assert memory_of(NumaConfig(memory_mb=99_999), node) == node.memory_mb == 64_027
    assert memory_of(AUTO, node) == 64_027
    assert memory_of(AUTO, None) is None

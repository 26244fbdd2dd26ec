"""acu.hardware.numa: the kernel's lists and nodes, from trees as sysfs shows them, and from this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acu.hardware.numa import allowed_cpus, allowed_nodes, available_mb, cpu_list, node_of_device, read_nodes
from acu.hardware.report import Node
from tests.acu.hardware.recorded import machine_root


def make_node(root: Path, number: int, cpus: str, total_kb: int, free_kb: int, distances: str = "10 21") -> Path:
    folder = root / f"sys/devices/system/node/node{number}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{cpus}\n")
    (folder / "distance").write_text(f"{distances}\n")
    (folder / "meminfo").write_text(
        f"Node {number} MemTotal:       {total_kb} kB\n"
        f"Node {number} MemFree:        {free_kb} kB\n"
        f"Node {number} HugePages_Total:     0\n"
    )
    return folder


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("\n", ()),
        ("0\n", (0,)),
        ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)),
        ("8,0-1", (0, 1, 8)),
        ("0-14:2/4", (0, 1, 4, 5, 8, 9, 12, 13)),
        ("0-5:3/4", (0, 1, 2, 4, 5)),
    ],
)
def test_a_list_is_read_as_the_kernel_writes_it(text: str, numbers: tuple[int, ...]) -> None:
    assert cpu_list(text) == numbers


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "0-3:0/0", "1;2"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        cpu_list(text)


@given(st.sets(st.integers(0, 300)))
def test_every_set_survives_being_written_as_ranges(numbers: set[int]) -> None:
    ordered = sorted(numbers)
    ranges: list[list[int]] = []
    for number in ordered:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    assert cpu_list(",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in ranges)) == tuple(ordered)


def test_the_nodes_come_by_id_with_their_memory_in_mib(tmp_path: Path) -> None:
    make_node(tmp_path, 10, "", 2048, 1024, "")
    make_node(tmp_path, 1, "2-3,6-7", 16_777_216, 1_048_576, "21 10")
    make_node(tmp_path, 0, "0-1,4-5", 16_384_000, 8_192_000)
    (tmp_path / "sys/devices/system/node/online").write_text("0-1\n")
    assert read_nodes(tmp_path) == (
        Node(id=0, cpus=(0, 1, 4, 5), memory_mb=16_000, free_mb=8_000, distances=(10, 21)),
        Node(id=1, cpus=(2, 3, 6, 7), memory_mb=16_384, free_mb=1_024, distances=(21, 10)),
        Node(id=10, cpus=(), memory_mb=2, free_mb=1),
    )


def test_a_kernel_without_numa_has_no_nodes_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    assert read_nodes(tmp_path) == ()
    (make_node(tmp_path, 0, "0", 4096, 1024) / "cpulist").write_text("?")
    make_node(tmp_path, 1, "1", 4096, 1024)
    assert [node.id for node in read_nodes(tmp_path)] == [1]


def test_what_can_be_had_of_a_node_is_free_or_page_cache(tmp_path: Path) -> None:
    folder = make_node(tmp_path, 0, "0", 16_384_000, 1_024_000)
    assert available_mb(0, tmp_path) == 1_000
    with (folder / "meminfo").open("a") as meminfo:
        meminfo.write(
            "Node 0 Active(file):  512000 kB\nNode 0 Inactive(file):  256000 kB\nNode 0 Inactive(anon): 99999 kB\n"
        )
        meminfo.write("Node 0 SReclaimable:  51200 kB\nNode 0 FilePages:  9999999 kB\n")
    assert available_mb(0, tmp_path) == 1_800
    assert available_mb(1, tmp_path) == 0


def test_this_machines_nodes_hold_every_cpu_of_this_process() -> None:
    nodes = read_nodes()
    if not nodes:
        pytest.skip("this kernel has no NUMA")
    assert os.sched_getaffinity(0) <= {cpu for node in nodes for cpu in node.cpus}
    assert all(0 <= node.free_mb <= node.memory_mb for node in nodes)


def test_what_a_process_may_use_is_its_affinity_and_its_cpuset(tmp_path: Path) -> None:
    assert allowed_cpus() == tuple(sorted(os.sched_getaffinity(0)))
    assert set(allowed_nodes()) >= {node.id for node in read_nodes() if node.memory_mb}
    assert allowed_cpus(machine_root("a10g-far")) == tuple(range(0, 32, 2))
    assert allowed_nodes(machine_root("a10g-far")) == (0, 1)
    assert (allowed_cpus(tmp_path), allowed_nodes(tmp_path)) == ((), ())


@pytest.mark.parametrize("bdf", ["0000:3b:00.0", "00000000:3B:00.0", "3b:00.0"])
def test_a_devices_node_is_found_by_the_kernels_address_and_by_nvmls(tmp_path: Path, bdf: str) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    assert node_of_device(bdf, tmp_path) == 1


def test_a_device_of_which_nothing_is_told_has_no_node(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    assert node_of_device("0000:3b:00.0", tmp_path) is None
    (device / "numa_node").write_text("-1\n")
    assert node_of_device("0000:3b:00.0", tmp_path) is None
    assert node_of_device("0000:3c:00.0", tmp_path) is None
    assert node_of_device("", tmp_path) is None
    assert node_of_device("../../../etc", tmp_path) is None

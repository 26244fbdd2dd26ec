"""acu.hardware.locality: what is seen of recorded processes on two nodes, what is moved, and of what is warned."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from acu.hardware import locality
from acu.hardware.locality import TRY_AGAIN_S, Locality, processes_of
from acu.hardware.numa import read_nodes
from acu.hardware.pin import Bound, Policy
from agentflow.engine.protocol import EngineInfo
from agentflow.status import EngineStatus, ModelStatus, ServiceStatus
from tests.acu.hardware.test_numa import make_node

BOUND = Bound(node=1, mode="preferred", cpus=(2, 3), nodes=(0, 1), why="numa.node is 1")
GIB_PAGES = 262_144  # of 4 KiB


@dataclass
class Box:
    """Two nodes and processes, as files; and a kernel that moves pages between them."""

    root: Path
    stay: int = 0
    refuses: bool = False
    moved: list[int] = field(default_factory=list)

    def put(self, pid: int, near: int, far: int, files: int = 0) -> None:
        """Process `pid` has that many pages of its own on node 1 and on node 0, and of files on node 0."""
        folder = self.root / f"proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        places = " ".join(f"N{node}={count}" for node, count in ((0, far), (1, near)) if count)
        (folder / "numa_maps").write_text(
            f"7f1c00000000 prefer:1 anon={near + far} dirty={near + far} {places} kernelpagesize_kB=4\n"
            f"7f1d00000000 prefer:1 file=/usr/lib/libtorch_cpu.so mapped={files} N0={files} kernelpagesize_kB=4\n"
        )

    def free(self, mib: int, cache: int = 0) -> None:
        """That much is free on node 1, and that much is page cache."""
        (self.root / "sys/devices/system/node/node1/meminfo").write_text(
            f"Node 1 MemTotal: 16777216 kB\nNode 1 MemFree: {mib << 10} kB\n"
            f"Node 1 Active(file): {cache << 9} kB\nNode 1 Inactive(file): {cache << 9} kB\n"
        )

    def policy(self) -> Policy:
        """The library's calls, as pin.Policy makes them."""
        return Policy(self)

    def migrate_pages(self, pid: int, *_: object) -> int:
        """What libnuma exports."""
        if self.refuses:
            return -1
        self.moved.append(pid)
        pages = locality.parse((self.root / f"proc/{pid}/numa_maps").read_text())
        all_of_it = sum(pages.own.values()) // 4096
        self.put(pid, all_of_it - self.stay, self.stay)
        return self.stay


@pytest.fixture
def box(tmp_path: Path) -> Box:
    make_node(tmp_path, 0, "0-1", 16_777_216, 8_388_608)
    make_node(tmp_path, 1, "2-3", 16_777_216, 8_388_608)
    return Box(tmp_path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_processs_share_is_told_and_files_are_told_apart(box: Box) -> None:
    box.put(100, near=9_900, far=100, files=5_120)
    box.put(200, near=GIB_PAGES, far=0)
    box.put(201, near=GIB_PAGES, far=0)
    seen = Locality(BOUND, box.root, box.policy)
    assert seen.shares == {}
    seen.look({"daemon": (100,), "large/0": (200, 201), "gone/0": (300,), "small/0": ()})
    assert seen.shares == {"daemon": 0.99, "large/0": 1.0}
    told = seen.told()
    assert (told["node"], told["policy"], told["cpus"], told["problems"]) == (1, "preferred", [2, 3], [])
    assert told["processes"]["daemon"] == {
        "share": 0.99,
        "own_mb": 39,
        "elsewhere_mb": 0,
        "files_mb": 20,
        "files_share": 0.0,
    }
    assert told["processes"]["large/0"]["own_mb"] == 2048
    assert box.moved == []


def test_pages_elsewhere_are_moved_where_there_is_room(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    box.put(100, near=GIB_PAGES, far=GIB_PAGES)
    seen = Locality(BOUND, box.root, box.policy)
    with caplog.at_level(logging.INFO, "acu.numa"):
        seen.look({"daemon": (100,)})
    assert (box.moved, seen.shares) == ([100], {"daemon": 1.0})
    (record,) = caplog.records
    assert (record.getMessage(), record.__dict__["mb"]) == ("memory moved", 1024)


def test_a_full_node_is_left_alone_and_told_once_with_what_to_do(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    box.put(100, near=GIB_PAGES, far=GIB_PAGES)
    box.free(1200)  # less than the gibibyte and what is to stay free
    seen = Locality(BOUND, box.root, box.policy)
    seen.look({"daemon": (100,)})
    seen.look({"daemon": (100,)})
    assert (box.moved, seen.shares) == ([], {"daemon": 0.5})
    (record,) = caplog.records
    assert record.getMessage() == "memory lies on another NUMA node"
    assert (record.__dict__["of"], record.__dict__["there"], record.__dict__["elsewhere_mb"]) == (
        "daemon",
        "50.0%",
        1024,
    )
    assert record.__dict__["then"].endswith("migratepages 100 0 1")


def test_once_there_is_room_it_is_moved_and_a_later_lack_is_told_again(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    lack = "memory lies on another NUMA node"
    box.put(100, near=GIB_PAGES, far=GIB_PAGES)
    box.free(100)
    seen = Locality(BOUND, box.root, box.policy)
    seen.look({"daemon": (100,)})
    box.free(8_000)
    seen.look({"daemon": (100,)})
    assert (box.moved, seen.shares, warnings(caplog)) == ([100], {"daemon": 1.0}, [lack])
    box.put(100, near=GIB_PAGES, far=GIB_PAGES)
    seen.look({"daemon": (100,)})  # what is taken meanwhile is moved too
    assert (box.moved, seen.shares, warnings(caplog)) == ([100, 100], {"daemon": 1.0}, [lack])
    box.put(100, near=GIB_PAGES, far=GIB_PAGES)
    box.free(100)
    seen.look({"daemon": (100,)})
    assert (box.moved, seen.shares, warnings(caplog)) == ([100, 100], {"daemon": 0.5}, [lack, lack])


def test_page_cache_is_room_too(box: Box) -> None:
    box.put(100, near=GIB_PAGES, far=GIB_PAGES)
    box.free(100, cache=2_000)
    seen = Locality(BOUND, box.root, box.policy)
    seen.look({"daemon": (100,)})
    assert (box.moved, seen.shares) == ([100], {"daemon": 1.0})


def test_a_move_in_vain_is_tried_again_after_its_time(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(locality.time, "monotonic", lambda: now)
    box.stay = GIB_PAGES // 2  # what a driver has pinned
    box.put(100, near=GIB_PAGES, far=GIB_PAGES)
    seen = Locality(BOUND, box.root, box.policy)
    seen.look({"daemon": (100,)})
    now += TRY_AGAIN_S - 1
    seen.look({"daemon": (100,)})
    assert box.moved == [100]
    now += 1
    seen.look({"daemon": (100,)})
    assert box.moved == [100, 100]
    assert seen.shares == {"daemon": 0.75}


def test_a_move_that_is_refused_is_told(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    box.put(100, near=0, far=GIB_PAGES)
    box.refuses = True
    seen = Locality(BOUND, box.root, box.policy)
    seen.look({"daemon": (100,)})
    assert seen.shares == {"daemon": 0.0}
    assert warnings(caplog) == ["memory was not moved", "memory lies on another NUMA node"]


def test_what_could_not_be_bound_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    seen = Locality(Bound(cpus=(0, 1), nodes=(0, 1), why="it is so", problems=("libnuma is missing", "no CPUs")))
    with caplog.at_level(logging.INFO, "acu.numa"):
        seen.log_binding()
    first, *others = caplog.records
    assert first.getMessage() == "bound to no NUMA node"
    assert first.__dict__["how"] == "memory not bound (it is so), CPUs 0-1"
    assert [record.__dict__["why"] for record in others] == ["libnuma is missing", "no CPUs"]
    assert seen.told()["problems"] == ["libnuma is missing", "no CPUs"]
    assert (seen.shares, seen.told()["processes"]) == ({}, {})


def service(*, ready: bool) -> ServiceStatus:
    started = EngineInfo("vllm", 2048, 4, pids=(os.getpid(),))
    engines = (EngineStatus("large/0", "ready", info=started), EngineStatus("large/1", "starting"))
    model = ModelStatus("large", (), "chat", ready, 0, engines, None, 0, 0)
    return ServiceStatus(ready, None, False, 0, 0, 0, (model,))


def test_engines_with_processes_are_looked_at_by_their_ids() -> None:
    assert processes_of(service(ready=True)) == {"large/0": (os.getpid(),)}


async def test_the_watch_waits_for_engines_and_looks_at_real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = read_nodes()
    if not nodes:
        pytest.skip("this kernel has no NUMA")
    monkeypatch.setattr(locality, "ASK_S", 0.0)
    asked = 0

    def status() -> ServiceStatus:
        nonlocal asked
        asked += 1
        return service(ready=asked > 2)

    seen = Locality(Bound(node=nodes[0].id, mode="preferred", nodes=tuple(node.id for node in nodes)))
    watch = asyncio.ensure_future(seen.watch(status))
    while not seen.shares:
        await asyncio.sleep(0.01)
        assert not watch.done()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert asked == 4  # three times until it was ready, and for the pids
    assert seen.shares.keys() == {"daemon", "large/0"}
    if len(nodes) == 1:
        assert seen.shares == {"daemon": 1.0, "large/0": 1.0}


async def test_where_nothing_is_bound_nothing_is_watched() -> None:
    await Locality(Bound(why="all memory is on one node")).watch(lambda: service(ready=True))

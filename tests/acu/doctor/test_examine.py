"""acu.doctor.examine: recorded machines in full, this machine for real, and whatever cannot be read told instead of raised."""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from acu.config import AcuConfig, GpuConfig, NetworkConfig, NumaConfig
from acu.doctor.examination import (
    FORM,
    Abilities,
    Address,
    Cgroups,
    Clock,
    Disk,
    Examination,
    Firmware,
    Kernel,
    Limits,
    ModelFiles,
    Needs,
    ReadTest,
    Versions,
)
from acu.doctor.examine import examine, needs_of, own_processes, read_all_cards
from acu.doctor.sight import Sight
from acu.errors import StartRefused
from acu.hardware import Report, gpu_present
from acu.hardware.report import Driver, Node
from agentflow.config import ModelConfig
from dataplane.config import DataPlaneConfig
from tests.acu.hardware.recorded import NAMES, machine_root, recorded_nvml
from tests.acu.hardware.test_cards import A10G, NODES

RECORDED_AT = dt.datetime(2026, 11, 30, 21, 0, tzinfo=dt.UTC)
EVEN, ODD = tuple(range(0, 32, 2)), tuple(range(1, 32, 2))
FIRST, SECOND = (*range(8), *range(16, 24)), (*range(8, 16), *range(24, 32))
ALL = tuple(range(32))
V2 = ("cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma")
PROGRAMS = {
    "ip": "/usr/sbin/ip",
    "nft": "/usr/sbin/nft",
    "iptables": None,
    "nvidia-smi": "/usr/bin/nvidia-smi",
    "nvidia-cuda-mps-control": "/usr/bin/nvidia-cuda-mps-control",
    "nvidia-modprobe": "/usr/bin/nvidia-modprobe",
    "systemctl": "/usr/bin/systemctl",
    "findmnt": "/usr/bin/findmnt",
}
SETTINGS = {
    "kernel.numa_balancing": 0,
    "net.core.somaxconn": 4096,
    "net.ipv4.tcp_max_syn_backlog": 4096,
    "vm.max_map_count": 262_144,
    "vm.overcommit_memory": 0,
    "vm.swappiness": 10,
    "vm.zone_reclaim_mode": 0,
}
EMBED = ModelFiles("embed", "all-minilm-l6-v2")
DELL_CPU = "Intel(R) Xeon(R) Silver 4309Y CPU @ 2.80GHz"
DELL_DISK = Disk("nvme1n1", "Dell Ent NVMe P5600 MU U.2 1.6TB", "nvme", 1_526_185, "none", 128, 0)
ASKED = Needs(engines_on_gpu=1, hot_mb=12_288, numa=NumaConfig(memory_mb=16_384), connections=4096, engines=1)
CARD_0 = replace(
    A10G,
    bdf="0000:31:00.0",
    cpus=FIRST,
    memory_free_mb=17_428,
    compute_mode="Exclusive_Process",
    processes=((2302, 30), (31337, 5120)),
    clocks_held=0,
)
CARD_1 = replace(
    A10G,
    index=1,
    uuid="GPU-b81e0f5a-1c47-2d93-f6a0-71d5e3c4a982",
    bdf="0000:b1:00.0",
    numa_node=1,
    cpus=SECOND,
    pcie=(1, 16),
    performance=8,
)
FAR = replace(A10G, bdf="0000:ca:00.0", numa_node=1, cpus=ODD)
FEATURES = ("avx2", "avx512f")

DELL = Examination(
    at="2026-11-30T21:00:00+00:00",
    machine=Report(DELL_CPU, 32, 16, FEATURES, 134_770_425_856, 128_560_861_184, (A10G,)),
    versions=Versions("0.1.0", "3.12.3", "0.32.0", "2.13.0+cu128", "12.8", "2.39"),
    needs=ASKED,
    driver=Driver("570.133.20", "12.8", mps=False, devices=NODES),
    cpus=ALL,
    memory_nodes=(0, 1),
    nodes=(Node(0, EVEN, 64_027, 57_344, (10, 20)), Node(1, ODD, 64_499, 60_416, (20, 10))),
    disks=(DELL_DISK,),
    firmware=Firmware("Dell Inc.", "PowerEdge R750xa", "1.15.2 (09/12/2024)", None, 131_072, 2),
    cgroups=Cgroups("v2", V2, writable=True),
    abilities=Abilities(root=True, systemd=True, namespaces=True, programs=PROGRAMS),
    kernel=Kernel("6.8.0-64-generic", SETTINGS, "madvise", "passthrough", "performance", 8191),
    models=(ModelFiles("large", "qwen2.5-7b-instruct-awq"), EMBED),
)
EXPECTED = {
    "a10g": DELL,
    "a10g-far": replace(
        DELL,
        machine=Report(DELL_CPU, 16, 8, FEATURES, 134_770_425_856, 128_560_861_184, (FAR,)),
        cpus=EVEN,
    ),
    "two-gpus": replace(
        DELL,
        machine=Report(
            "Intel(R) Xeon(R) Gold 5315Y CPU @ 3.20GHz",
            32,
            16,
            FEATURES,
            270_075_523_072,
            243_779_491_840,
            (CARD_0, CARD_1),
        ),
        driver=Driver("580.95.05", "13.0", mps=True, devices=(*NODES[:4], "nvidia1", NODES[4])),
        own=(2302,),  # the server of MPS
        nodes=(Node(0, FIRST, 128_553, 94_208, (10, 20)), Node(1, SECOND, 129_010, 117_760, (20, 10))),
        disks=(Disk("nvme1n1", "SAMSUNG MZQL21T9HCJR-00A07", "nvme", 1_831_420, "none", 128, 1),),
        firmware=Firmware("Supermicro", "SYS-220GP-TNR", "2.1 (08/30/2024)", None, 262_144, 2),
        kernel=Kernel("6.8.0-64-generic", SETTINGS, "madvise", "translated", "performance", 8191),
    ),
    "none": replace(
        DELL,
        machine=Report("Intel(R) Xeon(R) E-2336 CPU @ 2.90GHz", 12, 6, FEATURES, 33_475_624_960, 28_646_864_896),
        needs=Needs(hot_mb=2048, connections=4096, engines=1),
        models=(ModelFiles("large", "smollm2-135m-instruct"), EMBED),
        driver=Driver(),
        cpus=tuple(range(12)),
        memory_nodes=(0,),
        nodes=(Node(0, tuple(range(12)), 31_924, 23_552, (10,)),),
        disks=(Disk("sda", "Micron_5300_MTFD", "ssd", 457_862, "mq-deadline", 128),),
        firmware=Firmware("Lenovo", "ThinkSystem SR250 V2", "KQE120J-2.40 (03/28/2024)", None, 32_768, 1),
        cgroups=Cgroups("v2", V2, writable=False),
        abilities=Abilities(
            systemd=True,
            programs=dict.fromkeys(PROGRAMS)
            | {"ip": "/usr/sbin/ip", "systemctl": "/usr/bin/systemctl", "findmnt": "/usr/bin/findmnt"},
        ),
        kernel=Kernel(
            "6.8.0-64-generic",
            SETTINGS | {"vm.swappiness": 60, "vm.max_map_count": 65_530, "net.ipv4.tcp_max_syn_backlog": 1024},
            "madvise",
            None,
            "performance",
            8191,
        ),
    ),
}
OWN = ("versions", "limits", "places")  # this process's, or with this machine's space


def recorded_config(name: str) -> AcuConfig:
    """What a person would configure there: a 7B model in AWQ where there is a card, folders on the fast disk."""
    home = Path("/home/acu" if name == "none" else "/var/lib/acu")
    chat = "smollm2-135m-instruct" if name == "none" else "qwen2.5-7b-instruct-awq"
    return AcuConfig(
        gpu=GpuConfig(model_cache_dir=str(home / "models")),
        numa=NumaConfig(memory_mb=None if name == "none" else 16_384),
        models={"large": ModelConfig(model=chat), "embed": ModelConfig(model="all-minilm-l6-v2")},
        data_plane=DataPlaneConfig(path=str(home / "data"), hot_layer_mem_mb=2048 if name == "none" else 12_288),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_machine_is_seen_in_full(name: str) -> None:
    found = examine(recorded_config(name), machine_root(name), recorded_nvml(name), lambda: RECORDED_AT)
    expected = EXPECTED[name]
    for field in Examination.__struct_fields__:
        if field not in OWN:
            assert getattr(found, field) == getattr(expected, field), field
    folder, filesystem, disk = ("/home/acu", "ext4", "sda") if name == "none" else ("/var/lib/acu", "xfs", "nvme1n1")
    assert [(place.purpose, place.path, place.filesystem, place.disk) for place in found.places] == [
        ("models", f"{folder}/models", filesystem, disk),
        ("data", f"{folder}/data", filesystem, disk),
        ("cold", f"{folder}/data-cold", filesystem, disk),
    ]
    assert (found.reads, found.addresses, found.clock, found.unread) == ((), (), Clock(), ())


@pytest.mark.parametrize("name", NAMES)
def test_an_examination_survives_json(name: str) -> None:
    found = replace(
        EXPECTED[name],
        reads=(ReadTest("/var/lib/acu/models/a.safetensors", 256.0, 0.098, direct=True, weights_mb=5306),),
        limits=Limits((1024, 1_048_576), (None, None), (None, 5)),
        clock=Clock(synchronised=True, error_ms=0.412),
        addresses=(Address("127.0.0.1:8228", "nginx (pid 7)", answers=False, detail="no ACU's answer: HTTP 404"),),
        unread=("/proc/x: Permission denied",),
    )
    assert found.form == FORM
    assert msgspec.json.decode(msgspec.json.encode(found), type=Examination) == found


def test_this_machine_is_seen_as_it_is(tmp_path: Path) -> None:
    config = AcuConfig(
        network=NetworkConfig(unix_socket=str(tmp_path / "acu.sock"), bind_addr=None),
        gpu=GpuConfig(model_cache_dir=str(tmp_path / "models")),
        data_plane=DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=128),
    )
    before = dt.datetime.now(dt.UTC)
    found = examine(config)
    assert before - dt.timedelta(seconds=1) <= dt.datetime.fromisoformat(found.at) <= dt.datetime.now(dt.UTC)
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert found.machine.cpus == len(found.cpus)
    assert (found.machine.gpus != ()) is (gpu_present() and not found.driver.problem)
    assert found.machine.memory_total <= psutil.virtual_memory().total
    assert found.versions.python == platform.python_version()
    assert found.kernel.release == platform.release()
    assert found.abilities.root is (os.geteuid() == 0)
    assert [(place.purpose, place.exists, place.writable) for place in found.places] == [
        ("models", False, True),
        ("data", False, True),
        ("cold", False, True),
    ]
    usage = psutil.disk_usage(str(tmp_path))
    assert found.places[0].size_mb == usage.total >> 20
    assert {disk.name for disk in found.disks} == {place.disk for place in found.places if place.disk}
    assert [(one.address, one.held_by, one.answers) for one in found.addresses] == [
        (f"unix:{tmp_path}/acu.sock", None, False)
    ]
    assert (found.reads, found.needs.weights_mb, found.needs.hot_mb) == ((), 0, 128)
    assert list(tmp_path.iterdir()) == []  # nothing is made


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from acu.config import AcuConfig, GpuConfig, NetworkConfig; from acu.doctor.examine import examine; "
        "from dataplane.config import DataPlaneConfig; "
        "examine(AcuConfig(network=NetworkConfig(unix_socket=None, bind_addr=None), "
        "gpu=GpuConfig(model_cache_dir='/nonexistent'), data_plane=DataPlaneConfig(path='/nonexistent/data'))); "
        "print(sorted({'torch', 'vllm', 'rich', 'numa', 'numpy'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_box_of_nothing_is_seen_too(tmp_path: Path) -> None:
    found = examine(recorded_config("none"), tmp_path, None, lambda: RECORDED_AT)
    assert found.machine == Report("unknown", 0, 0, (), 0, 0)
    assert (found.nodes, found.disks, found.firmware, found.kernel) == ((), (), Firmware(), Kernel())
    assert found.cgroups == Cgroups()
    assert [place.exists for place in found.places] == [False, False, False]
    assert any(sentence.startswith("CPUs and memory: ") for sentence in found.unread)


def test_files_that_do_not_open_are_told_and_never_raised(tmp_path: Path) -> None:
    for path in (
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/self/mountinfo",
        "proc/self/status",
        "proc/sys/vm/swappiness",
        "sys/class/dmi/id/sys_vendor",
        "sys/devices/system/node/node0/meminfo",
        "sys/devices/system/cpu/cpu0/topology/physical_package_id",
        "sys/kernel/mm/transparent_hugepage/enabled",
    ):
        (tmp_path / path).mkdir(parents=True)  # a folder: root cannot read it as a file either
    found = examine(recorded_config("none"), tmp_path, None, lambda: RECORDED_AT)
    assert {
        "/proc/sys/vm/swappiness: Is a directory",
        "/sys/class/dmi/id/sys_vendor: Is a directory",
        "/proc/self/mountinfo: Is a directory",
        "CPUs and memory: Is a directory",
    } <= set(found.unread)
    assert found.kernel.settings == {}


def test_files_of_garbage_are_told_and_never_raised(tmp_path: Path) -> None:
    for path in (
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/self/mountinfo",
        "proc/self/status",
        "proc/sys/vm/swappiness",
        "sys/devices/system/node/node0/meminfo",
        "sys/devices/system/node/node0/cpulist",
        "sys/devices/system/edac/mc/mc0/dimm0/size",
        "sys/fs/cgroup/cgroup.controllers",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"\xff\x00 Uid: CapEff: : - 1:2 / rw\n\n:::\n")
    (tmp_path / "proc/self/status").write_text("Uid:\nCapEff: none\n")
    found = examine(recorded_config("none"), tmp_path, None, lambda: RECORDED_AT)
    assert found.nodes == ()
    assert found.abilities == Abilities()
    assert any(sentence.startswith("/proc/sys/vm/swappiness: ") for sentence in found.unread)
    assert any(sentence.startswith("abilities: ") for sentence in found.unread)


def test_an_nvml_that_always_fails_is_a_problem_and_no_exception() -> None:
    nvml = recorded_nvml("two-gpus")
    nvml.failing["*"] = "NVML_ERROR_UNKNOWN"
    found = examine(recorded_config("two-gpus"), machine_root("two-gpus"), nvml, lambda: RECORDED_AT)
    assert found.machine.gpus == ()
    assert found.driver.problem == "NVML does not start: Unknown Error"
    assert (found.driver.version, found.driver.mps) == ("580.95.05", True)
    assert found.nodes == EXPECTED["two-gpus"].nodes
    assert found.needs.engines_on_gpu == 0


def test_a_card_without_a_driver_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030200\n")
    gpus, driver = read_all_cards(None, Sight(tmp_path))
    assert gpus == ()
    assert driver.problem == "the card at 0000:17:00.0 has no driver: its kernel module is not loaded"
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("570.133.20\n")
    assert read_all_cards(None, Sight(tmp_path))[1].problem == "the card at 0000:17:00.0 has no device file"
    (folder / "class").write_text("0x040300\n")  # its sound device
    assert read_all_cards(None, Sight(tmp_path))[1].problem == ""


def test_engines_are_counted_by_what_computes_on_the_card() -> None:
    models = {
        "large": ModelConfig(model="a"),
        "small": ModelConfig(model="b"),
        "embed": ModelConfig(model="c"),
        "wide": ModelConfig(model="d", role="embed", engine="vllm"),
        "played": ModelConfig(model="e", engine="scripted"),
    }
    config = AcuConfig(models=models, network=NetworkConfig(namespace="acu3", max_connections=77))
    needs = needs_of(config, (A10G,), 500)
    assert (needs.engines_on_gpu, needs.weights_mb, needs.connections, needs.namespace) == (3, 500, 77, "acu3")
    assert needs_of(config, (), 0).engines_on_gpu == 0


def test_processes_that_descend_from_an_acu_that_answers_are_its_own(tmp_path: Path) -> None:
    for pid, parent, name in ((10, 1, "acu"), (20, 10, "python"), (30, 20, "VLLM::EngineCor"), (40, 1, "ollama")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text(f"Name:\t{name}\nPPid:\t{parent}\n")
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
    (tmp_path / "proc/50").mkdir()
    (tmp_path / "proc/50/comm").write_text("nvidia-cuda-mps-server\n")
    card = replace(A10G, processes=((30, 5000), (40, 100), (50, 30), (60, 1)))
    answering = (Address("unix:/a", answers=True, pids=(10,)),)
    assert own_processes((card,), answering, Sight(tmp_path)) == (30, 50)
    assert own_processes((card,), (), Sight(tmp_path)) == (50,)


def test_why_a_start_would_be_refused_is_seen(tmp_path: Path) -> None:
    def start(_: AcuConfig) -> None:
        raise StartRefused("data_plane.path: / is the root of all files")

    config = AcuConfig(
        network=NetworkConfig(unix_socket=None, bind_addr=None),
        gpu=GpuConfig(model_cache_dir=str(tmp_path / "models")),
        data_plane=DataPlaneConfig(path="/"),
    )
    assert examine(config, start=start).refused == "data_plane.path: / is the root of all files"
    assert examine(config).refused == ""


@contextlib.contextmanager
def silent_mount(point: Path) -> Iterator[None]:
    """A file system whose server never answers (FUSE): whoever asks it for anything waits."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        if libc.mount(b"nobody", os.fsencode(point), b"fuse", 0, options) != 0:
            pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        os.close(server)
        libc.umount2(os.fsencode(point), 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_disk_that_never_answers_is_told_and_holds_nothing_up(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    before = set(psutil.Process().children())
    with silent_mount(dead):
        found = examine(
            AcuConfig(
                network=NetworkConfig(unix_socket=None, bind_addr=None),
                gpu=GpuConfig(model_cache_dir=str(dead / "models")),
                models={"large": ModelConfig(model="qwen2.5-7b-instruct-awq")},
                data_plane=DataPlaneConfig(path=str(tmp_path / "data")),
            )
        )
        assert set(psutil.Process().children()) == before
    assert next((place.answers, place.source) for place in found.places) == (False, "nobody")
    assert [place.answers for place in found.places] == [False, True, True]
    assert [(model.problem, model.path) for model in found.models] == [("its disk does not answer", f"{dead}/models")]
    assert f"{dead}/models: it took too long" in found.unread
    assert found.machine.memory_total > 0

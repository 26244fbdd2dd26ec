"""Boxes for the verdicts: one on which every check finds nothing, and how to make it otherwise."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from acu.config import NumaConfig
from acu.doctor.examination import (
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
    Place,
    ReadTest,
    Versions,
)
from acu.hardware.report import Driver, Gpu, Node, Report

CARD = Gpu(
    index=0,
    name="NVIDIA A10G",
    memory_mb=23_028,
    memory_free_mb=22_578,
    uuid="GPU-1",
    bdf="0000:ca:00.0",
    numa_node=1,
    cpus=(1, 3, 5, 7),
    pcie=(4, 16),
    pcie_most=(4, 16),
    compute_mode="Exclusive_Process",
    persistent=True,
    capability=(8, 6),
    performance=0,
    pcie_slot=(4, 16),
    clocks_held=0,
    ecc_errors=0,
    remapping=(False, False),
)
NODES = (
    Node(id=0, cpus=(0, 2, 4, 6), memory_mb=32_000, free_mb=30_000, distances=(10, 21)),
    Node(id=1, cpus=(1, 3, 5, 7), memory_mb=32_000, free_mb=30_000, distances=(21, 10)),
)
DISK = Disk(
    name="nvme0n1", model="PM9A3", kind="nvme", size_mb=900_000, scheduler="none", read_ahead_kb=2048, numa_node=1
)
MODELS = Place(
    purpose="models",
    path="/var/cache/acu/models",
    exists=True,
    writable=True,
    filesystem="xfs",
    free_mb=500_000,
    size_mb=900_000,
    free_files=1_000_000,
    disk="nvme0n1",
)
DATA = replace(MODELS, purpose="data", path="/var/lib/acu")
SETTINGS = {
    "kernel.numa_balancing": 0,
    "vm.zone_reclaim_mode": 0,
    "net.core.somaxconn": 4096,
    "net.ipv4.tcp_max_syn_backlog": 8192,
    "vm.overcommit_memory": 0,
    "vm.max_map_count": 262_144,
    "vm.swappiness": 1,
}
PROGRAMS = ("ip", "nft", "nvidia-smi", "nvidia-cuda-mps-control", "nvidia-modprobe", "systemctl", "findmnt")
WELL = Examination(
    at="2026-11-30T22:00:00+00:00",
    machine=Report(
        cpu_model="Intel(R) Xeon(R) Gold 6326",
        cpus=4,
        cores=2,
        cpu_features=("avx2", "avx512f"),
        memory_total=64 << 30,
        memory_available=60 << 30,
        gpus=(CARD,),
    ),
    versions=Versions(acu="0.1.0", python="3.11.7", vllm="0.32.0", torch="2.13.0", cuda="12.8", glibc="2.36"),
    needs=Needs(
        gpu_id=0,
        engines_on_gpu=2,
        weights_mb=12_288,
        hot_mb=12_288,
        numa=NumaConfig(memory_mb=16_384),
        connections=4096,
        namespace="acu0",
    ),
    driver=Driver(version="570.133.20", cuda="12.8", mps=True, devices=("nvidia0",)),
    cpus=(1, 3),
    memory_nodes=(0, 1),
    nodes=NODES,
    disks=(DISK,),
    places=(MODELS, DATA),
    reads=(
        ReadTest(
            path="/var/cache/acu/models/m.safetensors",
            read_mb=256.0,
            seconds=0.1,
            direct=True,
            weights_mb=5580,
            disk="nvme0n1",
        ),
    ),
    firmware=Firmware(
        vendor="Dell Inc.", product="PowerEdge R750xa", bios="1.9.2", virtual=None, installed_mb=65_536, sockets=2
    ),
    cgroups=Cgroups(version="v2", controllers=("cpuset", "memory", "pids", "io"), writable=True),
    abilities=Abilities(
        root=True, systemd=True, namespaces=True, programs={name: f"/usr/bin/{name}" for name in PROGRAMS}
    ),
    limits=Limits(nofile=(1024, 524_288), memlock=(None, None), nproc=(None, None)),
    kernel=Kernel(
        release="6.1.0-28-amd64",
        settings=SETTINGS,
        huge_pages="madvise",
        iommu="passthrough",
        governor="performance",
        swap_mb=8192,
    ),
    clock=Clock(synchronised=True, error_ms=0.2),
    addresses=(Address(address="unix:/run/acu/acu.sock", held_by="acu (process 7)", answers=True, pids=(7,)),),
    models=(ModelFiles("large", "qwen2.5-7b-instruct-awq", pulled=True), ModelFiles("small", "smollm2-135m-instruct")),
    xids=(),
)
"""A box with an A10G on node 1, two engines that share it by MPS, and an ACU that runs."""


def but(base: Examination = WELL, **parts: Any) -> Examination:
    """The box with other parts; a dict replaces fields of the part that is there."""
    changed = {
        name: replace(getattr(base, name), **value) if isinstance(value, dict) else value
        for name, value in parts.items()
    }
    return replace(base, **changed)


def with_card(base: Examination = WELL, **fields: Any) -> Examination:
    """The box with another card."""
    return but(base, machine={"gpus": (replace(CARD, **fields),)})


def with_settings(**settings: int) -> Examination:
    """The box with other settings of the kernel; `__` stands for a dot."""
    return but(kernel={"settings": SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}})


def with_programs(**programs: str | None) -> Examination:
    """The box with other programs; `_` stands for a dash."""
    names = {name.replace("_", "-"): path for name, path in programs.items()}
    return but(abilities={"programs": {name: f"/usr/bin/{name}" for name in PROGRAMS} | names})


IDLE = but(addresses=(Address(address="127.0.0.1:8228"),))
"""The same box while no ACU runs."""
NO_CARD = but(
    machine={"gpus": ()},
    driver=Driver(),
    needs={"engines_on_gpu": 0},
    versions={"torch": "2.13.0+cpu", "cuda": None},
)
"""The same box without a card, with the engine for CPUs."""

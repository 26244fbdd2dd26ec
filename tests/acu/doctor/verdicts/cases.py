"""What each check finds, and where it finds nothing: the box, how bad it is, and words of what is said."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from acu.config import NumaConfig
from acu.doctor.examination import Address, Clock, Examination, ModelFiles, ReadTest, Xid
from acu.doctor.findings import Level
from acu.hardware.report import Driver
from tests.acu.doctor.verdicts.boxes import (
    CARD,
    DATA,
    DISK,
    IDLE,
    MODELS,
    NO_CARD,
    NODES,
    WELL,
    but,
    with_card,
    with_programs,
    with_settings,
)


class Case(Struct, frozen=True):
    """A box on which a check finds one thing. `seen` is what it says in full, `do` a part of what to do."""

    box: Examination
    level: Level
    seen: str
    do: str


GPU = "GPU 0 (NVIDIA A10G)"
ONE_ENGINE = {"engines_on_gpu": 1}
SEEN: dict[str, tuple[Case, ...]] = {
    "gpu.present": (Case(NO_CARD, "note", "there is no NVIDIA GPU: the engine computes on the CPU", "lspci -d 10de:"),),
    "gpu.driver": (
        Case(
            but(NO_CARD, driver={"problem": "Driver/library version mismatch"}),
            "error",
            "the NVIDIA driver does not answer: Driver/library version mismatch",
            "reboot",
        ),
        Case(
            but(NO_CARD, driver={"problem": "Driver Not Loaded", "devices": ("nvidia0",)}),
            "error",
            "the NVIDIA driver does not answer: Driver Not Loaded",
            "modprobe nvidia",
        ),
        Case(
            but(NO_CARD, driver=Driver(devices=("nvidia0",))),
            "error",
            "the NVIDIA driver does not answer: it shows no card",
            "dmesg | grep -i -e nvrm -e nvidia",
        ),
    ),
    "gpu.device": (
        Case(but(needs={"gpu_id": 3}), "error", "gpu.device_id is 3, and the cards here are: 0", "nvidia-smi -L"),
    ),
    "gpu.compute-mode": (
        Case(
            with_card(compute_mode="Prohibited"),
            "error",
            f"{GPU} is in compute mode Prohibited",
            "nvidia-smi -i 0 -c EXCLUSIVE_PROCESS",
        ),
        Case(
            but(driver={"mps": False}),
            "error",
            f"{GPU} takes one process (Exclusive_Process), 2 engines are to compute on it, and MPS does not run",
            "or set the mode to DEFAULT",
        ),
        Case(
            but(with_card(compute_mode="Default"), needs=ONE_ENGINE),
            "note",
            f"{GPU} is open to every process (compute mode Default)",
            "nvidia-smi -i 0 -c EXCLUSIVE_PROCESS",
        ),
    ),
    "gpu.mps": (
        Case(
            but(driver={"mps": False}),
            "warning",
            "2 engines are to compute on one card, and MPS does not run",
            "nvidia-cuda-mps-control -d",
        ),
    ),
    "gpu.persistence": (
        Case(with_card(persistent=False), "note", f"persistence mode of {GPU} is off", "nvidia-smi -i 0 -pm 1"),
    ),
    "gpu.pcie-width": (
        Case(
            with_card(pcie=(4, 8)),
            "error",
            f"{GPU} is linked by 8 PCIe lanes, of 16 that card and slot have",
            "lspci -vv -s 0000:ca:00.0",
        ),
        Case(
            but(with_card(pcie=(4, 8)), firmware={"virtual": "Amazon EC2"}),
            "note",
            f"{GPU} is linked by 8 PCIe lanes, of 16 that card and slot have",
            "lspci -vv",
        ),
        Case(
            with_card(pcie=(4, 4), pcie_slot=(4, 8)),
            "error",
            f"{GPU} is linked by 4 PCIe lanes, of 8 that card and slot have",
            "Seat the card again",
        ),
        Case(
            with_card(pcie=(4, 8), pcie_slot=(4, 8)),
            "warning",
            f"{GPU} is linked by all 8 PCIe lanes that its slot has; the card has 16",
            "The link is as it should be: put the card into a slot with more lanes",
        ),
        Case(
            but(with_card(pcie=(4, 8), pcie_slot=(4, 8)), firmware={"virtual": "KVM"}),
            "note",
            f"{GPU} is linked by all 8 PCIe lanes that its slot has; the card has 16",
            "lspci -vt",
        ),
    ),
    "gpu.capability": (
        Case(
            with_card(capability=(7, 0)),
            "error",
            f"{GPU} has compute capability 7.0, and vLLM needs 7.5",
            "gpu.device_id",
        ),
        Case(
            with_card(capability=(7, 5)),
            "warning",
            f"{GPU} has compute capability 7.5, which computes no bfloat16",
            "Set models.NAME.dtype to float16",
        ),
    ),
    "gpu.pcie-generation": (
        Case(
            with_card(pcie=(3, 16), performance=2),
            "warning",
            f"{GPU} links at PCIe generation 3 of 4, and is at work (P2)",
            "lspci -vv -s 0000:ca:00.0",
        ),
        Case(
            but(with_card(pcie=(3, 16)), firmware={"virtual": "KVM"}),
            "note",
            f"{GPU} links at PCIe generation 3 of 4, and is at work (P0)",
            "ASPM",
        ),
        Case(
            with_card(pcie=(1, 16), clocks_held=1),
            "note",
            f"{GPU} links at PCIe generation 1 of 4 now; at rest that is usual",
            "pcie.link.gen.current",
        ),
        Case(
            with_card(pcie=(1, 16), performance=None),
            "note",
            f"{GPU} links at PCIe generation 1 of 4 now; at rest that is usual",
            "pcie.link.gen.current",
        ),
        Case(
            with_card(pcie=(3, 16), pcie_slot=(3, 16)),
            "note",
            f"{GPU} links at PCIe generation 3, the highest of its slot; the card has 4",
            "lspci -vt",
        ),
        Case(
            with_card(pcie=(1, 16), performance=8),
            "note",
            f"{GPU} links at PCIe generation 1 of 4 now; at rest that is usual",
            "pcie.link.gen.current",
        ),
    ),
    "gpu.others": (
        Case(
            with_card(IDLE, processes=((4711, 1200), (4712, 300))),
            "warning",
            f"2 other process(es) hold 1500 MiB of {GPU}: 4711, 4712",
            "ps -fp 4711,4712",
        ),
        Case(
            but(with_card(processes=((7, 20_000), (4711, 300))), own=(7,)),
            "warning",
            f"1 other process(es) hold 300 MiB of {GPU}: 4711",
            "ps -fp 4711",
        ),
    ),
    "health.memory": (
        Case(
            with_card(remapping=(True, True), ecc_errors=3),
            "error",
            f"memory of {GPU} is broken, and has no spare rows left for it",
            "Have the card replaced.",
        ),
        Case(
            with_card(remapping=(True, False), ecc_errors=3),
            "warning",
            f"broken memory of {GPU} is replaced by spare rows only after a reset",
            "nvidia-smi -i 0 -r",
        ),
        Case(
            with_card(remapping=None, ecc_errors=3),
            "warning",
            f"memory of {GPU} had 3 error(s) since the boot that could not be corrected",
            "nvidia-smi -i 0 -q -d ECC,ROW_REMAPPER",
        ),
    ),
    "health.clocks": (
        Case(
            with_card(clocks_held=4 | 64),
            "warning",
            f"{GPU} is slower than it could be now: it is too hot",
            "fans",
        ),
        Case(
            with_card(clocks_held=32),
            "warning",
            f"{GPU} is slower than it could be now: it is too hot",
            "fans",
        ),
        Case(
            with_card(clocks_held=8),
            "warning",
            f"{GPU} is slower than it could be now: the board slows it down, for heat or power",
            "power supplies",
        ),
        Case(
            with_card(clocks_held=4),
            "note",
            f"{GPU} is slower than it could be now: it is at its power limit",
            "nvidia-smi -q -d POWER",
        ),
    ),
    "health.xid": (
        Case(
            but(xids=(Xid("0000:ca:00.0", 79, 2), Xid("0000:17:00.0", 48))),
            "error",
            "the driver reported Xid 79 of GPU 0, 2 time(s): the card fell off the bus",
            "dmesg -T | grep '): 79,'",
        ),
        Case(
            but(xids=(Xid("0000:ca:00.0", 31),)),
            "note",
            "the driver reported Xid 31 of GPU 0, 1 time(s): a program's access to wrong memory",
            "dmesg -T",
        ),
        Case(
            but(xids=(Xid("0000:ca:00.0", 62),)),
            "warning",
            "the driver reported Xid 62 of GPU 0, 1 time(s): see NVIDIA's list of Xids",
            "dmesg -T",
        ),
    ),
    "numa.asked": (
        Case(
            but(needs={"numa": NumaConfig(node=99)}),
            "error",
            "numa.node: 99 does not exist; there are 0, 1",
            "Write `numa.node: auto`, or one of 0-1.",
        ),
        Case(
            but(needs={"numa": NumaConfig(cpus=4096)}),
            "error",
            "numa.cpus: 4096 CPUs are asked of node 1, which has 4; lower it, or set it to null",
            "Write `numa.cpus: null`, or 4 at most.",
        ),
        Case(
            but(NO_CARD, nodes=NODES[:1], needs={"numa": NumaConfig(node=1, cpus=9)}),
            "error",
            "numa.node: 1 does not exist; there is 0",
            "Write `numa.node: auto`, or one of 0; and `numa.cpus: null`, or 2 at most.",
        ),
        Case(
            but(memory_nodes=(1,), needs={"numa": NumaConfig(node=0)}),
            "error",
            "numa.node: the memory of node 0 is not among what this process may use (cpuset and policy leave 1); set it to "
            "auto, or give the unit or cgroup that node",
            "Write `numa.node: auto`",
        ),
    ),
    "numa.unequal": (
        Case(
            but(nodes=(NODES[0], replace(NODES[1], memory_mb=28_799))),
            "note",
            "memory is not the same on all nodes: node 0 31 GiB, node 1 28 GiB",
            "dmidecode -t memory",
        ),
    ),
    "numa.gpu-unknown": (
        Case(
            with_card(numa_node=None),
            "warning",
            "the firmware does not say which NUMA node GPU 0 is on (numa_node is -1)",
            "set numa.node by hand",
        ),
    ),
    "numa.gpu-node": (
        Case(
            but(cpus=(0, 2, 4, 6)),
            "warning",
            "GPU 0 is on node 1 (CPUs 1,3,5,7), and this process may only use CPUs 0,2,4,6, which are on another",
            "numactl -N 1 --preferred=1 acu serve",
        ),
        Case(
            but(memory_nodes=(0,)),
            "warning",
            "GPU 0 is on node 1, and this process may only use memory of node 0",
            "AllowedMemoryNodes=1",
        ),
        Case(
            but(needs={"numa": NumaConfig(node=0)}),
            "warning",
            "GPU 0 is on node 1, and numa.node is 0",
            "Write `numa.node: auto`, or 1",
        ),
    ),
    "numa.disk-node": (
        Case(
            but(disks=(replace(DISK, numa_node=0),)),
            "warning",
            "the card is on node 1, and nvme0n1 with /var/cache/acu/models on node 0",
            "gpu.model_cache_dir",
        ),
    ),
    "numa.interleaving": (
        Case(
            but(nodes=(replace(NODES[0], cpus=tuple(range(8)), memory_mb=64_000),)),
            "error",
            "2 processors and one NUMA node: the BIOS interleaves memory over all of them",
            "Disable Node Interleaving",
        ),
        Case(
            but(nodes=NODES[:1], firmware={"virtual": "KVM"}),
            "note",
            "the hypervisor shows 2 processors and one NUMA node",
            "in the hypervisor",
        ),
    ),
    "numa.clustering": (
        Case(
            but(nodes=tuple(replace(NODES[0], id=number) for number in range(8))),
            "note",
            "each of 2 processor(s) is split into 4 nodes (NPS or SNC)",
            "set NPS1 or disable SNC",
        ),
    ),
    "numa.empty-node": (
        Case(
            but(nodes=(NODES[0], replace(NODES[1], memory_mb=0))),
            "error",
            "NUMA node 1 has 4 CPUs and no memory",
            "slots of processor 1",
        ),
        Case(
            but(nodes=(replace(NODES[0], memory_mb=0), NODES[1])),
            "warning",
            "NUMA node 0 has 4 CPUs and no memory",
            "slots of processor 0",
        ),
    ),
    "numa.mirroring": (
        Case(
            but(firmware={"installed_mb": 107_000}),
            "warning",
            "62 GiB of 104 GiB are visible: the BIOS keeps memory twice (mirroring)",
            "Optimizer, Independent",
        ),
        Case(
            but(firmware={"installed_mb": 106_000}),
            "note",
            "62 GiB of 104 GiB are visible: memory is spared, mirrored in part, or given to a device",
            "dmidecode -t memory",
        ),
    ),
    "numa.balancing": (
        Case(
            with_settings(kernel__numa_balancing=1),
            "warning",
            "the kernel balances NUMA memory by itself (kernel.numa_balancing is on)",
            "sysctl -w kernel.numa_balancing=0",
        ),
    ),
    "numa.zone-reclaim": (
        Case(
            with_settings(vm__zone_reclaim_mode=1),
            "warning",
            "vm.zone_reclaim_mode is 1",
            "sysctl -w vm.zone_reclaim_mode=0",
        ),
    ),
    "numa.memory": (
        Case(
            but(nodes=(NODES[0], replace(NODES[1], memory_mb=14_000))),
            "warning",
            "numa.memory_mb is 16384, and node 1 has 14000 MiB",
            "Write `numa.memory_mb: 14000` or less, or null",
        ),
        Case(
            but(NO_CARD, nodes=NODES[:1], needs={"numa": NumaConfig(memory_mb=999_999)}),
            "warning",
            "numa.memory_mb is 999999, and node 0 has 32000 MiB",
            "Write `numa.memory_mb: 32000` or less",
        ),
        Case(
            but(needs={"numa": NumaConfig(node=0, memory_mb=40_000)}, memory_nodes=(0, 1)),
            "warning",
            "numa.memory_mb is 40000, and node 0 has 32000 MiB",
            "Write `numa.memory_mb: 32000` or less",
        ),
        Case(
            but(IDLE, nodes=(NODES[0], replace(NODES[1], free_mb=8_000))),
            "note",
            "node 1 has 8000 MiB free, and 16 GiB are meant for this daemon; page cache gives way",
            "drop_caches",
        ),
    ),
    "kernel.files": (
        Case(
            but(limits={"nofile": (1024, 4319)}),
            "warning",
            "a process may have 4319 open files, and 4096 connections need 4320",
            "LimitNOFILE=4320",
        ),
    ),
    "kernel.address-space": (
        Case(
            but(limits={"address_space": (64 << 30, None)}),
            "error",
            "a process may have 64 GiB of address space",
            "ulimit -v unlimited",
        ),
        Case(
            but(limits={"address_space": (640 << 30, None)}),
            "warning",
            "a process may have 640 GiB of address space",
            "LimitAS=infinity",
        ),
        Case(
            but(NO_CARD, limits={"address_space": (60 << 30, None)}),
            "error",
            "a process may have 60 GiB of address space",
            "LimitAS=infinity",
        ),
    ),
    "kernel.tasks": (
        Case(
            but(IDLE, limits={"nproc": (1000, None), "user_tasks": 729}, needs={"engines": 2}),
            "warning",
            "this user may have 1000 processes and threads, and has 729: a start makes about 272 more",
            "LimitNPROC=infinity",
        ),
        Case(
            but(IDLE, limits={"pids": (10, 281)}, needs={"engines": 2}),
            "warning",
            "the cgroup may have 281 processes and threads, and has 10: a start makes about 272 more",
            "TasksMax=",
        ),
    ),
    "kernel.memlock": (
        Case(
            but(limits={"memlock": (8 << 20, 8 << 20)}),
            "note",
            "a process may lock 8 MiB of memory",
            "LimitMEMLOCK=infinity",
        ),
    ),
    "kernel.somaxconn": (
        Case(
            with_settings(net__core__somaxconn=4095),
            "warning",
            "net.core.somaxconn is 4095: so many connections wait to be accepted, and not 4096",
            "sysctl -w net.core.somaxconn=4096",
        ),
    ),
    "kernel.syn-backlog": (
        Case(
            with_settings(net__ipv4__tcp_max_syn_backlog=1023),
            "note",
            "net.ipv4.tcp_max_syn_backlog is 1023",
            "sysctl -w net.ipv4.tcp_max_syn_backlog=8192",
        ),
    ),
    "kernel.overcommit": (
        Case(
            with_settings(vm__overcommit_memory=2),
            "error",
            "vm.overcommit_memory is 2: address space counts as memory",
            "sysctl -w vm.overcommit_memory=0",
        ),
    ),
    "kernel.map-count": (
        Case(
            with_settings(vm__max_map_count=65_529),
            "warning",
            "vm.max_map_count is 65529",
            "sysctl -w vm.max_map_count=",
        ),
    ),
    "kernel.swappiness": (
        Case(
            with_settings(vm__swappiness=11),
            "note",
            "there is swap, and vm.swappiness is 11",
            "sysctl -w vm.swappiness=1",
        ),
    ),
    "kernel.huge-pages": (
        Case(
            but(kernel={"huge_pages": "always"}),
            "note",
            "transparent huge pages are on for every allocation (always)",
            "echo madvise >",
        ),
    ),
    "kernel.iommu": (
        Case(
            but(kernel={"iommu": "translated"}),
            "note",
            "the IOMMU translates every access of the card and of the disks",
            "iommu=pt",
        ),
    ),
    "kernel.governor": (
        Case(
            but(kernel={"governor": "powersave"}),
            "note",
            "the CPUs' governor is powersave",
            "cpupower frequency-set -g performance",
        ),
    ),
    "disk.kind": (
        Case(
            but(disks=(replace(DISK, kind="hdd", model="ST4000"),)),
            "warning",
            "the disk nvme0n1 (ST4000) rotates, and holds the model cache (/var/cache/acu/models), the data plane "
            "(/var/lib/acu)",
            "Set gpu.model_cache_dir and data_plane.path to a folder on an NVMe disk",
        ),
    ),
    "disk.known": (
        Case(
            but(
                disks=(),
                places=(
                    replace(MODELS, disk=None, filesystem="overlay"),
                    replace(DATA, disk=None, filesystem="overlay"),
                ),
            ),
            "note",
            "the model cache (/var/cache/acu/models), the data plane (/var/lib/acu): on an overlay of folders (overlay), as "
            "containers have; on which disk that lies cannot be known here",
            "Look at the disk on the host",
        ),
        Case(
            but(places=(MODELS, replace(DATA, disk=None, filesystem="zfs"))),
            "note",
            "the data plane (/var/lib/acu): on zfs; on which disk that lies cannot be known here",
            "findmnt -T /var/lib/acu",
        ),
    ),
    "disk.scheduler": (
        Case(
            but(disks=(replace(DISK, scheduler="mq-deadline"),)),
            "note",
            "the disk nvme0n1 is NVMe, and its I/O scheduler is mq-deadline",
            "echo none > /sys/block/nvme0n1/queue/scheduler",
        ),
    ),
    "disk.read-ahead": (
        Case(
            but(disks=(replace(DISK, read_ahead_kb=128),)),
            "note",
            "the disk nvme0n1, with the model cache, reads 128 KiB ahead",
            "echo 2048 > /sys/block/nvme0n1/queue/read_ahead_kb",
        ),
    ),
    "disk.load-time": (
        Case(
            but(reads=(ReadTest("/elsewhere/m", 100, 0.25, direct=False, weights_mb=8000),)),
            "warning",
            "8000 MiB of weights would take 20 s from the disk, at 400 MiB/s",
            "iostat -x 1",
        ),
        Case(
            but(reads=(ReadTest("/mnt/a-link/leads/here/m", 799, 1.0, direct=True, weights_mb=5593, disk="nvme0n1"),)),
            "warning",
            "5593 MiB of weights would take 7 s from the disk, at 799 MiB/s; an NVMe disk reads 2000 MB/s and more, so "
            "that another process may have it",
            "iotop -o",
        ),
        Case(
            but(reads=(ReadTest("/var/cache/acu/models/m", 799, 1.0, direct=True, weights_mb=5593),)),
            "warning",
            "5593 MiB of weights would take 7 s from the disk, at 799 MiB/s; an NVMe disk reads 2000 MB/s and more, so "
            "that another process may have it",
            "iotop -o",
        ),
    ),
    "disk.space": (
        Case(
            but(places=(replace(MODELS, free_mb=1023), replace(DATA, free_mb=1023))),
            "error",
            "1023 MiB of 879 GiB are free for the model cache (/var/cache/acu/models), the data plane (/var/lib/acu)",
            "du -xh -d1 /var/cache/acu/models",
        ),
        Case(
            but(places=(replace(MODELS, disk="sdb", free_mb=500), DATA)),
            "warning",
            "500 MiB of 879 GiB are free for the model cache (/var/cache/acu/models)",
            "acu models rm",
        ),
        Case(
            but(places=(MODELS, replace(DATA, disk="sdb", free_mb=9_000, size_mb=100_000))),
            "warning",
            "9000 MiB of 98 GiB are free for the data plane (/var/lib/acu)",
            "du -xh -d1 /var/lib/acu",
        ),
    ),
    "disk.inodes": (
        Case(
            but(places=(replace(MODELS, free_files=9_999),)),
            "warning",
            "9999 more files fit where the model cache (/var/cache/acu/models) is",
            "df -i /var/cache/acu/models",
        ),
        Case(
            but(places=(replace(DATA, free_files=499),)),
            "error",
            "499 more files fit where the data plane (/var/lib/acu) is",
            "df -i /var/lib/acu",
        ),
    ),
    "disk.network": (
        Case(
            but(places=(MODELS, replace(DATA, filesystem="nfs4"))),
            "error",
            "the data plane (/var/lib/acu) lies on nfs4, over the network",
            "Set data_plane.path",
        ),
        Case(
            but(places=(replace(MODELS, filesystem="cifs"), DATA)),
            "warning",
            "the model cache (/var/cache/acu/models) lies on cifs, over the network",
            "Set gpu.model_cache_dir",
        ),
    ),
    "disk.volatile": (
        Case(
            but(places=(MODELS, replace(DATA, filesystem="tmpfs"))),
            "warning",
            "the data plane (/var/lib/acu) lies in memory (tmpfs)",
            "Set data_plane.path",
        ),
        Case(
            but(places=(MODELS, replace(DATA, disk=None, filesystem="overlay"))),
            "note",
            "the data plane (/var/lib/acu) lies in a container's own layer (overlay)",
            "Mount a volume",
        ),
    ),
    "disk.answers": (
        Case(
            but(places=(replace(MODELS, answers=False, filesystem="xfs", source="/dev/nvme0n1p1"), DATA)),
            "error",
            "the model cache (/var/cache/acu/models) does not answer (xfs, from /dev/nvme0n1p1)",
            "timeout 5 stat -f /var/cache/acu/models",
        ),
        Case(
            but(places=(MODELS, replace(DATA, answers=False, filesystem=""))),
            "error",
            "the data plane (/var/lib/acu) does not answer (its file system is not told)",
            "data_plane.path",
        ),
    ),
    "disk.data": (
        Case(
            but(
                refused="data_plane.path: / is the root of all files; name a folder of its own, such as /var/lib/acu/data"
            ),
            "error",
            "data_plane.path: / is the root of all files; name a folder of its own, such as /var/lib/acu/data",
            "ls -la /var/lib/acu",
        ),
    ),
    "models.files": (
        Case(
            but(
                models=(
                    ModelFiles("large", "qwen", pulled=True, problem="/m/config.json is a pipe", path="/m/config.json"),
                )
            ),
            "error",
            "models.large (qwen) cannot be served: /m/config.json is a pipe",
            "`acu models rm qwen` and `acu models pull qwen` fetch it again.\nnamei -l /m/config.json",
        ),
        Case(
            but(models=(ModelFiles("large", "/srv/m", pulled=True, problem="there is no folder /srv/m"),)),
            "error",
            "models.large (/srv/m) cannot be served: there is no folder /srv/m",
            "let the daemon's user.\nnamei -l /srv/m",
        ),
        Case(
            but(models=(ModelFiles("large", "qwen", pulled=True, problem="the disk of qwen does not answer"),)),
            "error",
            "models.large (qwen) cannot be served: the disk of qwen does not answer",
            "let the daemon's user.\nnamei -l qwen",
        ),
    ),
    "disk.writable": (
        Case(
            but(places=(MODELS, replace(DATA, writable=False, read_only=True))),
            "error",
            "the data plane (/var/lib/acu) is on a file system that is mounted read-only (xfs)",
            "findmnt -T /var/lib/acu",
        ),
        Case(
            but(places=(replace(MODELS, writable=False, read_only=True), DATA)),
            "warning",
            "the model cache (/var/cache/acu/models) is on a file system that is mounted read-only (xfs)",
            "check the disk first",
        ),
        Case(
            but(places=(MODELS, replace(DATA, writable=False))),
            "error",
            "the data plane (/var/lib/acu) may not be written to by this user",
            "install -d -o acu -g acu /var/lib/acu",
        ),
        Case(
            but(places=(replace(MODELS, writable=False), DATA)),
            "warning",
            "the model cache (/var/cache/acu/models) may not be written to by this user",
            "gpu.model_cache_dir",
        ),
    ),
    "machine.cpu": (
        Case(
            but(NO_CARD, machine={"cpu_features": ("sse4_2",), "cpu_model": "Atom"}),
            "error",
            "Atom has no AVX2",
            "a GPU",
        ),
        Case(
            but(NO_CARD, machine={"cpu_features": ("avx2",), "cpu_model": "EPYC"}),
            "note",
            "EPYC has no AVX-512",
            "acu models list",
        ),
    ),
    "machine.memory": (
        Case(
            but(needs={"hot_mb": 66_560}),
            "error",
            "65 GiB are meant for vectors in memory, and 64 GiB are there",
            "data_plane.hot_layer_mem_mb",
        ),
        Case(
            but(IDLE, machine={"memory_available": 2 << 30}),
            "warning",
            "12 GiB are meant for vectors in memory, and 2048 MiB of 64 GiB are available",
            "ps aux --sort=-rss",
        ),
    ),
    "machine.clock": (
        Case(
            but(clock=Clock(synchronised=False)),
            "warning",
            "the kernel's clock is not kept by a time service",
            "timedatectl set-ntp true",
        ),
    ),
    "machine.virtual": (
        Case(
            but(firmware={"virtual": "KVM"}),
            "note",
            "this is a virtual machine (KVM): NUMA and PCIe are as it shows them",
            "in the hypervisor",
        ),
    ),
    "machine.root": (
        Case(
            but(abilities={"root": False}),
            "note",
            "this is not root, which scripts/acu-up needs",
            "sudo scripts/acu-up",
        ),
    ),
    "machine.namespaces": (
        Case(
            but(abilities={"namespaces": False}),
            "warning",
            "network namespaces cannot be made here, and network.namespace is acu0",
            "NET_ADMIN and SYS_ADMIN",
        ),
        Case(
            but(abilities={"namespaces": False}, needs={"namespace": None}),
            "note",
            "network namespaces cannot be made here",
            "NET_ADMIN and SYS_ADMIN",
        ),
    ),
    "machine.cgroups": (
        Case(but(cgroups={"version": "none"}), "warning", "no cgroup hierarchy is mounted", "mount -t cgroup2"),
        Case(
            but(cgroups={"writable": False}, abilities={"systemd": False}),
            "note",
            "cgroups (v2) may not be made here, and there is no systemd that would",
            "remount,rw",
        ),
    ),
    "machine.cgroup-controllers": (
        Case(
            but(cgroups={"controllers": ("cpu", "pids")}),
            "note",
            "the cgroup hierarchy has no controller cpuset, memory: CPUs, memory of an ACU cannot be bounded",
            "echo '+cpuset +memory' > /sys/fs/cgroup/cgroup.subtree_control",
        ),
    ),
    "machine.programs": (
        Case(
            with_programs(ip=None),
            "warning",
            "the program ip is not installed: scripts/netns.sh makes no namespace without it",
            "apt-get install -y iproute2\ndnf install -y iproute",
        ),
        Case(
            but(NO_CARD, abilities={"programs": {"ip": None}}),
            "warning",
            "the program ip is not installed: scripts/netns.sh makes no namespace without it",
            "iproute2",
        ),
        Case(
            with_programs(nft=None, iptables=None),
            "warning",
            "the program nft is not installed: scripts/netns.sh gives a namespace no way out without it",
            "apt-get install -y nftables",
        ),
        Case(
            with_programs(nvidia_cuda_mps_control=None),
            "warning",
            "the program nvidia-cuda-mps-control is not installed: several engines take turns on the card",
            "nvidia-cuda-mps",
        ),
        Case(
            with_programs(findmnt=None),
            "note",
            "the program findmnt is not installed: scripts/disk.sh does not find the disk of a folder",
            "util-linux",
        ),
    ),
    "machine.systemd": (
        Case(but(abilities={"systemd": False}), "note", "systemd does not run here", "scripts/acu-up 0"),
    ),
    "network.address": (
        Case(
            but(addresses=(Address("[::1]:8228", held_by="nginx (process 9)", detail="no ACU's answer: HTTP 404"),)),
            "error",
            "[::1]:8228 is held by nginx (process 9), which does not answer as an ACU (no ACU's answer: HTTP 404)",
            "ss -ltnp 'sport = :8228'",
        ),
        Case(
            but(addresses=(Address("unix:/run/acu/acu.sock", held_by="a file that is no socket"),)),
            "error",
            "unix:/run/acu/acu.sock is held by a file that is no socket, which does not answer as an ACU",
            "network.unix_socket",
        ),
    ),
    "network.full": (
        Case(
            but(addresses=(Address("unix:/run/acu.sock", held_by="acu (pid 7)", answers=True, full=True),)),
            "warning",
            "the ACU at unix:/run/acu.sock has all its connections taken",
            "ss -xp src /run/acu.sock",
        ),
        Case(
            but(addresses=(Address("127.0.0.1:8228", held_by="acu (pid 7)", answers=True, full=True),)),
            "warning",
            "the ACU at 127.0.0.1:8228 has all its connections taken",
            "ss -tnp state established 'sport = :8228'",
        ),
    ),
    "network.daemon": (Case(IDLE, "note", "no ACU answers at 127.0.0.1:8228", "acu serve"),),
    "versions.python": (
        Case(
            but(versions={"python": "3.10.14"}),
            "error",
            "Python is 3.10.14, and ACU runs on 3.11 to 3.13",
            "scripts/setup --python",
        ),
        Case(
            but(versions={"python": "3.14.0"}),
            "error",
            "Python is 3.14.0, and ACU runs on 3.11 to 3.13",
            "scripts/setup --python",
        ),
    ),
    "versions.engine": (
        Case(but(versions={"vllm": None}), "error", "vLLM is not installed", "scripts/setup"),
        Case(
            but(versions={"torch": "2.13.0+cpu", "cuda": None}),
            "warning",
            "the engine is the build for CPUs (torch 2.13.0+cpu), and there is a GPU: NVIDIA A10G",
            "scripts/setup --gpu",
        ),
        Case(
            but(NO_CARD, versions={"cuda": "12.8"}),
            "error",
            "the engine is the build for CUDA 12.8, and no GPU can be used",
            "scripts/setup --cpu",
        ),
    ),
    "versions.cuda": (
        Case(
            but(versions={"cuda": "13.0"}),
            "error",
            "driver 570.133.20 runs CUDA up to 12.8, and torch is built for 13.0",
            "Install a driver for CUDA 13.0",
        ),
        Case(
            but(versions={"cuda": "12.9"}),
            "note",
            "driver 570.133.20 runs CUDA up to 12.8, and torch is built for 12.9: within one major version most of it works, "
            "but no kernel can be compiled when it is needed (PTX)",
            "Install a driver for CUDA 12.9",
        ),
    ),
}

WELL_ON: dict[str, tuple[Examination, ...]] = {
    "gpu.present": (
        WELL,
        but(NO_CARD, driver={"problem": "Driver Not Loaded"}),
        but(NO_CARD, driver={"devices": ("nvidia0",)}),
    ),
    "gpu.driver": (WELL, but(driver={"devices": ()})),
    "gpu.compute-mode": (
        WELL,
        but(driver={"mps": False}, needs=ONE_ENGINE),
        but(with_card(compute_mode="Default"), driver={"mps": False}),
    ),
    "gpu.others": (
        WELL,
        IDLE,
        but(with_card(processes=((7, 20_000),)), own=(7,)),
        but(IDLE, machine={"gpus": (replace(CARD, processes=((9, 1),)),)}, own=(9,)),  # the server of MPS
        but(
            with_card(processes=((7, 20_000),)), addresses=(Address("unix:/a", "acu", answers=True),)
        ),  # an older report
    ),
    "gpu.pcie-width": (
        WELL,
        with_card(pcie=(4, 8), pcie_most=(4, 8)),
        with_card(pcie_slot=None),
        with_card(pcie_slot=(5, 16)),
    ),
    "gpu.pcie-generation": (WELL, with_card(pcie_slot=(5, 16)), with_card(pcie_slot=None)),
    "gpu.capability": (WELL, with_card(capability=(8, 0)), with_card(capability=(12, 0))),
    "health.memory": (WELL, with_card(remapping=None), with_card(ecc_errors=None)),
    "health.clocks": (WELL, with_card(clocks_held=1 | 2 | 16 | 256)),
    "health.xid": (WELL, but(xids=(Xid("0000:17:00.0", 79),))),
    "kernel.address-space": (WELL, but(NO_CARD, limits={"address_space": (64 << 30, None)})),
    "kernel.tasks": (
        but(IDLE, limits={"pids": (10, 282)}, needs={"engines": 2}),
        but(IDLE, limits={"nproc": (1000, None), "user_tasks": 728}, needs={"engines": 2}),
        but(IDLE, limits={"nproc": (None, None), "user_tasks": 728}),
    ),
    "disk.data": (WELL, but(refused="/x cannot be written", places=(replace(DATA, writable=False),))),
    "numa.gpu-node": (WELL, but(cpus=(0, 7)), but(memory_nodes=()), but(needs={"numa": NumaConfig(node=1)})),
    "numa.asked": (
        WELL,
        NO_CARD,
        but(needs={"numa": NumaConfig(node=0, cpus=4)}),
        but(memory_nodes=(), needs={"numa": NumaConfig(node=0)}),
    ),
    "numa.unequal": (WELL, but(nodes=(NODES[0], replace(NODES[1], memory_mb=0)))),
    "disk.known": (WELL, but(places=(replace(DATA, disk=None, filesystem="nfs4"),))),
    "numa.interleaving": (WELL, but(nodes=tuple(replace(NODES[0], id=number) for number in range(4)))),
    "numa.clustering": (WELL, but(nodes=(*NODES, replace(NODES[0], id=2, cpus=())))),
    "numa.empty-node": (WELL, but(nodes=(*NODES, replace(NODES[0], id=2, cpus=(), memory_mb=0)))),
    "numa.mirroring": (WELL, but(firmware={"installed_mb": 71_000})),
    "numa.memory": (
        WELL,
        but(nodes=(NODES[0], replace(NODES[1], memory_mb=15_360))),  # sold as 16 GiB
        but(IDLE, nodes=(NODES[0], replace(NODES[1], free_mb=8_192))),
        but(nodes=(NODES[0], replace(NODES[1], free_mb=1))),
    ),
    "kernel.memlock": (WELL, but(limits={"memlock": (64 << 20, 64 << 20)})),
    "kernel.syn-backlog": (WELL, with_settings(net__ipv4__tcp_max_syn_backlog=1024)),
    "kernel.map-count": (WELL, with_settings(vm__max_map_count=65_530)),
    "kernel.swappiness": (WELL, with_settings(vm__swappiness=10)),
    "kernel.files": (WELL, but(limits={"nofile": (1024, 4320)}), but(limits={"nofile": (1024, None)})),
    "kernel.governor": (WELL, but(kernel={"governor": "schedutil"})),
    "disk.scheduler": (WELL, but(disks=(replace(DISK, scheduler=None),))),
    "disk.read-ahead": (WELL, but(disks=(replace(DISK, read_ahead_kb=1024),))),
    "disk.load-time": (
        WELL,
        but(reads=(ReadTest("/elsewhere/m", 100, 0.25, direct=True, weights_mb=7999),)),
        but(reads=(ReadTest("/var/cache/acu/models/m", 800, 1.0, direct=True, weights_mb=5600),)),
        but(reads=(ReadTest("/var/cache/acu/models/m", 700, 1.0, direct=True, weights_mb=5600, disk="sdb"),)),
        but(reads=(ReadTest("/var/cache/acu/models-of-another/m", 700, 1.0, direct=True, weights_mb=5600),)),
        but(reads=(ReadTest("/var/cache/acu/models/m", 100, 1.0, direct=True, weights_mb=0),)),
    ),
    "disk.space": (
        WELL,
        but(places=(replace(DATA, free_mb=20_480),)),
        but(places=(replace(DATA, free_mb=1024, size_mb=9_000),)),
        but(places=(replace(MODELS, size_mb=0),)),
    ),
    "disk.inodes": (
        WELL,
        but(places=(replace(MODELS, free_files=10_000),)),
        but(places=(replace(MODELS, filesystem="btrfs", free_files=0),)),
    ),
    "disk.network": (WELL, but(places=(replace(DATA, filesystem="ext4"),))),
    "disk.volatile": (
        WELL,
        but(places=(replace(MODELS, filesystem="tmpfs"), DATA)),
        but(places=(replace(DATA, filesystem="overlay"),)),  # on a disk that can be seen: no container's
    ),
    "machine.cpu": (NO_CARD, but(NO_CARD, machine={"cpu_features": ("asimd", "bf16")})),
    "machine.memory": (
        WELL,
        but(machine={"memory_available": 2 << 30}),
        but(needs={"hot_mb": 65_536}),
        but(IDLE, needs={"hot_mb": 61_440}),
    ),
    "machine.cgroups": (WELL, but(cgroups={"writable": False})),
    "machine.programs": (
        WELL,
        with_programs(nft=None, iptables="/sbin/iptables"),
        but(NO_CARD, abilities={"programs": {"ip": "/sbin/ip", "nft": "/sbin/nft", "nvidia-smi": None}}),
        but(with_programs(nvidia_cuda_mps_control=None), needs=ONE_ENGINE),
    ),
    "network.address": (WELL, IDLE, but(addresses=(Address("unix:/a", detail="left by a daemon that was killed"),))),
    "network.daemon": (WELL, but(addresses=(Address("127.0.0.1:8228"), Address("unix:/a", "acu", answers=True)))),
    "versions.python": (WELL, but(versions={"python": "3.11.0"}), but(versions={"python": "3.13.9"})),
    "versions.engine": (WELL, NO_CARD),
    "versions.cuda": (WELL, but(driver={"cuda": "13.0"})),
}
"""Where a check finds nothing, of those that find nothing on other boxes than WELL, too (which stands for all others)."""

NOT_THERE: dict[str, Examination] = {
    "gpu.driver": NO_CARD,
    "gpu.mps": but(needs=ONE_ENGINE, driver={"mps": False}),
    "gpu.pcie-width": with_card(pcie=None),
    "gpu.pcie-generation": with_card(pcie_most=None),
    "gpu.others": but(needs={"gpu_id": 1}),
    "gpu.capability": with_card(capability=None),
    "health.memory": with_card(ecc_errors=None, remapping=None),
    "health.clocks": with_card(clocks_held=None),
    "health.xid": but(xids=None),
    "kernel.tasks": but(limits={"pids": (10, 11), "user_tasks": 5, "nproc": (5, 5)}),
    "models.files": but(models=(ModelFiles("large", "qwen"),)),
    "disk.data": but(places=(MODELS,)),
    "network.full": IDLE,
    "numa.gpu-unknown": but(nodes=NODES[:1]),
    "numa.gpu-node": with_card(numa_node=None),
    "numa.disk-node": but(disks=(replace(DISK, numa_node=None),)),
    "numa.interleaving": but(firmware={"sockets": None}),
    "numa.mirroring": but(firmware={"installed_mb": None}),
    "numa.balancing": but(nodes=NODES[:1]),
    "numa.memory": but(needs={"numa": NumaConfig()}),
    "numa.asked": but(needs={"numa": NumaConfig(node=None, cpus=4096)}),
    "numa.unequal": but(nodes=NODES[:1]),
    "gpu.persistence": with_card(persistent=None),
    "disk.known": but(places=()),
    "kernel.memlock": NO_CARD,
    "kernel.swappiness": but(with_settings(vm__swappiness=60), kernel={"swap_mb": 0}),
    "disk.load-time": but(reads=(ReadTest("/m", 0, 1.0, direct=True), ReadTest("/n", 1, 0.0, direct=True))),
    "disk.inodes": but(places=(replace(MODELS, free_files=None),)),
    "machine.cpu": WELL,
    "machine.clock": but(clock=Clock()),
    "machine.namespaces": but(abilities={"root": False}),
    "network.daemon": but(addresses=(Address("127.0.0.1:8228", held_by="nginx"),)),
    "versions.cuda": NO_CARD,
}
"""Boxes on which there is nothing to look at for a check, and it must not say that all is well."""

__all__ = ["CARD", "NOT_THERE", "SEEN", "WELL_ON", "Case"]

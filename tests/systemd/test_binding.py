"""scripts/binding.sh: the drop-in that binds the unit, on recorded machines, where nvidia-smi tells the GPU's address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acu.running import ROOT

MACHINES = ROOT / "tests" / "acu" / "hardware" / "machines"
PROFILE = "numa: {cpus: 2, memory_mb: 16384}\n"


def binding(
    folder: Path, machine: str, config: str, *words: str, nodes: int | None = None, beside: str = ""
) -> subprocess.CompletedProcess[str]:
    """The script on a recorded machine with this configuration, and with other nodes of its devices."""
    sys_root = MACHINES / machine / "sys"
    if nodes is not None:
        shutil.copytree(sys_root, folder / "sys", symlinks=True)
        sys_root = folder / "sys"
        for node in sys_root.glob("bus/pci/devices/*/numa_node"):
            node.write_text(f"{nodes}\n")
            online = (sys_root / "devices" / "system" / "cpu" / "online").read_text()
            (node.parent / "local_cpulist").write_text(beside or online)  # all are beside a device of no node
    bus = next(path.name for path in (sys_root / "bus" / "pci" / "devices").iterdir() if "nvidia" in vendor(path))
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho 0000{bus.upper()}\n")
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "acu").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m acu "$@"\n')
    (folder / "acu").chmod(0o755)
    (folder / "acu.yaml").write_text(config)
    return subprocess.run(
        [ROOT / "scripts" / "binding.sh", *words, "--config", folder / "acu.yaml"],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(folder),
            "ACU_SYS_ROOT": str(sys_root),
            "ACU_COMMAND": str(folder / "acu"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def vendor(device: Path) -> str:
    """Who made a PCI device, as far as it matters."""
    file = device / "vendor"
    return "nvidia" if file.exists() and file.read_text().strip() == "0x10de" else ""


@pytest.mark.parametrize(("machine", "node"), [("a10g", 0), ("a10g-far", 1)])
def test_the_daemon_is_bound_to_the_node_of_its_gpu(tmp_path: Path, machine: str, node: int) -> None:
    done = binding(tmp_path, machine, "", "0")
    assert done.returncode == 0, done.stderr
    cpus = (MACHINES / machine / f"sys/devices/system/node/node{node}/cpulist").read_text().strip()
    assert done.stdout.splitlines()[1:] == [
        "[Service]",
        "NUMAPolicy=preferred",
        f"NUMAMask={node}",
        f"AllowedCPUs={cpus}",
    ]


def test_where_nobody_tells_the_node_of_the_gpu_nothing_is_bound(tmp_path: Path) -> None:
    done = binding(tmp_path, "a10g", "numa: {memory_mb: 8192}\n", "0", nodes=-1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["[Service]", "MemoryMax=8192M"]
    assert "does not tell the NUMA node of GPU 0: nothing is bound to a node. Name it by numa.node." in done.stderr


def test_where_only_the_cpus_beside_the_gpu_are_told_their_node_is_taken_as_by_the_daemon(tmp_path: Path) -> None:
    done = binding(tmp_path, "a10g", "", "0", nodes=-1, beside="1,3\n")
    assert done.stdout.splitlines()[2:4] == ["NUMAPolicy=preferred", "NUMAMask=1"]


def test_two_acus_on_one_node_share_no_cpu(tmp_path: Path) -> None:
    first, second = (binding(tmp_path, "a10g", PROFILE, number).stdout.splitlines() for number in ("0", "1"))
    assert first[2:4] == second[2:4] == ["NUMAPolicy=preferred", "NUMAMask=0"]
    assert first[4].startswith("AllowedCPUs=")
    assert second[4].startswith("AllowedCPUs=")
    assert first[4] != second[4]
    assert first[5:] == second[5:] == ["MemoryMax=16384M"]
    assert binding(tmp_path, "a10g", PROFILE, "7", "--slice", "1").stdout.splitlines()[4] == second[4]
    assert "--slice is a number up to 255, not 'all'" in binding(tmp_path, "a10g", PROFILE, "7", "--slice=all").stderr


def test_what_is_not_to_be_bound_has_no_drop_in(tmp_path: Path) -> None:
    done = binding(tmp_path, "a10g", "numa: {node: null}\n", "0")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_node_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = binding(tmp_path, "a10g", "numa: {node: 7}\n", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "numa.node: there is no node 7 with CPUs" in done.stderr

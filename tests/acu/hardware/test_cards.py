"""acu.hardware.cards: recorded cards field by field, a driver that fails in each way, and the memory that is watched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from acu.errors import GpuUnreadable
from acu.hardware import Gpu, gpu_present
from acu.hardware.cards import CardMemory, link_of, mps_runs, read_cards, sysfs_address
from acu.hardware.report import Driver
from tests.acu.hardware.recorded import machine_root, recorded_nvml
from tests.acu.running import ROOT

NODES = ("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl")
A10G = Gpu(
    index=0,
    name="NVIDIA A10G",
    memory_mb=23_028,
    memory_free_mb=22_578,
    uuid="GPU-4f2c7d10-93ab-5e6e-8d1f-0c9a17be2f31",
    bdf="0000:17:00.0",
    numa_node=0,
    cpus=tuple(range(0, 32, 2)),
    pcie=(4, 16),
    pcie_most=(4, 16),
    compute_mode="Default",
    capability=(8, 6),
    performance=0,
    persistent=True,
    pcie_slot=(4, 16),
    clocks_held=1,
    ecc_errors=0,
    remapping=(False, False),
)


def test_an_a10g_is_read_field_by_field() -> None:
    gpus, driver = read_cards(recorded_nvml("a10g"), machine_root("a10g"))
    assert gpus == (A10G,)
    assert driver == Driver(version="570.133.20", cuda="12.8", devices=NODES)


def test_a_card_on_the_other_node_says_so() -> None:
    (gpu,), _ = read_cards(recorded_nvml("a10g-far"), machine_root("a10g-far"))
    assert (gpu.bdf, gpu.numa_node, gpu.cpus) == ("0000:ca:00.0", 1, tuple(range(1, 32, 2)))


def test_two_cards_one_at_work_and_one_at_rest() -> None:
    (busy, idle), driver = read_cards(recorded_nvml("two-gpus"), machine_root("two-gpus"))
    assert (busy.compute_mode, busy.processes, busy.memory_free_mb) == (
        "Exclusive_Process",
        ((2302, 30), (31337, 5120)),
        17_428,
    )
    assert (idle.index, idle.pcie, idle.pcie_most, idle.performance, idle.processes) == (1, (1, 16), (4, 16), 8, ())
    assert (driver.mps, driver.cuda) == (True, "13.0")


def test_where_nobody_gives_nvml_this_machine_is_read() -> None:
    gpus, driver = read_cards()
    assert (gpus != ()) is (gpu_present() and not driver.problem)
    memory = CardMemory.open(0)
    assert (memory is not None) is (gpus != ())
    if memory is not None:
        memory.close()


def test_a_box_without_a_card_has_no_problem() -> None:
    assert read_cards(recorded_nvml("none"), machine_root("none")) == ((), Driver())
    assert not gpu_present(machine_root("none"))
    assert gpu_present(machine_root("a10g"))


def test_a_library_that_does_not_fit_the_module_is_a_problem_and_the_modules_version_is_told() -> None:
    nvml = recorded_nvml("a10g")
    nvml.failing["nvmlInit"] = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
    gpus, driver = read_cards(nvml, machine_root("a10g"))
    assert gpus == ()
    assert driver.version == "570.133.20"
    assert "version mismatch" in driver.problem
    assert nvml.opened == 0


FUNCTIONS = sorted(
    {*recorded_nvml("a10g").devices[0], *recorded_nvml("a10g").system} | {"nvmlDeviceGetCount", "nvmlInit"}
)


@pytest.mark.parametrize("name", [*FUNCTIONS, "nvmlDeviceGetHandleByIndex", "nvmlShutdown", "*"])
def test_whatever_fails_the_rest_is_told(name: str) -> None:
    nvml = recorded_nvml("a10g")
    nvml.failing[name] = "NVML_ERROR_GPU_IS_LOST"
    gpus, driver = read_cards(nvml, machine_root("a10g"))
    assert driver.version == "570.133.20"
    if gpus:
        assert (gpus[0].index, gpus[0].memory_mb, driver.problem) == (0, 23_028, "")
    else:
        assert "GPU is lost" in driver.problem
    assert nvml.opened == (1 if name == "nvmlShutdown" else 0)


def test_what_nvml_does_not_tell_sysfs_does() -> None:
    nvml = recorded_nvml("a10g")
    for name in ("CurrPcieLinkGeneration", "MaxPcieLinkWidth", "MemoryAffinity"):
        nvml.failing[f"nvmlDeviceGet{name}"] = "NVML_ERROR_NOT_SUPPORTED"
    (gpu,), _ = read_cards(nvml, machine_root("a10g"))
    assert gpu == A10G
    assert link_of("0000:17:00.0", "current", machine_root("a10g")) == (4, 16)
    assert link_of("0000:99:00.0", "current", machine_root("a10g")) is None


def test_what_sysfs_does_not_tell_nvml_does(tmp_path: Path) -> None:
    (far,), _ = read_cards(recorded_nvml("a10g-far"), tmp_path)
    assert (far.numa_node, far.cpus, far.pcie) == (1, (), (4, 16))
    nvml = recorded_nvml("a10g-far")
    nvml.devices[0]["nvmlDeviceGetMemoryAffinity"] = [3, 0]  # near both is near none
    assert read_cards(nvml, tmp_path)[0][0].numa_node is None


def test_one_lost_card_of_two_does_not_hide_the_other() -> None:
    nvml = recorded_nvml("two-gpus")
    nvml.devices[0]["nvmlDeviceGetMemoryInfo"] = {"error": "NVML_ERROR_GPU_IS_LOST"}
    gpus, driver = read_cards(nvml, machine_root("two-gpus"))
    assert [gpu.index for gpu in gpus] == [1]
    assert driver.problem.startswith("GPU 0: ")


def test_a_card_that_is_said_to_have_no_memory_is_none() -> None:
    nvml = recorded_nvml("two-gpus")
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        nvml.devices[0][function] |= {"total": 0, "used": 0, "free": 0}
    gpus, driver = read_cards(nvml, machine_root("two-gpus"))
    assert [gpu.index for gpu in gpus] == [1]
    assert driver.problem == "GPU 0: the driver says that it has no memory at all"


def test_an_address_is_written_as_the_kernel_writes_it() -> None:
    assert sysfs_address("00000000:CA:00.0") == "0000:ca:00.0"
    assert sysfs_address("00010000:3B:00.0") == "10000:3b:00.0"


def test_only_the_daemon_of_mps_counts(tmp_path: Path) -> None:
    assert mps_runs(machine_root("two-gpus"))
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "comm").write_text("nvidia-cuda-mps\n")
    (tmp_path / "proc" / "7" / "cmdline").write_bytes(b"nvidia-cuda-mps-server\0")
    assert not mps_runs(tmp_path)
    (tmp_path / "proc" / "7" / "cmdline").write_bytes(b"/usr/bin/nvidia-cuda-mps-control\0-d\0")
    assert mps_runs(tmp_path)


def test_the_memory_that_is_used_is_read_again_and_again() -> None:
    nvml = recorded_nvml("a10g")
    memory = CardMemory.open(0, nvml)
    assert memory is not None
    assert memory.used_mb() == 0
    nvml.hold(0, 20_480)
    assert memory.used_mb() == 20_480
    assert memory.capacity_mb() == 22_578  # without what the driver keeps
    memory.close()
    memory.close()
    assert nvml.opened == 0
    with pytest.raises(GpuUnreadable, match="GPU 0"):
        memory.used_mb()


def test_an_older_driver_counts_what_it_keeps_as_used() -> None:
    nvml = recorded_nvml("a10g")
    del nvml.devices[0]["nvmlDeviceGetMemoryInfo_v2"]
    memory = CardMemory.open(0, nvml)
    assert memory is not None
    assert memory.used_mb() == 450
    memory.close()


def test_a_card_that_is_lost_is_named_and_can_come_back() -> None:
    nvml = recorded_nvml("two-gpus")
    memory = CardMemory.open(1, nvml)
    assert memory is not None
    nvml.failing["nvmlDeviceGetMemoryInfo"] = "NVML_ERROR_GPU_IS_LOST"
    with pytest.raises(GpuUnreadable, match=r"GPU 1.*GPU is lost"):
        memory.used_mb()
    nvml.failing.clear()
    assert memory.used_mb() == 0
    memory.close()


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_card_that_cannot_be_read_is_not_watched(name: str) -> None:
    nvml = recorded_nvml("a10g")
    nvml.failing[name] = "NVML_ERROR_UNKNOWN"
    assert CardMemory.open(0, nvml) is None
    assert nvml.opened == 0


def test_there_is_no_card_of_that_number() -> None:
    nvml = recorded_nvml("a10g")
    assert CardMemory.open(1, nvml) is None
    assert nvml.opened == 0
    assert CardMemory.open(0, recorded_nvml("none")) is None


REAL = """
import sys
from pathlib import Path
import pynvml
from acu.hardware.cards import CardMemory, read_cards
print(repr(read_cards(None, Path(sys.argv[1]))))
memory = CardMemory.open(0, pynvml)
print(memory.used_mb(), CardMemory.open(1, pynvml))
memory.close()
"""


def test_the_real_pynvml_reads_a_library_with_nvmls_own_structs(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, Path(__file__).with_name("nvml.c")], check=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    done = subprocess.run(
        [sys.executable, "-c", REAL, tmp_path],
        cwd=ROOT,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    gpu = Gpu(
        index=0,
        name="NVIDIA A10G",
        memory_mb=23_028,
        memory_free_mb=22_000,
        uuid="GPU-4f2c7d10",
        bdf="0000:ca:00.0",
        numa_node=1,
        pcie=(1, 8),
        pcie_most=(4, 16),
        compute_mode="Exclusive_Process",
        processes=((77, 5120), (78, 0)),
        capability=(8, 6),
        performance=8,
        persistent=True,
    )
    driver = Driver(version="470.256.02", cuda="11.4", devices=("nvidia0",))
    assert done.stdout.splitlines() == [repr(((gpu,), driver)), "578 None"]


def test_a_card_in_a_slot_with_fewer_lanes_shows_both(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(machine_root("a10g"), root, symlinks=True)
    (root / "sys/devices/pci0000:16/0000:16:02.0/max_link_width").write_text("8\n")
    (gpu,), _ = read_cards(recorded_nvml("a10g"), root)
    assert (gpu.pcie_most, gpu.pcie_slot) == ((4, 16), (4, 8))
    (root / "sys/devices/pci0000:16/0000:16:02.0/max_link_width").unlink()  # a virtual machine's
    (gpu,), _ = read_cards(recorded_nvml("a10g"), root)
    assert gpu.pcie_slot is None


def test_a_card_that_is_not_well_tells_by_its_figures() -> None:
    nvml = recorded_nvml("a10g")
    nvml.devices[0] |= {
        "nvmlDeviceGetCurrentClocksThrottleReasons": 64,
        "nvmlDeviceGetTotalEccErrors": 3,
        "nvmlDeviceGetRemappedRows": [1, 2, 1, 0],
    }
    (gpu,), _ = read_cards(nvml, machine_root("a10g"))
    assert (gpu.clocks_held, gpu.ecc_errors, gpu.remapping) == (64, 3, (True, False))
    nvml.failing |= dict.fromkeys(
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows"),
        "NVML_ERROR_NOT_SUPPORTED",
    )
    (gpu,), _ = read_cards(nvml, machine_root("a10g"))
    assert (gpu.clocks_held, gpu.ecc_errors, gpu.remapping) == (None, None, None)

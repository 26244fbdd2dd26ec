"""The recorded machines themselves: whole trees, functions of pynvml, and a stand-in that refuses what the library refuses."""

from __future__ import annotations

import os

import pynvml
import pytest

from tests.acu.hardware.recorded import MACHINES, NAMES, machine_root, recorded_nvml


@pytest.mark.parametrize("name", NAMES)
def test_no_link_leads_nowhere_or_out_of_its_tree(name: str) -> None:
    root = machine_root(name)
    links = [path for path in root.rglob("*") if path.is_symlink() and path.parent.name != "ns"]
    assert links != []
    for link in links:
        assert link.exists(), link
        assert link.resolve().is_relative_to(root), link


def test_every_machine_is_named() -> None:
    assert sorted(NAMES) == sorted(path.name for path in MACHINES.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_every_function_is_one_of_pynvmls(name: str) -> None:
    nvml = recorded_nvml(name)
    for function in {*nvml.system}.union(*nvml.devices):
        assert hasattr(pynvml, function) or function.endswith("_v2"), function


def test_the_stand_in_answers_only_while_it_is_open() -> None:
    nvml = recorded_nvml("a10g")
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA A10G"
    assert nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(handle)) is handle
    assert nvml.nvmlDeviceGetHandleByPciBusId("00000000:17:00.0") is handle
    with pytest.raises(pynvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetMigMode(handle)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByUUID("GPU-0")
    nvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetName(handle)


def test_what_is_held_adds_up_in_both_versions() -> None:
    nvml = recorded_nvml("a10g")
    nvml.hold(0, 10_000)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    old, new = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    assert old.total == new.total == old.used + old.free == new.used + new.free + new.reserved
    assert new.used == 10_000 << 20
    nvml.nvmlShutdown()


def test_programs_of_a_recorded_machine_may_be_run() -> None:
    assert os.access(machine_root("a10g") / "usr/bin/nvidia-smi", os.X_OK)

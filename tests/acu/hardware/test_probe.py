"""acu.hardware.probe: facts that can be checked against the kernel's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from acu.hardware import gpu_present, probe_machine
from acu.hardware.numa import allowed_cpus, cores_of
from acu.hardware.probe import bounded, cgroup_tasks, cgroups_of, memory, reclaimable
from agentflow.engine.vllm.facts import one_cpu_a_core
from tests.acu.hardware.recorded import machine_root, recorded_nvml
from tests.acu.running import ROOT


def test_the_report_agrees_with_the_system() -> None:
    report = probe_machine()
    assert report.cpus == len(os.sched_getaffinity(0))
    assert 1 <= report.cores <= report.cpus
    assert 0 < report.memory_available <= report.memory_total <= psutil.virtual_memory().total
    assert report.cpu_model != ""


def test_without_a_device_there_is_no_gpu() -> None:
    if gpu_present():
        pytest.skip("this machine has a GPU")
    assert probe_machine().gpus == ()


def test_the_narrowest_cgroup_bounds_the_memory() -> None:
    assert bounded(5000, 3000, []) == (5000, 3000)
    assert bounded(5000, 3000, [(4000, 100), (1000, 400)]) == (1000, 600)
    assert bounded(5000, 3000, [(1000, 1200)]) == (1000, 0)


def test_page_cache_counts_as_free(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 1234\nactive_file 9\n")
    assert reclaimable(tmp_path) == 1234


def test_a_recorded_machine_is_probed_through_its_root() -> None:
    report = probe_machine(machine_root("two-gpus"), recorded_nvml("two-gpus"))
    assert (report.cpus, report.cores, report.cpu_features) == (32, 16, ("avx2", "avx512f"))
    assert [(gpu.index, gpu.numa_node, gpu.memory_mb) for gpu in report.gpus] == [(0, 0, 23_028), (1, 1, 23_028)]
    assert probe_machine(machine_root("none")).gpus == ()


def test_cpus_that_share_a_core_are_counted_once() -> None:
    root = machine_root("a10g")
    assert len(cores_of((0, 16), root)) == 1
    assert len(cores_of((0, 1, 16), root)) == 2
    assert len(cores_of((0, 99), root)) == 2  # nothing is known of 99
    assert len(cores_of(allowed_cpus())) == len(one_cpu_a_core())


def test_cgroups_are_those_above_this_process_of_both_versions(tmp_path: Path) -> None:
    assert list(cgroups_of("pids", tmp_path)) == []
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:pids,misc:/a/b\n4:memory:/c\n0::/d\n")
    top = tmp_path / "sys/fs/cgroup"
    v1 = [(top / "pids" / name, True) for name in ("a/b", "a", "")]
    assert list(cgroups_of("pids", tmp_path)) == [*v1, (top / "d", False), (top, False)]
    assert cgroup_tasks(tmp_path) == []


def test_a_recorded_tree_without_its_memory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="meminfo"):
        memory(tmp_path)


WITHOUT_PROC = """
import os, psutil
from acu.hardware.numa import allowed_cpus
from acu.hardware.pin import apply
from acu.hardware.placement import Placement
from acu.hardware.probe import memory
assert not os.path.exists("/proc/self")
total, available = memory()
assert 0 < available <= total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
first = allowed_cpus()[0]
bound = apply(Placement(cpus=(first,)), ())
assert (bound.cpus, bound.problems) == ((first,), ()), bound
assert os.sched_getaffinity(0) == {first}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a mount namespace")
def test_a_box_without_proc_is_asked_without_it() -> None:
    script = 'mount --make-rprivate / && umount -l /proc && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", WITHOUT_PROC]
    subprocess.run(command, cwd=ROOT, check=True)

"""acu.hardware.probe: facts that can be checked against the kernel's own."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from acu.hardware import gpu_present, probe_machine
from acu.hardware.probe import bounded, reclaimable


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

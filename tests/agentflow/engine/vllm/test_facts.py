"""What is read of the machine and of models' folders."""

import os
from pathlib import Path

import pytest

from agentflow.engine.vllm.facts import one_cpu_a_core, read_machine


def test_one_cpu_of_each_core_that_may_be_used_is_counted() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert one_cpu_a_core() == (min(allowed),)
    finally:
        os.sched_setaffinity(0, allowed)
    siblings = {Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in allowed}
    assert len(one_cpu_a_core()) == len(siblings)
    assert set(one_cpu_a_core()) <= allowed


def test_the_operators_own_binding_of_threads_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not read_machine(1 << 30, tmp_path).threads_told
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
    assert read_machine(1 << 30, tmp_path).threads_told

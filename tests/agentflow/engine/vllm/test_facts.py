"""What is read of the machine and of models' folders."""

import os
from pathlib import Path

import pytest

from agentflow.engine.vllm.facts import one_cpu_a_core


def test_of_each_core_the_last_cpu_that_may_be_used_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert one_cpu_a_core(tmp_path) == (2, 3, 4)  # nothing is known of 4: a core of its own
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3})
    assert one_cpu_a_core(tmp_path) == (0, 3)


def test_this_machine_has_a_cpu_for_each_of_its_cores() -> None:
    found = one_cpu_a_core()
    assert found
    assert set(found) <= os.sched_getaffinity(0)

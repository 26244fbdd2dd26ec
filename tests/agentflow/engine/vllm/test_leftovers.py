"""What the dead left is removed, and nothing else."""

import os
import subprocess
import sys
import tempfile
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest

from agentflow.engine.vllm import leftovers


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_dead_daemons_go_and_those_of_the_living_stay(temporary: Path, dead_pid: int) -> None:
    mine = leftovers.new_folder()
    dead = temporary / f"acu-engine-{dead_pid}-abc_1"
    dead.mkdir()
    (dead / "socket").touch()
    other = temporary / "acu-engine-notes"
    other.mkdir()
    link = temporary / f"acu-engine-{dead_pid}-link"
    link.symlink_to(other)
    leftovers.remove_what_the_dead_left()
    assert sorted(path.name for path in temporary.iterdir()) == sorted([mine.name, other.name, link.name])


def test_openmp_notes_of_dead_processes_of_this_user_go(dead_pid: int) -> None:
    shm = Path("/dev/shm")
    dead, living = (shm / f"__KMP_REGISTERED_LIB_{pid}_{os.getuid()}" for pid in (dead_pid, os.getpid()))
    strangers = shm / f"__KMP_REGISTERED_LIB_{dead_pid}_{os.getuid() + 1}"
    try:
        for path in (dead, living, strangers):
            path.touch()
        leftovers.remove_what_the_dead_left()
        assert (dead.exists(), living.exists(), strangers.exists()) == (False, True, True)
    finally:
        for path in (dead, living, strangers):
            path.unlink(missing_ok=True)


def test_semaphores_of_dead_daemons_and_of_an_ended_engine_go(dead_pid: int) -> None:
    folder = leftovers.new_folder()
    shm = Path("/dev/shm")
    ended, dead = shm / f"sem.{folder.name}-k3j2h1", shm / f"sem.acu-engine-{dead_pid}-x-k3j2h1"
    other = shm / f"sem.{folder.name}2-k3j2h1"
    try:
        for path in (ended, dead, other):
            path.touch()
        resource_tracker.register(f"/{folder.name}-k3j2h1", "semaphore")
        leftovers.remove_semaphores(folder)
        assert (ended.exists(), dead.exists(), other.exists()) == (False, True, True)
        leftovers.remove_what_the_dead_left()
        assert (dead.exists(), other.exists()) == (False, True)
    finally:
        for path in (ended, dead, other):
            path.unlink(missing_ok=True)


def test_shared_memory_of_a_process_is_found_and_removed() -> None:
    block = shared_memory.SharedMemory(create=True, size=4096)
    found = leftovers.shared_memory_of(os.getpid())
    assert block.name in found
    leftovers.remove_shared_memory(frozenset({block.name}), ())
    assert not Path("/dev/shm", block.name).exists()
    leftovers.remove_shared_memory(frozenset({block.name}), ())
    block.close()

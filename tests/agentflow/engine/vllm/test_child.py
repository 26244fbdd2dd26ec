"""Children die with the daemon: a parent that spawns as the engine's host does, and is killed with SIGKILL."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentflow.engine.vllm.child import descends_from

PARENT = """
import multiprocessing, os, sys, threading, time
from agentflow.engine.vllm.spawning import spawning

def live():
    read, write = os.pipe()
    with spawning({"ACU_TEST": "yes", "ACU_ENGINE_NICE": "3"}, write, "acu-engine-SELF-x".replace("SELF", str(os.getpid()))):
        child = multiprocessing.get_context("spawn").Process(target=family.have_a_child)
        child.start()
    print("spec", getattr(sys.modules["__main__"].__spec__, "name", None), os.environ.get("ACU_TEST"), flush=True)
    while True:
        sys.stdout.write(os.read(read, 4096).decode()); sys.stdout.flush()

sys.path.insert(0, FOLDER)
import family
threading.Thread(target=live, daemon=True).start()
print("main", flush=True)
time.sleep(60)
"""
FAMILY = """
import multiprocessing, os, sys, time

def tell(who):
    main = sys.modules["__main__"].__spec__.name
    nicer = os.nice(0) - int(os.environ["ACU_TEST_NICE"])
    print(who, os.getpid(), os.environ.get("ACU_TEST"), os.getpgrp() == os.getpid(), main, nicer, flush=True)

def have_a_child():
    tell("child")
    multiprocessing.get_context("spawn").Process(target=sleep).start()
    time.sleep(60)

def sleep():
    lock = multiprocessing.get_context("spawn").Lock()
    tell("grandchild")
    time.sleep(60)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    (folder / "family.py").write_text(FAMILY)
    (folder / "parent.py").write_text(PARENT.replace("FOLDER", repr(str(folder))))
    return subprocess.Popen(
        [sys.executable, folder / "parent.py"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd()), "ACU_TEST_NICE": str(os.nice(0))},
    )


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it ended meanwhile
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, path.read_text().split()):
                found |= {child} | descendants(child)
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_gone_soon(pids: set[int]) -> None:
    deadline = time.monotonic() + 20  # they would sleep for 60 s
    while any(map(lives, pids)):
        assert time.monotonic() < deadline, f"still alive: {[pid for pid in pids if lives(pid)]}"
        time.sleep(0.02)


def test_child_and_grandchild_die_with_the_parent_write_into_its_pipe_and_are_as_nice_as_told(tmp_path: Path) -> None:
    with start(tmp_path) as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().split() for _ in range(4)]
        told = {line[0]: line[1:] for line in lines}
        family = descendants(parent.pid)
        locks = list(Path("/dev/shm").glob(f"sem.acu-engine-{parent.pid}-x-*"))
        parent.kill()
        assert_gone_soon(family)
    assert len(locks) == 1
    assert told["spec"] == ["None", "None"]  # the parent is as it was before
    module = "agentflow.engine.vllm.child"
    for who in ("child", "grandchild"):
        assert told[who][1:] == ["yes", "True", module, "3"]
    assert {int(told[who][0]) for who in ("child", "grandchild")} <= family


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5])
def test_nothing_lives_on_whenever_the_parent_dies(tmp_path: Path, after_s: float) -> None:
    with start(tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "main\n"
        time.sleep(after_s)
        os.kill(parent.pid, signal.SIGSTOP)  # so that the family does not grow while it is counted
        family = descendants(parent.pid)
        parent.kill()
        assert_gone_soon(family)


def test_ancestry_is_told_over_generations_and_denied_to_strangers() -> None:
    assert descends_from(os.getppid())
    assert not descends_from(os.getpid())
    assert not descends_from(2**22 + 1)

"""The minder: real programs that leave strays behind, and real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agentflow.tools import mcplaunch
from agentflow.tools.minder import END

LAUNCH = (sys.executable, "-I", "-S", mcplaunch.__file__)
SILENT = ">/dev/null 2>&1"
STRAYS = f"sleep 60 {SILENT} & echo $!; setsid sh -c 'sleep 60 {SILENT} & echo $!; exec sleep 60 {SILENT}' &"
"""A child in the program's group, and one of nobody in a session of its own."""


def launched(script: str, parent: int | None = None) -> subprocess.Popen[str]:
    command = [*LAUNCH, str(os.getpid() if parent is None else parent), "sh", "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def until(true: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def numbers(minder: subprocess.Popen[str], count: int) -> list[int]:
    assert minder.stdout is not None
    return [int(minder.stdout.readline()) for _ in range(count)]


@pytest.mark.parametrize(
    ("end", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -SEGV $$", -signal.SIGSEGV), ("kill -9 $$", -signal.SIGKILL)]
)
def test_a_minder_ends_as_its_program_does_and_leaves_none_of_what_that_started(end: str, code: int) -> None:
    with launched(f"{STRAYS} sleep 0.1; {end}") as minder:
        pids = numbers(minder, 2)
        assert minder.wait(20) == code
    assert not any(map(running, pids))


def test_a_minder_that_is_asked_ends_all_at_once_also_what_no_polite_signal_ends() -> None:
    with launched(f"trap '' TERM; echo $$; {STRAYS} while true; do sleep 1; done") as minder:
        pids = numbers(minder, 3)
        minder.send_signal(END)
        assert minder.wait(20) == -signal.SIGKILL
    assert not any(map(running, pids))


def test_a_polite_signal_is_the_programs_to_answer() -> None:
    with launched("trap 'echo 5; exit 3' TERM; echo $$; while true; do sleep 0.05; done") as minder:
        numbers(minder, 1)
        minder.terminate()
        assert numbers(minder, 1) == [5]
        assert minder.wait(20) == 3


def test_a_program_that_multiplies_is_ended() -> None:
    script = (
        f"f() {{ echo $$; (sleep 60 {SILENT} & f2) {SILENT} & }}; f2() {{ setsid sleep 60 & sleep 0.01; f2; }}; f; wait"
    )
    with launched(script) as minder:
        numbers(minder, 1)
        group = psutil.Process(minder.pid)
        until(lambda: len(group.children(recursive=True)) > 12)
        started = [child.pid for child in group.children(recursive=True)]
        minder.send_signal(END)
        assert minder.wait(20) == -signal.SIGKILL
    assert not any(map(running, started))


def test_a_program_ends_with_its_minder() -> None:
    with launched("echo $$; exec sleep 60") as minder:
        (program,) = numbers(minder, 1)
        minder.kill()
    until(lambda: not running(program))


def test_all_ends_when_the_process_that_began_it_is_killed() -> None:
    script = "import os, subprocess, sys; subprocess.run([*sys.argv[2:], str(os.getpid()), 'sh', '-c', sys.argv[1]])"
    command = [sys.executable, "-c", script, f"{STRAYS} echo $$; wait; sleep 60", *LAUNCH]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as daemon:
        pids = numbers(daemon, 3)
        assert all(map(running, pids))
        daemon.kill()
    until(lambda: not any(map(running, pids)))


def test_a_program_is_not_begun_for_a_process_that_is_gone(tmp_path: Path) -> None:
    with launched(f"touch {tmp_path}/begun", parent=1 << 22) as minder:
        assert minder.wait(20) == 1
    assert not list(tmp_path.iterdir())

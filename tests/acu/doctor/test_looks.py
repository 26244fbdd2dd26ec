"""acu.doctor.looks: no part of an examination spoils or holds up the whole."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from acu.doctor.looks import Looks
from acu.doctor.sight import Sight
from acu.errors import GpuUnreadable
from tests.acu.running import ROOT


def test_looks_go_on_at_the_same_time(tmp_path: Path) -> None:
    looks = Looks(Sight(tmp_path), patience_s=30)
    meet = threading.Barrier(3, timeout=20)  # each waits until all are there
    begun = [looks.at(str(number), meet.wait, -1) for number in range(3)]
    assert sorted(look.value() for look in begun) == [0, 1, 2]


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "Input/output error"),
        ValueError("bad"),
        KeyError("MemTotal"),
        GpuUnreadable("lost"),
        ctypes.ArgumentError("argument 1"),
    ],
)
def test_a_look_that_fails_has_its_default_and_says_why(error: Exception, tmp_path: Path) -> None:
    sight = Sight(tmp_path)

    def fail() -> int:
        raise error

    assert Looks(sight, patience_s=30).at("the disk", fail, 7).value() == 7
    assert len(sight.unread) == 1
    assert sight.unread[0].startswith("the disk: ")


def test_a_look_that_hangs_is_left_behind(tmp_path: Path) -> None:
    sight = Sight(tmp_path)
    looks = Looks(sight, patience_s=0.05)
    release = threading.Event()
    hung = looks.at("a network disk", lambda: release.wait(60), None)
    quick = looks.at("the rest", lambda: 1, 0)
    try:
        assert hung.value() is None
        assert quick.value() == 1
        assert hung.value() is None
        assert sight.unread == ["a network disk: it took too long"]
    finally:
        release.set()


def test_a_look_apart_answers_and_its_notes_are_kept() -> None:
    sight = Sight()

    def see() -> tuple[int, str]:
        sight.note("a file", OSError(5, "Input/output error"))
        return os.getpid(), "x" * (1 << 20)  # more than a pipe holds

    look = Looks(sight, patience_s=30).apart("the disk", see, (0, ""))
    pid, text = look.value()
    assert pid not in {0, os.getpid()}
    assert len(text) == 1 << 20
    assert look.value() == (pid, text)
    assert sight.unread == ["a file: Input/output error"]


def test_a_look_apart_that_hangs_is_ended_and_nothing_is_left() -> None:
    sight = Sight()
    before = set(psutil.Process().children())
    files = psutil.Process().num_fds()
    with Looks(sight, patience_s=0.05) as looks:
        assert looks.apart("a dead disk", threading.Event().wait, 7).value() == 7
    assert sight.unread == ["a dead disk: it took too long"]
    assert set(psutil.Process().children()) == before
    assert psutil.Process().num_fds() == files


def test_a_look_apart_that_fails_or_dies_has_its_default() -> None:
    sight = Sight()
    looks = Looks(sight, patience_s=30)

    def fail() -> int:
        raise OSError(5, "Input/output error")

    failed, died = looks.apart("a disk", fail, 7), looks.apart("a driver", lambda: os._exit(3), 8)
    assert (failed.value(), died.value()) == (7, 8)
    assert sight.unread == ["a disk: Input/output error", "a driver: its process ended with 3"]


def test_a_look_apart_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def loud() -> int:
        os.write(1, b"out")
        os.write(2, b"err")
        return 1

    assert Looks(Sight(), patience_s=30).apart("a loud library", loud, 0).value() == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_where_neither_process_nor_thread_is_to_be_had_looks_are_had_one_after_the_other() -> None:
    code = """
import os, resource
from acu.doctor.looks import Looks
from acu.doctor.sight import Sight
os.setgroups([])
os.setresgid(61234, 61234, 61234)
os.setresuid(61234, 61234, 61234)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
looks = Looks(Sight(), 30)
both = looks.apart("a", os.getpid, 0), looks.at("b", os.getpid, 0)
assert [look.value() for look in both] == [os.getpid(), os.getpid()]
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

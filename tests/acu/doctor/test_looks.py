"""acu.doctor.looks: no part of an examination spoils or holds up the whole."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest

from acu.doctor.looks import Looks
from acu.doctor.sight import Sight
from acu.errors import GpuUnreadable


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

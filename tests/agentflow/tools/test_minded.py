"""A process of the daemon's own that minds another: its end is told, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentflow.tools import mcplaunch
from agentflow.tools.minded import Minded

LAUNCH = (sys.executable, "-I", "-S", mcplaunch.__file__, str(os.getpid()))


def begun(*command: str) -> Minded:
    """A minder of `command`, which has said something: it minds by now."""
    return started(*LAUNCH, *command)


def started(*command: str) -> Minded:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"up\n"
    return Minded(process)


def below(minded: Minded) -> list[psutil.Process]:
    return psutil.Process(minded.pid).children(recursive=True)


async def test_its_end_is_told_once_and_how(tmp_path: Path) -> None:
    go = tmp_path / "go"
    minded = begun("sh", "-c", f"echo up; until [ -e {go} ]; do sleep 0.01; done; exit 3")
    told: list[int | None] = []
    minded.watch(lambda: told.append(minded.code))
    assert (minded.ended, minded.code) == (False, None)
    go.touch()
    await minded.wait()
    await asyncio.sleep(0.05)
    assert (minded.ended, told) == (True, [3])


async def test_a_kill_ends_it_with_all_that_it_started() -> None:
    minded = begun("sh", "-c", "trap '' TERM; sleep 60 & echo up; wait")
    children = below(minded)
    assert len(children) == 2
    minded.watch(lambda: None)
    minded.signal(signal.SIGTERM)
    minded.kill()
    await minded.wait()
    assert not any(process.is_running() for process in children)


async def test_a_minder_that_was_stopped_by_what_it_minds_ends_all_the_same() -> None:
    minded = begun("sh", "-c", "kill -STOP $PPID; setsid sleep 60 & echo up; wait")
    children = below(minded)
    minded.watch(lambda: None)
    minded.kill()
    await minded.wait()
    assert not any(process.is_running() for process in children)
    assert minded.code == -signal.SIGKILL  # as what it minds


async def test_what_nobody_takes_on_is_ended_with_all_that_it_started() -> None:
    minded = begun("sh", "-c", "sleep 60 & echo up; wait")
    children = below(minded)
    await asyncio.to_thread(minded.discard)
    assert minded.code is not None
    assert not any(process.is_running() for process in children)


async def test_a_minder_that_does_not_answer_is_killed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.tools.minded.LAST_S", 0.1)
    minded = started("sh", "-c", "trap '' USR1; echo up; exec sleep 60")  # no minder, and deaf to what one hears
    minded.watch(lambda: None)
    minded.kill()
    await minded.wait()
    assert minded.code == -signal.SIGKILL
    minded.kill()  # once more does no harm

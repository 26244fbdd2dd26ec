"""Calls on files: full disks have a word of their own, and no thread outlives whom it works for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from acu.http.disk import on_disk
from agentflow.library.refusals import DiskFull


async def test_what_a_call_returns_and_raises_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert await on_disk(file.write_bytes, b"abc") == 3
    assert await on_disk(file.read_bytes) == b"abc"
    with pytest.raises(FileNotFoundError):
        await on_disk((tmp_path / "b").read_bytes)


async def test_a_full_disk_is_told_as_such() -> None:
    with pytest.raises(DiskFull):
        await on_disk(Path("/dev/full").write_bytes, b"x")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_is_waited_for_when_its_caller_is_cancelled(fails: bool) -> None:
    done: list[str] = []

    def slow() -> None:
        time.sleep(0.05)
        done.append("slow")
        if fails:
            raise OSError("nobody hears of it")

    task = asyncio.create_task(on_disk(slow))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["slow"]

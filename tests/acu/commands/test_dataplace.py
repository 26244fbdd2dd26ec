"""Where `acu data` finds the data, without any, and how its loop ends."""

from __future__ import annotations

import _thread
import asyncio
import time
from pathlib import Path

import pytest

from acu.commands.dataplace import InFolder, archive_of, ran
from acu.errors import DataError
from dataplane.cold_config import ColdConfig
from dataplane.config import DataPlaneConfig


def test_the_end_waits_for_threads_that_python_did_not_start() -> None:
    begun, ended = asyncio.Event(), list[int]()

    def foreign(loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.1)
        ended.append(1)

    async def work() -> str:
        _thread.start_new_thread(foreign, (asyncio.get_running_loop(),))  # as obstore's: unknown to `threading`
        await begun.wait()
        return "done"

    assert (ran(work()), ended) == ("done", [1])


def test_a_lost_box_is_told_of_its_archive(tmp_path: Path) -> None:
    config = DataPlaneConfig(path=str(tmp_path / "data"))
    with pytest.raises(DataError, match="nothing has been stored there yet"):
        InFolder(config).status()
    (tmp_path / "data-cold" / config.cold.prefix).mkdir(parents=True)
    (tmp_path / "data-cold" / config.cold.prefix / "object").touch()
    with pytest.raises(DataError, match=r"data-cold: bring it back with `acu data restore --from-bucket`"):
        InFolder(config).status()
    bucket = ColdConfig(bucket="b", region="r", prefix="box1")
    assert archive_of(DataPlaneConfig(path=str(tmp_path / "data"), cold=bucket)) == "the bucket b, prefix box1"


def test_a_lost_database_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    file = tmp_path / "data" / "library" / "files" / "a"
    file.parent.mkdir(parents=True)
    file.touch()
    for _ in range(2):
        with pytest.raises(DataError, match=r"rocks is lost: library/files beside it is not empty"):
            InFolder(DataPlaneConfig(path=str(tmp_path / "data"))).status()
    assert not (tmp_path / "data" / "rocks").exists()

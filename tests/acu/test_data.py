"""Data: what those who ask are told when the library is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from acu.config import AcuConfig
from acu.data import Data
from agentflow.library.refusals import DataUnavailable
from dataplane.config import DataPlaneConfig


class Broken:
    """A library with a defect in its background work."""

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        raise RuntimeError("a defect")


def data(folder: Path, embedder: str | None) -> Data:
    service: Any = None  # it is not asked
    return Data(AcuConfig(data_plane=DataPlaneConfig(path=str(folder / "data"))), service, embedder)


async def test_a_library_that_failed_is_told_as_such_and_not_tried_again(tmp_path: Path) -> None:
    kept = data(tmp_path, "embed")
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broken: Any = Broken()
    await kept._run(broken, started)
    with pytest.raises(DataUnavailable):
        await started
    with pytest.raises(DataUnavailable, match=r"needs a restart of the daemon: .*a defect"):
        await kept.library()
    assert kept.status()["state"] == "failed"
    await kept.close()
    assert kept.plane is None


async def test_without_an_embedding_model_it_is_said_what_to_configure(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable, match=r"configure models\.embed"):
        await data(tmp_path, None).library()

"""Data: what those who ask are told when the library is not there."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from acu.config import AcuConfig
from acu.data import plane
from acu.data.plane import Data
from agentflow.config import ModelConfig
from agentflow.library.config import LibraryConfig
from agentflow.library.prompts import Prompts
from agentflow.library.refusals import DataUnavailable
from dataplane.config import DataPlaneConfig
from tests.acu.models.modelfiles import write_model


class Broken:
    """A library with a defect in its background work."""

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        raise RuntimeError("a defect")


class Defective:
    """A service with a defect, which the opening of the library meets."""

    def __init__(self) -> None:
        self.asked = 0

    async def tokenizer(self, model: str) -> None:
        self.asked += 1
        raise RuntimeError(f"a defect of {model}")


def data(folder: Path, embedder: str | None, service: Any = None) -> Data:
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


def test_the_embedding_models_folder_says_what_stands_before_texts(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "e5")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: ", "passage": "p: "}}')
    models = {"large": ModelConfig(model="/nowhere"), "embed": ModelConfig(model=str(folder))}
    service: Any = None
    assert Data(AcuConfig(models=models), service, "e5")._looked_at("e5")[0] == Prompts("q: ", "p: ")
    played = {"embed": ModelConfig(model=str(folder), engine="scripted")}
    library = LibraryConfig(passage_prefix="mine: ")
    assert Data(AcuConfig(models=played, library=library), service, "e5")._looked_at("e5")[0] == Prompts("", "mine: ")
    fingerprints = {
        Data(AcuConfig(models=models, library=each), service, "e5")._looked_at("e5")[1].fingerprint
        for each in (LibraryConfig(), library, LibraryConfig(query_prefix="other: "))
    }
    assert sorted(map(len, fingerprints)) == [16, 16]  # what stands before queries changes no stored vector
    gone = {"embed": ModelConfig(model=str(tmp_path / "gone"))}
    assert Data(AcuConfig(models=gone), service, "gone")._looked_at("gone")[0] == Prompts()


async def test_without_an_embedding_model_it_is_said_what_to_configure(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable, match=r"configure models\.embed"):
        await data(tmp_path, None).library()


async def test_a_defect_met_at_the_start_ends_nothing_else_and_is_told_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Defective()
    (tmp_path / "data").mkdir()
    kept = data(tmp_path, "embed", service)
    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(asyncio.Event().wait())
        kept.start(tasks)
        assert kept._opening is not None
        await asyncio.wait([kept._opening])
        with pytest.raises(DataUnavailable, match=r"the daemon's log has the traceback: .*a defect of embed"):
            await kept.library()
        assert service.asked == 1
        assert "a defect of embed" in str(kept.status()["why"])
        assert [record.exc_info is not None for record in caplog.records if record.name == "acu.data"] == [True]
        kept._failed_at = -math.inf  # the pause is over
        with pytest.raises(DataUnavailable, match="a defect of embed"):
            await kept.library()
        assert service.asked == 2
        assert not others.done()
        others.cancel()
        await kept.close()


@pytest.mark.parametrize(("slow_s", "told"), [(0.0, 1), (3600.0, 0)])
async def test_an_opening_that_lasts_is_told_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow_s: float, told: int
) -> None:
    monkeypatch.setattr(plane, "SLOW_S", slow_s)
    kept = data(tmp_path, None)
    await kept.opened()
    await kept.close()
    lines = [record for record in caplog.records if record.getMessage() == "the data plane is not open yet"]
    assert [vars(line)["folder"] for line in lines] == [str(tmp_path / "data")] * told

"""What is stored of runs: one record that cannot be read hides no other, and what is removed is removed whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentflow.agents import journal
from agentflow.agents.archive import Archive, RunRecord
from agentflow.library.refusals import DataDamaged
from dataplane import DataPlane, DataPlaneConfig, StateStore
from tests.agentflow.agents.agencies import benched


@pytest_asyncio.fixture
async def state(tmp_path: Path) -> AsyncIterator[StateStore]:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    yield plane.state
    await plane.close()


async def test_a_list_leaves_out_what_cannot_be_read_and_goes_on_behind_it(
    state: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Archive(state)
    for name in ("run_0", "run_5"):
        await archive.close("t", RunRecord(id=name, agent="a", model="m", created_ms=1))
    for name, damaged in (("run_1", b"{"), ("run_2", b"[]"), ("run_3", b'{"id": "\xff"}'), ("run_6", b"")):
        await state.put("t", "run", name, damaged)
    with caplog.at_level(logging.WARNING):
        assert [run.id for run in await archive.page("t", None, 2)] == ["run_0"]
        assert [run.id for run in await archive.page("t", "run_0", 2)] == ["run_5"]
        assert await archive.page("t", "run_5", 2) == []
    assert {record.__dict__["run"] for record in caplog.records} == {"run_1", "run_2", "run_3", "run_6"}
    with pytest.raises(DataDamaged, match="'run_1' cannot be read: restore it from a backup"):
        await archive.find("t", "run_1")
    assert await archive.delete("t", "run_1")
    assert await archive.find("t", "run_1") is None


async def test_a_run_goes_with_all_its_parts_however_many(state: StateStore) -> None:
    names = [f"run_1/{number}" for number in range(journal.PAGE + 7)]
    await asyncio.gather(*(state.put("t", journal.PARTS, name, b"x") for name in [*names, "run_2/1"]))
    assert not await journal.remove(state, "t", "run_1")  # it had no log
    assert [name for name, _ in await state.scan("t", journal.PARTS)] == ["run_2/1"]


async def test_what_is_known_of_the_index_is_damaged_and_it_is_made_anew(state: StateStore) -> None:
    archive = Archive(state)
    await archive.close("t", RunRecord(id="run_1", agent="a", model="m", created_ms=1, end="failed"))
    await state.put("t", "run_index", "all", b"{")
    assert [run.id for run in await archive.closed("t", "a", "failed", "", 5)] == ["run_1"]
    assert [run.id for run in await Archive(state).closed("t", "a", None, "", 5)] == ["run_1"]


async def test_of_a_run_that_had_not_begun_no_part_of_its_beginning_stays(tmp_path: Path) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    archive = Archive(plane.state)
    await archive.open("t", RunRecord(id="run_1", agent="a", model="m", created_ms=1))
    await plane.state.put("t", journal.PARTS, "run_1/1", b"a long conversation")
    async with benched(tmp_path, {}, [], plane=plane) as it:
        assert await it.service.agents.resume() == 0
    for kind in ("run", "open_run", journal.PARTS):
        assert await plane.state.scan("t", kind) == []
    await plane.close()

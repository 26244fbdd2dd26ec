"""A part of all runs is listed by reading no more than is shown, whatever else there is, and older runs are found as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentflow.agents.account import RunSummary
from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.overview import Overview, Wanted
from agentflow.agents.runindex import KIND
from dataplane import DataPlane, DataPlaneConfig, StateStore
from dataplane.state.versioned import Versioned
from tests.agentflow.agents.agencies import benched

COUNT = 2000
RARE = 500  # every so many is of the agent `rare`, and every so many others failed


class Reading:
    """A state store that counts the records that were read."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self.records = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    async def get(self, tenant: str, kind: str, name: str) -> Versioned | None:
        self.records += 1
        return await self._state.get(tenant, kind, name)

    async def scan(self, *args: Any, **more: Any) -> list[tuple[str, Versioned]]:
        found = await self._state.scan(*args, **more)
        self.records += len(found)
        return found


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[DataPlane]:
    opened = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    yield opened
    await opened.close()


@asynccontextmanager
async def counted(folder: Path, plane: DataPlane) -> AsyncIterator[tuple[Overview, Reading]]:
    """An overview of what the data plane has, and what it has read."""
    reading = Reading(plane.state)
    plane.state = reading  # type: ignore[assignment]  # a store in all but its class
    async with benched(folder, {"": "Done."}, [], plane=plane) as it:
        yield Overview(it.service.agents), reading


async def all_pages(overview: Overview, limit: int, **wanted: Any) -> list[RunSummary]:
    found: list[RunSummary] = []
    more = True
    while more:
        page, more = await overview.page("acme", Wanted(limit=limit, after=found[-1].id if found else None, **wanted))
        found += page
    return found


def run(number: int) -> RunRecord:
    """Of the agent `a`, and completed; but for some."""
    return RunRecord(
        id=f"run_{number:06}",
        agent="rare" if number % RARE == 7 else "a",
        model="m",
        created_ms=1000,
        ended_ms=2000,
        end="failed" if number % RARE in (7, 9) else "completed",
    )


async def put_old(state: StateStore, numbers: range) -> None:
    """As an earlier release stored runs that were over."""
    records = map(run, numbers)
    await asyncio.gather(
        *(state.put("acme", "run", each.id, msgspec.json.encode(each), wait="visible") for each in records)
    )


PARTS: list[tuple[dict[str, Any], list[int]]] = [
    ({"agent": "rare"}, [number for number in range(COUNT) if number % RARE == 7]),
    ({"status": "failed"}, [number for number in range(COUNT) if number % RARE in (7, 9)]),
    ({"agent": "a", "status": "failed"}, [number for number in range(COUNT) if number % RARE == 9]),
    ({"agent": "rare", "status": "completed"}, []),
    ({"agent": "nobody"}, []),
    ({"agent": "a/failed"}, []),
    ({"status": "cancelled"}, []),
    ({"status": "running"}, []),
    ({"status": "open"}, []),
]


async def test_a_part_of_thousands_of_runs_is_listed_by_reading_what_is_shown(tmp_path: Path, plane: DataPlane) -> None:
    await put_old(plane.state, range(COUNT))
    async with counted(tmp_path, plane) as (overview, reading):
        assert len((await overview.page("acme", Wanted(limit=2, agent="rare")))[0]) == 2
        assert reading.records > COUNT  # which were there before their index, and are read this once
        for wanted, numbers in PARTS:
            reading.records = 0
            found = await all_pages(overview, 2, **wanted)
            assert [each.id for each in found] == [run(number).id for number in numbers], wanted
            assert reading.records <= 30 + 15 * len(numbers), wanted
        reading.records = 0
        page, more = await overview.page("acme", Wanted(limit=5, agent="a", status="completed"))
        assert ([each.id for each in page], more) == ([run(number).id for number in range(5)], True)
        assert reading.records <= 20
    assert [each.id for each in await all_pages(overview, 300, agent="a")] == [
        run(number).id for number in range(COUNT) if number % RARE != 7
    ]


async def test_runs_that_end_are_in_the_index_from_the_first_on_and_leave_it_when_they_are_deleted(
    tmp_path: Path, plane: DataPlane
) -> None:
    archive = Archive(plane.state)
    for number in range(10):
        await archive.open("acme", replace(run(number), end=None, ended_ms=None))
        await archive.close("acme", run(number))
    async with counted(tmp_path, plane) as (overview, reading):
        assert [each.id for each in await all_pages(overview, 3, agent="rare")] == ["run_000007"]
        assert reading.records < 10  # there was nothing to index
        await archive.open("acme", replace(run(10), end=None, ended_ms=None))
        assert [each.id for each in await all_pages(overview, 3, status="open")] == ["run_000010"]
        assert [each.id for each in await all_pages(overview, 9, agent="a")][-1] == "run_000010"
        await overview.delete("acme", "run_000007")
        assert await all_pages(overview, 3, agent="rare") == []
        assert len(await plane.state.scan("acme", KIND, limit=1000)) == 2 * 9
        assert await all_pages(overview, 3, agent="rare") == []


async def test_runs_of_an_earlier_release_are_listed_also_if_the_first_thing_that_happens_is_a_new_one(
    tmp_path: Path, plane: DataPlane
) -> None:
    await put_old(plane.state, range(8))
    archive = Archive(plane.state)
    await archive.open("acme", replace(run(8), end=None, ended_ms=None))
    await archive.close("acme", run(8))
    async with counted(tmp_path, plane) as (overview, _):
        assert [each.id for each in await all_pages(overview, 3, agent="rare")] == ["run_000007"]
        assert len(await all_pages(overview, 3, agent="a")) == 8


async def test_indexing_goes_on_where_a_crash_left_it_and_what_cannot_be_read_is_left_out(
    tmp_path: Path, plane: DataPlane
) -> None:
    await put_old(plane.state, range(1200))
    await plane.state.put("acme", "run", "run_000003", b"damaged")
    await plane.state.put("acme", "run_index", "all", b'{"after": "run_000499", "done": false}')
    await plane.state.put("acme", KIND, "end/failed/run_000001", b"")  # of a run that ended otherwise
    await plane.state.put("acme", KIND, "end/failed/run_gone", b"")
    async with counted(tmp_path, plane) as (overview, _):
        found = [each.id for each in await all_pages(overview, 1, status="failed")]
        assert found == ["run_000507", "run_000509", "run_001007", "run_001009"]

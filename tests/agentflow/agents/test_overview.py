"""One list of a tenant's runs, wherever they are, and what can be done with each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from agentflow.agents.account import RunSummary
from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.overview import ACCOUNTED_INLINE, PAGE, Overview, Wanted, _summary
from agentflow.agents.record import Began, Ended, Event, Paused, Said, StepBegan
from agentflow.agents.refusals import RunConflict
from agentflow.library.refusals import NotStored
from agentflow.messages import Message
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import Bench, BodyTool, benched, call, kept, request

BEGAN = Began(at=1000, agent="a", model="m", messages=(Message("user", "go"),))


@pytest_asyncio.fixture
async def plane(tmp_path: Path) -> AsyncIterator[DataPlane]:
    opened = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    yield opened
    await opened.close()


async def keep(archive: Archive, number: int, agent: str = "a") -> str:
    """A stored run that is over; those with lower numbers are newer."""
    run = RunRecord(id=f"run_{number:06}", agent=agent, model="m", created_ms=1000, ended_ms=2000, end="completed")
    await archive.close("default", run)
    return run.id


async def all_pages(overview: Overview, **wanted: Any) -> list[RunSummary]:
    found: list[RunSummary] = []
    more = True
    while more:
        after = found[-1].id if found else None
        page, more = await overview.page("default", Wanted(after=after, **wanted))
        assert not more or len(page) == wanted["limit"]
        found += page
    return found


async def test_pages_join_to_the_whole_list_with_runs_that_are_not_stored_among_them(
    tmp_path: Path, plane: DataPlane
) -> None:
    archive = Archive(plane.state)
    count = 2 * PAGE + 50
    ids = await asyncio.gather(
        *(keep(archive, number, "rare" if number % 100 == 7 else "a") for number in range(count))
    )
    free = asyncio.Event()

    async def wait(_: dict[str, Any], __: CallContext) -> str:
        await free.wait()
        return "done"

    async with benched(tmp_path, {"done": "Done.", "go": call("wait")}, [BodyTool("wait", wait)], plane=plane) as it:
        stream = await it.service.chat(request("go", store=False))
        (going,) = it.service.agents.ids("default")
        overview = Overview(it.service.agents)
        assert [run.id for run in await all_pages(overview, limit=100)] == sorted([*ids, going])
        assert [run.id for run in await all_pages(overview, limit=2, agent="rare")] == ids[7::100]
        assert [run.id for run in await all_pages(overview, limit=1, status="running")] == [going]
        assert await all_pages(overview, limit=1, status="failed") == []
        assert await overview.page("other", Wanted(limit=5)) == ([], False)
        await stream.aclose()


async def test_a_long_log_is_accounted_for_and_followed_in_pages(tmp_path: Path, plane: DataPlane) -> None:
    archive = Archive(plane.state)
    journal = await archive.open("default", RunRecord(id="run_1", agent="a", model="m", created_ms=1000))
    said = [Said(at=2000 + number, ids=[number], text="x") for number in range(ACCOUNTED_INLINE + 100)]
    await journal.append([BEGAN, StepBegan(at=2000, step=0, model="m")], kept)
    for first in range(0, len(said), 200):
        await journal.append(said[first : first + 200], kept)
    await journal.append([Ended(at=9000, end="failed", why="x", error="It broke.")], kept)
    async with benched(tmp_path, {}, [], plane=plane) as it:
        overview = Overview(it.service.agents)
        run = await overview.account("default", "run_1")
        assert (run.status, run.error, run.last) == ("failed", "It broke.", len(said) + 3)
        assert (run.steps[0].completion_tokens, run.steps[0].text) == (len(said), "x" * len(said))
        numbers = [number async for number, _ in await overview.follow("default", "run_1", 2)]
        assert numbers == list(range(3, len(said) + 4))
        page = await overview.events("default", "run_1", 5, 3)
        assert [number for number, _ in page] == [6, 7, 8]
        with pytest.raises(NotStored):
            await overview.events("other", "run_1", 0, 10)


async def test_a_run_is_never_seen_as_open_while_its_end_is_being_noted(tmp_path: Path, plane: DataPlane) -> None:
    async with benched(tmp_path, {"go": "Hello."}, [], plane=plane) as it:
        overview = Overview(it.service.agents)
        stream = await it.service.chat(request("go"))
        (run_id,) = it.service.agents.ids("default")
        async for _ in stream:
            pass
        await _is_never_open(it, overview, run_id)
        await overview.delete("default", run_id)
        with pytest.raises(NotStored):
            await overview.account("default", run_id)
        assert await Archive(plane.state).open_runs() == []
        assert await overview.page("default", Wanted(limit=5)) == ([], False)


async def _is_never_open(it: Bench, overview: Overview, run_id: str) -> None:
    """From the moment in which its stream has ended until it is noted."""
    seen = set()
    while it.service.agents.going:
        (run,), _ = await overview.page("default", Wanted(limit=5))
        seen.add(run.status)
    assert seen <= {"completed"}
    assert (await overview.account("default", run_id)).status == "completed"


async def test_steering_a_run_that_has_just_ended_is_a_conflict_that_says_how_it_ended(tmp_path: Path) -> None:
    async with benched(tmp_path, {"go": "Hello."}, []) as it:
        overview = Overview(it.service.agents)
        stream = await it.service.chat(request("go", store=False))
        (run_id,) = it.service.agents.ids("default")
        live = it.service.agents.live("default", run_id)
        assert live is not None
        async for _ in live.follow():
            pass
        with pytest.raises(RunConflict, match="is over: completed"):
            await overview.steer("default", run_id, "pause")
        async for _ in stream:
            pass
        await stream.aclose()


async def test_a_run_that_is_deleted_or_not_stored_leaves_nothing_of_its_tools_results(
    tmp_path: Path, plane: DataPlane
) -> None:
    async def long(_: dict[str, Any], __: CallContext) -> str:
        return "long " * 10_000

    def kept() -> int:
        return sum(path.is_file() for path in (tmp_path / "handles").rglob("h_*"))

    dropped: list[tuple[str, str]] = []

    async def drop(tenant: str, run_id: str) -> None:
        dropped.append((tenant, run_id))

    rules = {"long long": "Read.", "go": call("long")}
    async with benched(tmp_path, rules, [BodyTool("long", long)], plane=plane) as it:
        overview = Overview(it.service.agents, drop)
        await it.ask("go")
        await it.ask("go")
        await it.service.agents.drain()
        (first, second), _ = await overview.page("default", Wanted(limit=5))
        assert kept() == 2
        await overview.delete("default", first.id)
        assert (kept(), dropped) == (1, [("default", first.id)])
        (left,), _ = await overview.page("default", Wanted(limit=5))
        assert left.id == second.id
        await it.ask("go", store=False)
        await it.service.agents.drain()
        assert kept() == 1


async def test_a_run_that_is_not_taken_up_yet_after_a_start_is_listed_as_its_log_has_it(
    tmp_path: Path, plane: DataPlane
) -> None:
    async def pay(_: dict[str, Any], __: CallContext) -> str:
        return "paid"

    rules, tools = {"paid": "It is paid.", "go": call("pay")}, [BodyTool("pay", pay, approval=True)]
    async with benched(tmp_path, rules, tools, plane=plane) as it:
        stream = await it.service.chat(request("go"))
        live = it.service.agents.live("default", stream.run_id)
        assert live is not None
        await live.until(lambda: live.progress.waits_for_word)
        await live.kept()
        (before,), _ = await Overview(it.service.agents).page("default", Wanted(limit=5))
    async with benched(tmp_path, rules, tools, plane=plane) as it:
        overview = Overview(it.service.agents)
        for wanted in (Wanted(limit=5), Wanted(limit=5, status="waiting"), Wanted(limit=5, agent="a")):
            assert await overview.page("default", wanted) == ([before], False)
        assert await overview.page("default", Wanted(limit=5, status="open")) == ([], False)
        assert (before.status, before.steps, before.calls) == ("waiting", 1, 1)
        assert (await overview.account("default", before.id)).status == "waiting"
        with pytest.raises(RunConflict) as caught:
            await overview.steer("default", before.id, "pause")
        assert caught.value.code == "run_open"
        assert await it.service.agents.resume() == 1
        assert await overview.page("default", Wanted(limit=5)) == ([before], False)
        await it.service.agents.cancel("default", before.id)


async def test_a_run_that_goes_on_is_in_every_list_though_its_record_cannot_be_read(
    tmp_path: Path, plane: DataPlane
) -> None:
    async def pay(_: dict[str, Any], __: CallContext) -> str:
        return "paid"

    rules, tools = {"paid": "It is paid.", "go": call("pay")}, [BodyTool("pay", pay, approval=True)]
    async with benched(tmp_path, rules, tools, plane=plane) as it:
        overview, agents = Overview(it.service.agents), it.service.agents
        streams = []
        for _ in range(3):
            streams.append(await it.service.chat(request("go")))
            live = agents.live("default", streams[-1].run_id)
            assert live is not None
            await live.until(lambda live=live: live.progress.waits_for_word)  # type: ignore[misc]
            await live.kept()
        ids = sorted(stream.run_id for stream in streams)
        old = "run_zzz"  # listed behind all others
        record = RunRecord(id=old, agent="a", model="m", created_ms=1000, ended_ms=2000, end="completed")
        await Archive(plane.state).close("default", record)
        for damaged in ids:
            await plane.state.put("default", "run", damaged, b'{"id":3}')
            for limit in (1, 2, 4, 100):
                found = await all_pages(overview, limit=limit)
                assert [(run.id, run.status) for run in found] == [
                    *((each, "waiting") for each in ids),
                    (old, "completed"),
                ]
            assert [run.id for run in await all_pages(overview, limit=2, status="waiting")] == ids
        await overview.delete("default", old)
        assert [run.id for run in await all_pages(overview, limit=2)] == ids
        for run_id in ids:
            await agents.cancel("default", run_id)
        assert [run.status for run in await all_pages(overview, limit=5)] == ["cancelled"] * 3


async def test_a_list_of_one_agent_s_runs_reads_no_log_of_another_s_and_none_of_one_that_is_over(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, read = Archive(plane.state), []
    for run_id, agent in (("run_1", "a"), ("run_2", "b")):
        run = RunRecord(id=run_id, agent=agent, model="m", created_ms=1000)
        await (await archive.open("default", run)).append([replace(BEGAN, agent=agent), Paused()], kept)
    async with benched(tmp_path, {}, [], plane=plane) as it:
        archive = await it.service.agents.archive()
        events = archive.events

        async def reading(tenant: str, run_id: str) -> list[tuple[int, Event]]:
            read.append(run_id)
            return await events(tenant, run_id)

        monkeypatch.setattr(archive, "events", reading)
        page, more = await Overview(it.service.agents).page("default", Wanted(limit=5, agent="b"))
        assert ([(run.id, run.status) for run in page], more) == ([("run_2", "paused")], False)
        assert read == ["run_2"]
        over = await keep(archive, 3, "b")
        page, _ = await Overview(it.service.agents).page("default", Wanted(limit=5, agent="b"))
        assert ([run.id for run in page], read) == ([over, "run_2"], ["run_2", "run_2"])
        assert (await Overview(it.service.agents).page("default", Wanted(limit=1))) == ([page[0]], True)
        assert sorted(read[2:]) == ["run_1", "run_2"]


async def test_a_long_log_of_a_run_that_is_not_taken_up_is_read_outside_of_the_loop(
    tmp_path: Path, plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, inline = Archive(plane.state), {}
    said = [Said(ids=[number], text="x") for number in range(200)]
    for run_id, rounds in (("run_1", 0), ("run_2", 3)):
        journal = await archive.open("default", RunRecord(id=run_id, agent="a", model="m", created_ms=1000))
        for events in ([BEGAN, StepBegan(step=0, model="m")], *[said] * rounds):
            await journal.append(events, kept)
    await archive.open("default", RunRecord(id="run_3", agent="a", model="m", created_ms=1000))  # it has no log yet
    await keep(archive, 4)

    def summarizing(run_id: str, *args: Any, **more: Any) -> RunSummary:
        inline[run_id] = threading.current_thread() is threading.main_thread()
        return _summary(run_id, *args, **more)

    monkeypatch.setattr("agentflow.agents.overview._summary", summarizing)
    async with benched(tmp_path, {}, [], plane=plane) as it:
        page, _ = await Overview(it.service.agents).page("default", Wanted(limit=5))
    assert [(run.id, run.status, run.steps) for run in page] == [
        ("run_000004", "completed", 0),
        ("run_1", "open", 1),
        ("run_2", "open", 1),
        ("run_3", "open", 0),
    ]
    assert inline == {"run_1": True, "run_2": False}


async def test_a_run_whose_end_is_not_noted_is_listed_as_over_and_one_whose_log_is_damaged_as_its_record_has_it(
    tmp_path: Path, plane: DataPlane, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Archive(plane.state)
    for number, events in enumerate(([BEGAN, Ended(at=9000, end="failed", why="x")], [Ended(end="failed", why="x")])):
        run = RunRecord(id=f"run_{number}", agent="a", model="m", created_ms=1000)
        await (await archive.open("default", run)).append(events, kept)
    async with benched(tmp_path, {}, [], plane=plane) as it:
        page, _ = await Overview(it.service.agents).page("default", Wanted(limit=5))
        assert [(run.status, run.ended_at) for run in page] == [("failed", 9.0), ("open", None)]
        assert [
            run.id for run in (await Overview(it.service.agents).page("default", Wanted(limit=5, status="failed")))[0]
        ] == ["run_0"]
        with pytest.raises(RunConflict, match="is over: failed"):
            await Overview(it.service.agents).steer("default", "run_0", "pause")
    assert "without its log" not in caplog.text  # its start told that; each list would again

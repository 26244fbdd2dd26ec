"""What is read of a response's log, and from where on its conversation is told by the next."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.record import ApprovalAsked, Event, Said
from agentflow.responses.projection import Projection
from agentflow.responses.records import ResponseRecord, Settings
from agentflow.responses.store import ResponseStore
from tests.agentflow.agents.agencies import kept
from tests.agentflow.responses.test_projection import CALL, RECORD, began, call_id, said, stepped
from tests.agentflow.responses.test_responses import opened


async def test_a_long_log_is_read_outside_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = await opened(tmp_path)
    archive, inline = Archive(plane.state), []

    async def same() -> Archive:
        return archive

    class Seen(Projection):
        def __init__(self, record: ResponseRecord, first: int = 0) -> None:
            super().__init__(record, first)
            inline.append(threading.current_thread() is threading.main_thread())

    monkeypatch.setattr("agentflow.responses.store.Projection", Seen)
    for tenant, count in (("short", 10), ("long", 200)):
        run = RunRecord(id=RECORD.run_id, agent="a", model="m", created_ms=1000)
        log: list[Event] = [*began(), *[Said(ids=[1], text="x")] * count]
        await (await archive.open(tenant, run)).append(log, kept)
        found = await ResponseStore(same).projection(tenant, RECORD)
        assert found is not None
        assert found.applied == count + 2
    assert inline == [True, False]
    await plane.close()


async def test_the_next_response_tells_what_those_before_it_do_not_and_none_that_came_to_nothing(
    tmp_path: Path,
) -> None:
    plane = await opened(tmp_path)
    archive = Archive(plane.state)

    async def same() -> Archive:
        return archive

    store, settings = ResponseStore(same), Settings(conversation="conv_1")
    log = [*began(asking=("look",)), *said(CALL), stepped(), ApprovalAsked(call_id=call_id(0), at=7000)]
    run = RunRecord(id=RECORD.run_id, agent="a", model="m", created_ms=1000)
    await (await archive.open("default", run)).append(log, kept)
    assert await store.told("default", run.id, len(log)) == {}
    for record in (RECORD, replace(RECORD, id="resp_" + "1" * 24, run=run.id, after=len(log))):
        await store.put("default", replace(record, settings=settings))
        assert await store.told("default", run.id, len(log)) == {"conv_1": len(log)}
    await plane.close()

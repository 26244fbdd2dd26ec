"""A record of which no log tells is one that is being begun, which nobody removes, or a crash's, which goes with its run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.journal import StoredJournal
from agentflow.library.refusals import NotStored
from agentflow.responses.ids import run_of
from agentflow.responses.records import ResponseRecord
from agentflow.responses.store import ResponseStore
from tests.agentflow.responses.test_between import asks, words
from tests.agentflow.responses.test_damage import kept
from tests.agentflow.responses.test_deleting import OF_ANN, RULES

LOST = "resp_" + "1" * 24


async def test_a_response_whose_word_is_not_in_the_log_yet_is_kept_when_its_conversation_is_read(
    tmp_path: Path,
) -> None:
    async with asks(tmp_path, RULES) as it:
        state = (await it.service.agents.archive()).state
        (waiting,) = it.live.progress.waiting
        async with it.live._order:  # nothing comes into the log
            new = words(waiting.id, "Be quick.", conversation=it.conversation)
            creating = asyncio.create_task(it.service.responses.create(new))
            async with asyncio.timeout(10):
                for kind, count in (("response", 2), ("conversation_due", 2), ("response_part", 1)):
                    while len(await state.scan("default", kind)) < count:
                        await asyncio.sleep(0.005)
            assert await it.told() == []
        second = (await (await creating).finish()).record.id
        assert (await it.service.responses.retrieve("default", second)).status == "completed"
        await it.goes_on("conversation")
        assert await it.told() == OF_ANN


async def test_a_response_whose_log_is_not_begun_yet_is_kept_when_its_conversation_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go, opened = asyncio.Event(), asyncio.Event(), Archive.open

    async def held(archive: Archive, tenant: str, run: RunRecord) -> StoredJournal:
        opening.set()
        await go.wait()
        return await opened(archive, tenant, run)

    monkeypatch.setattr(Archive, "open", held)
    async with kept(tmp_path) as it:
        creating = asyncio.create_task(it.answered())
        await asyncio.wait_for(opening.wait(), 10)
        assert await it.said() == []
        go.set()
        assert (await it.responses.retrieve("default", await creating)).status == "completed"
        assert await it.said() == ["user: hello", "assistant: Hi."]


async def test_what_is_being_begun_is_not_lost_and_is_once_that_came_to_nothing(tmp_path: Path) -> None:
    async with asks(tmp_path, RULES) as it:
        store = ResponseStore(it.service.agents.archive)
        record = ResponseRecord(id=LOST, model="m", input=(), run=it.live.id, after=it.live.count)
        with store.beginning(record.id):
            assert not await store.is_lost("default", record)
        assert await store.is_lost("default", record)


async def test_a_response_of_which_no_log_tells_is_removed_and_its_run_goes_on(tmp_path: Path) -> None:
    async with asks(tmp_path, RULES) as it:
        store = ResponseStore(it.service.agents.archive)
        await store.put("default", ResponseRecord(id=LOST, model="m", input=(), run=it.live.id, after=it.live.count))
        await it.service.responses.delete("default", LOST)
        assert await store.record("default", LOST) is None
        assert not it.live.over
        await it.goes_on("conversation")


@pytest.mark.parametrize("by", ["response", "run"])
async def test_a_response_of_which_no_log_tells_goes_with_its_run(tmp_path: Path, by: str) -> None:
    async with kept(tmp_path) as it:
        told = await it.answered()
        lost = ResponseRecord(id=LOST, model="m", input=(), run=run_of(told), after=1000)
        await ResponseStore(it.overview._runs.archive).put("default", lost)
        if by == "response":
            await it.responses.delete("default", told)
        else:
            await it.overview.delete("default", run_of(told))
        assert await it.left() == {}
        for each in (told, LOST):
            with pytest.raises(NotStored):
                await it.responses.retrieve("default", each)

"""What a response that is damaged told, or will tell once a backup brings it back, no other tells, and its run goes on for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.record import ApprovalAsked, ApprovalGiven, Ended, Event
from agentflow.responses.records import ResponseRecord
from agentflow.responses.store import ResponseStore
from dataplane import StateStore
from tests.agentflow.agents.agencies import call, kept
from tests.agentflow.responses.test_between import Asked, asks, bob_waits, first_word, words
from tests.agentflow.responses.test_deleting import OF_ANN, OF_BOB, OF_CARL, RULES, word_at_the_run
from tests.agentflow.responses.test_projection import CALL, RECORD, began, call_id, said, stepped
from tests.agentflow.responses.test_responses import opened

ALL = [*OF_ANN, *OF_BOB, *OF_CARL]


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Asked]:
    async with asks(tmp_path, RULES) as running:
        yield running


async def state_of(it: Asked) -> StateStore:
    return (await it.service.agents.archive()).state


async def spoil(it: Asked, response_id: str) -> bytes:
    """The record as it was."""
    state = await state_of(it)
    found = await state.get("default", "response", response_id)
    assert found is not None
    await state.put("default", "response", response_id, b"{")
    return found.value


async def restore(it: Asked, response_id: str, whole: bytes) -> None:
    await (await state_of(it)).put("default", "response", response_id, whole)


async def test_the_last_response_of_a_run_comes_back_and_is_told_once(tmp_path: Path) -> None:
    async with asks(tmp_path, {"Be quick": "Ann is paid.", "go": call("pay", '{"to": "Ann"}')}) as it:
        last = await first_word(it, "conversation")
        await it.service.agents.drain()
        whole = await spoil(it, last)
        assert await it.told() == ["user: go"]
        await restore(it, last, whole)
        assert await it.told() == ["user: go", "user: Be quick.", "paid Ann", "assistant: Ann is paid."]


@pytest.mark.parametrize("taken_in", [False, True])
async def test_a_response_in_the_middle_of_a_run_is_told_once_though_the_next_began_while_it_was_damaged(
    it: Asked, taken_in: bool
) -> None:
    second = await first_word(it, "conversation")
    if taken_in:
        await it.goes_on("previous")
        assert await it.told() == OF_ANN
    whole = await spoil(it, second)
    while not it.live.over:
        await it.goes_on("conversation")
        await it.live.until(lambda: it.live.progress.waits_for_word)
    await it.service.agents.drain()
    assert await it.told() == (ALL if taken_in else [*OF_ANN[:1], *OF_BOB, *OF_CARL])
    await restore(it, second, whole)
    assert await it.told() == ALL


@pytest.mark.parametrize("damaged", ["first", "second"])
async def test_what_came_behind_the_last_response_is_told_though_an_earlier_one_is_damaged(
    it: Asked, damaged: str
) -> None:
    second = await first_word(it, "conversation")
    await it.goes_on("conversation")
    bad, told = (it.first.record.id, OF_ANN[1:]) if damaged == "first" else (second, OF_ANN[:1])
    whole = await spoil(it, bad)
    await word_at_the_run(it)
    await it.service.agents.drain()
    assert await it.told() == [*told, *OF_BOB, *OF_CARL]
    await restore(it, bad, whole)
    assert await it.told() == ALL


async def test_what_was_said_at_the_run_between_two_responses_is_told_though_an_earlier_one_is_damaged(
    it: Asked,
) -> None:
    second = await first_word(it, "conversation")
    whole = await spoil(it, it.first.record.id)
    await word_at_the_run(it)
    await it.goes_on("conversation")
    await it.service.agents.drain()
    assert await it.told() == ALL[1:]
    assert (await it.service.responses.retrieve("default", second)).status == "completed"
    await restore(it, it.first.record.id, whole)
    assert await it.told() == ALL


async def test_a_response_of_an_earlier_release_whose_words_name_none_is_not_told_by_another(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    archive = Archive(plane.state)

    async def same() -> Archive:
        return archive

    store = ResponseStore(same)
    log: list[Event] = [*began(asking=("look",)), *said(CALL), stepped(), ApprovalAsked(call_id=call_id(0), at=7000)]
    run = RunRecord(id=RECORD.run_id, agent="a", model="m", created_ms=1000)
    rest: list[Event] = [
        ApprovalGiven(call_id=call_id(0), allowed=True, at=8000),
        Ended(end="cancelled", why="cancelled", at=9000),
    ]
    await (await archive.open("default", run)).append([*log, *rest], kept)
    await store.put("default", RECORD)
    whole = await store.outcome("default", RECORD)
    assert whole is not None
    assert whole.applied == len(log) + len(rest)
    second = ResponseRecord(id="resp_" + "1" * 24, model="m", input=(), run=run.id, after=len(log))
    await store.put("default", second)
    await plane.state.put("default", "response", second.id, b"{")
    own = await store.outcome("default", RECORD)
    assert own is not None
    assert own.applied == len(log)
    await plane.close()


async def test_a_run_does_not_end_with_its_first_response_while_one_that_is_damaged_goes_on_with_it(
    tmp_path: Path,
) -> None:
    free = asyncio.Event()
    async with asks(tmp_path, RULES, bob_waits(free)) as it:
        await first_word(it, "run")
        (waiting,) = it.live.progress.waiting
        stream = await it.service.responses.create(words(waiting.id, conversation=it.conversation))
        await spoil(it, stream.id)
        await it.service.responses.delete("default", it.first.record.id)
        free.set()
        assert (await stream.finish()).status == "completed"
        assert not it.live.over
        await it.service.responses.delete("default", stream.id)
        assert it.live.over


async def test_a_run_with_which_nobody_else_goes_on_ends_with_its_response_though_an_earlier_one_is_damaged(
    it: Asked,
) -> None:
    second = await first_word(it, "conversation")
    await spoil(it, it.first.record.id)
    await word_at_the_run(it)
    await it.service.responses.delete("default", second)
    assert it.live.over


@pytest.mark.parametrize("asking", ["first", "second"])
async def test_a_run_that_waits_ends_with_the_conversation_of_a_response_that_is_damaged(
    it: Asked, asking: str
) -> None:
    bad = it.first.record.id if asking == "first" else await first_word(it, "conversation")
    if asking == "second":  # nothing else of the run is due
        await it.told()
    await spoil(it, bad)
    await it.service.responses.conversations.delete("default", it.conversation)
    assert it.live.over

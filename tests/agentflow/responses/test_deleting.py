"""What a response gave to a conversation is there once, whichever of its run's responses are deleted, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentflow.agents.archive import Archive
from agentflow.agents.overview import Overview
from agentflow.agents.record import ApprovalGiven
from agentflow.library.refusals import NotStored
from agentflow.responses.records import ResponseRecord, Settings
from agentflow.responses.store import ResponseStore
from dataplane import EventRecord
from tests.agentflow.agents.agencies import benched, call
from tests.agentflow.responses.test_between import Asked, How, asks, bob_waits, first_word, told, words
from tests.agentflow.responses.test_responses import opened

RULES = {
    "paid Carl": "All are paid.",
    "paid Bob": "Now Carl. " + call("pay", '{"to": "Carl"}'),
    "Be quick": "Now Bob. " + call("pay", '{"to": "Bob"}'),
    "go": call("pay", '{"to": "Ann"}'),
}
OF_ANN = ["user: go", "user: Be quick.", "paid Ann", "assistant: Now Bob. "]
OF_BOB = ["paid Bob", "assistant: Now Carl. "]
OF_CARL = ["paid Carl", "assistant: All are paid."]


@pytest_asyncio.fixture
async def it(tmp_path: Path) -> AsyncIterator[Asked]:
    async with asks(tmp_path, RULES) as running:
        yield running


async def word_at_the_run(it: Asked) -> None:
    """Allow the payment that is asked about, at the run itself, until it asks again."""
    (waiting,), step = it.live.progress.waiting, it.live.progress.step
    await it.service.agents.approve("default", it.live.id, ApprovalGiven(call_id=waiting.id, allowed=True))
    await it.live.until(lambda: it.live.progress.step > step and it.live.progress.waits_for_word)
    await it.live.kept()


@pytest.mark.parametrize("how", ["conversation", "previous"])
async def test_a_response_in_the_middle_of_a_run_is_deleted_and_the_next_one_tells_nothing_twice(
    it: Asked, how: How
) -> None:
    second = await first_word(it, "conversation")
    await it.goes_on(how)
    await it.service.responses.delete("default", second)
    assert await it.told() == OF_ANN
    await it.goes_on("conversation")
    await it.service.agents.drain()
    assert await it.told() == [*OF_ANN, *OF_BOB, *OF_CARL]


async def test_the_first_response_is_deleted_while_another_goes_on_and_nothing_is_lost(tmp_path: Path) -> None:
    free = asyncio.Event()
    async with asks(tmp_path, RULES, bob_waits(free)) as it:
        await first_word(it, "run")
        (waiting,) = it.live.progress.waiting
        stream = await it.service.responses.create(words(waiting.id, conversation=it.conversation))
        await it.service.responses.delete("default", it.first.record.id)
        assert await it.told() == OF_ANN[:1]
        free.set()
        await stream.finish()
        await it.goes_on("conversation")
        await it.service.agents.drain()
        assert await it.told() == [*OF_ANN, *OF_BOB, *OF_CARL]


async def test_a_run_with_which_nobody_else_that_is_stored_goes_on_ends_with_its_response(it: Asked) -> None:
    second = await first_word(it, "conversation")
    await word_at_the_run(it)
    await it.service.responses.delete("default", second)
    run = await (await it.service.agents.archive()).find("default", it.live.id)
    assert run is not None
    assert run.end == "cancelled"
    assert (await it.told())[: len(OF_ANN + OF_BOB)] == OF_ANN + OF_BOB
    assert (await it.service.responses.retrieve("default", it.first.record.id)).output == it.first.output


async def test_a_run_that_waits_ends_with_its_response_though_another_was_about_to_go_on(it: Asked) -> None:
    second = await first_word(it, "conversation")
    about_to = ResponseRecord(id="resp_" + "1" * 24, model="m", input=(), run=it.live.id, after=it.live.count)
    await ResponseStore(it.service.agents.archive).put("default", about_to)
    await it.service.responses.delete("default", second)
    assert it.live.over
    assert (await it.told())[: len(OF_ANN)] == OF_ANN


async def test_what_another_response_told_does_not_come_into_a_conversation_by_its_deletion(it: Asked) -> None:
    second = await first_word(it, "previous")
    await it.service.responses.delete("default", second)
    assert await it.told() == OF_ANN[:1]


async def test_a_run_that_is_deleted_leaves_each_conversation_its_own_part(it: Asked) -> None:
    responses = it.service.responses
    other = (await responses.conversations.create("default", {}, ())).id
    (waiting,) = it.live.progress.waiting
    new = words(waiting.id, "Be quick.", conversation=other, **it.where("previous"))
    await (await responses.create(new)).finish()
    await it.goes_on("previous")
    await it.goes_on("previous")
    await it.service.agents.drain()
    await Overview(it.service.agents, responses.drop).delete("default", it.live.id)
    assert await it.told() == OF_ANN[:1]
    assert told(await responses.conversations.all_items("default", other)) == OF_ANN[1:]


async def test_a_response_whose_log_is_damaged_can_be_deleted_though_it_belongs_to_a_conversation(
    tmp_path: Path,
) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, RULES, [], plane=plane) as it:
        responses, archive = it.service.responses, Archive(plane.state)

        async def same() -> Archive:
            return archive

        conversation = await responses.conversations.create("default", {}, ())
        settings = Settings(conversation=conversation.id)
        record = ResponseRecord(id="resp_" + "1" * 24, model="m", input=(), settings=settings)
        await ResponseStore(same).put("default", record)
        await plane.state.append("default", f"run/{record.run_id}", [EventRecord("said", 1, b"no event")])
        await responses.delete("default", record.id)
        with pytest.raises(NotStored):
            await responses.retrieve("default", record.id)
        assert await responses.conversations.all_items("default", conversation.id) == []
    await plane.close()

"""What cannot be read of responses and conversations hides nothing else, and can be removed whole."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from agentflow.agents.overview import Overview
from agentflow.library.refusals import DataDamaged, NotStored
from agentflow.responses.ids import run_of
from agentflow.responses.items import CallItem, Item, MessageItem
from agentflow.responses.records import ResponseRecord
from agentflow.responses.responses import Responses
from agentflow.responses.store import ResponseStore
from dataplane import EventRecord, StateStore
from tests.agentflow.agents.agencies import BodyTool, benched
from tests.agentflow.responses.test_between import RULES as ASKING
from tests.agentflow.responses.test_between import pay, told, words
from tests.agentflow.responses.test_responses import asked, opened

KINDS = ("response", "response_part", "conversation_due", "run", "open_run", "run_by", "run_part")
ITEMS = [MessageItem(id=f"msg_{number}", role="user", texts=(str(number),)) for number in range(150)]


class Kept(NamedTuple):
    """A conversation, and what is behind it."""

    responses: Responses
    overview: Overview
    state: StateStore
    conversation: str

    async def answered(self, text: str = "hello") -> str:
        """The id of a response that is over, and of which nothing is in the conversation yet."""
        stream = await self.responses.create(asked(text, "agent/a", conversation=self.conversation))
        await stream.finish()
        await stream.aclose()
        await self.overview._runs.drain()
        return stream.id

    async def spoil_log(self, response_id: str) -> None:
        """The log is one of which nothing can be read."""
        stream = f"run/{run_of(response_id)}"
        await self.state.drop_stream("default", stream)
        await self.state.append("default", stream, [EventRecord("said", 1, b"no event")])

    async def spoil(self, kind: str, name: str) -> None:
        await self.state.put("default", kind, name, b"{")

    async def said(self) -> list[str]:
        return told(await self.responses.conversations.all_items("default", self.conversation))

    async def left(self) -> dict[str, list[str]]:
        """What is stored of runs and responses, by kind."""
        found = {kind: [name for name, _ in await self.state.scan("default", kind)] for kind in KINDS}
        return {kind: names for kind, names in found.items() if names}


@asynccontextmanager
async def kept(folder: Path) -> AsyncIterator[Kept]:
    plane = await opened(folder)
    rules = {**ASKING, "hello": "Hi.", "again": "Hi again."}
    async with benched(folder, rules, [BodyTool("pay", pay, approval=True)], plane=plane) as it:
        responses = it.service.responses
        conversation = (await responses.conversations.create("default", {}, ())).id
        yield Kept(responses, Overview(it.service.agents, responses.drop), plane.state, conversation)
    await plane.close()


@pytest.mark.parametrize("by", ["response", "run"])
@pytest.mark.parametrize("damaged", ["log", "response", "run", "all"])
async def test_what_is_damaged_is_removed_whole_and_its_conversation_goes_on(
    tmp_path: Path, damaged: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with kept(tmp_path) as it:
        bad = await it.answered()
        if damaged in ("log", "all"):
            await it.spoil_log(bad)
        if damaged in ("response", "all"):
            await it.spoil("response", bad)
        if damaged in ("run", "all"):
            await it.spoil("run", run_of(bad))
        with caplog.at_level(logging.WARNING):
            if by == "response":
                await it.responses.delete("default", bad)
            else:
                await it.overview.delete("default", run_of(bad))
        assert bad in caplog.text + str([each.__dict__ for each in caplog.records]).replace("run_", "resp_")
        assert await it.left() == {}
        assert await it.state.last_seq("default", f"run/{run_of(bad)}") == 0
        with pytest.raises(NotStored):
            await it.responses.retrieve("default", bad)
        whole = ["user: hello", "assistant: Hi."] if damaged == "run" else []
        assert await it.said() == whole
        await it.answered("again")
        assert await it.said() == [*whole, "user: again", "assistant: Hi again."]


@pytest.mark.parametrize("damaged", ["log", "response"])
async def test_a_response_that_is_damaged_keeps_no_other_from_being_listed_asked_and_removed(
    tmp_path: Path, damaged: str
) -> None:
    async with kept(tmp_path) as it:
        bad = await it.answered()
        await (it.spoil_log(bad) if damaged == "log" else it.spoil("response", bad))
        good = await it.answered("again")
        assert await it.said() == ["user: again", "assistant: Hi again."]
        with pytest.raises(DataDamaged):
            await it.responses.retrieve("default", bad)
        await it.responses.delete("default", good)
        await it.responses.conversations.delete("default", it.conversation)
        assert (await it.left()).get("conversation_due") is None
        await it.responses.delete("default", bad)
        assert await it.left() == {}


async def test_of_a_runs_responses_one_that_is_damaged_keeps_the_run_until_it_is_removed_too(tmp_path: Path) -> None:
    async with kept(tmp_path) as it:
        first = await it.answered("go")
        live = it.overview._runs.live("default", run_of(first))
        assert live is not None
        (waiting,) = live.progress.waiting
        stream = await it.responses.create(words(waiting.id, conversation=it.conversation))
        await stream.finish()
        await it.overview._runs.drain()
        await it.spoil("response", stream.id)
        assert await it.said() == ["user: go"]
        await it.responses.delete("default", first)
        assert (await it.left())["run"] == [run_of(first)]
        await it.responses.delete("default", stream.id)
        assert await it.left() == {}


async def test_of_a_run_whose_log_is_damaged_each_response_stays_until_it_is_removed(tmp_path: Path) -> None:
    async with kept(tmp_path) as it:
        first = await it.answered()
        second = ResponseRecord(id="resp_" + "1" * 24, model="m", input=(), run=run_of(first), after=1)
        await ResponseStore(it.overview._runs.archive).put("default", second)
        await it.spoil_log(first)
        await it.state.append("default", f"run/{run_of(first)}", [EventRecord("said", 1, b"no event")])
        await it.responses.delete("default", first)
        assert (await it.left())["response"] == [second.id]
        await it.responses.delete("default", second.id)
        assert await it.left() == {}


async def test_an_open_run_that_cannot_be_taken_up_is_open_no_more_once_its_response_is_removed(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as it:
        bad = await it.answered("go")
    async with kept(tmp_path) as it:
        await it.spoil_log(bad)
        assert await it.overview._runs.resume() == 0
        assert (await it.left())["open_run"] == [run_of(bad)]
        await it.responses.delete("default", bad)
        left = await it.left()
        assert left.keys() <= {"conversation_due"}
        assert await it.overview._runs.resume() == 0


async def test_an_item_that_cannot_be_read_is_left_out_and_named_by_its_own_id_alone(tmp_path: Path) -> None:
    async with kept(tmp_path) as it:
        conversations = it.responses.conversations
        made = (await conversations.create("default", {}, ITEMS)).id
        stored = await it.state.scan("default", "conversation_item", limit=200)
        await it.spoil("conversation_item", stored[3][0])
        name, record = stored[5]
        await it.state.put("default", "conversation_item", name, record.value[:-1])
        rest = [item for number, item in enumerate(ITEMS) if number not in (3, 5)]
        assert await conversations.all_items("default", made) == rest
        for unknown in ("msg_3", "msg_x", "msg", "message", "user", "completed", "id", "5", ""):
            with pytest.raises(NotStored):
                await conversations.item("default", made, unknown)
            with pytest.raises(NotStored):
                await conversations.delete_item("default", made, unknown)
        with pytest.raises(DataDamaged, match="restore it from a backup") as caught:
            await conversations.item("default", made, "msg_5")
        assert caught.value.of == f"item 'msg_5' of conversation '{made}'"
        await conversations.delete_item("default", made, "msg_5")
        with pytest.raises(NotStored):
            await conversations.delete_item("default", made, "msg_5")
        assert await it.state.get("default", "conversation_item", name) is None
        await conversations.delete("default", made)
        assert await it.state.scan("default", "conversation_item") == []


async def test_an_id_that_stands_within_an_item_that_cannot_be_read_is_not_its_own(tmp_path: Path) -> None:
    async with kept(tmp_path) as it:
        conversations = it.responses.conversations
        items: list[Item] = [
            CallItem(id="fc_1", call_id="call_1", name="pay", arguments='{"id":"fc_2"}'),
            MessageItem(id="msg_1", role="user", texts=('"id":"msg_2"', "msg_3")),
        ]
        made = (await conversations.create("default", {}, items)).id
        for name, record in await it.state.scan("default", "conversation_item"):
            await it.state.put("default", "conversation_item", name, record.value[:-1])
        for other in ("call_1", "fc_2", "msg_2", "msg_3"):
            with pytest.raises(NotStored):
                await conversations.delete_item("default", made, other)
        for own in ("fc_1", "msg_1"):
            await conversations.delete_item("default", made, own)
        assert await it.state.scan("default", "conversation_item") == []


async def test_a_conversation_whose_record_is_damaged_can_be_removed(tmp_path: Path) -> None:
    async with kept(tmp_path) as it:
        await it.answered()
        await it.spoil("conversation", it.conversation)
        with pytest.raises(DataDamaged, match="restore it from a backup"):
            await it.said()
        await it.responses.conversations.delete("default", it.conversation)
        with pytest.raises(NotStored):
            await it.said()
        assert await it.state.scan("default", "conversation") == []

"""What happens in a run between two of its questions is in their conversation, whoever answered the first, and where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from msgspec.structs import replace

from agentflow.agents.live import LiveRun
from agentflow.agents.record import Added, ApprovalGiven
from agentflow.engine.script import Rule
from agentflow.messages import Message
from agentflow.responses.events import ResponseState
from agentflow.responses.ids import approval_of, run_of
from agentflow.responses.items import Item, MessageItem, ToolItem, WordItem
from agentflow.responses.values import NewResponse
from agentflow.service import Service
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import Body, BodyTool, benched, call
from tests.agentflow.responses.test_responses import asked, opened

RULES: dict[str, str | Rule] = {
    "And then": "Both are paid.",
    "Be quick": "Now Bob. " + call("pay", '{"to": "Bob"}'),
    "go": call("pay", '{"to": "Ann"}'),
}
REST = ["assistant: Now Bob. ", "user: And then?", "paid Bob", "assistant: Both are paid."]
How = Literal["unstored", "previous", "run", "conversation"]


async def pay(arguments: dict[str, Any], _: CallContext) -> str:
    return f"paid {arguments['to']}"


def bob_waits(free: asyncio.Event) -> Body:
    """`pay`, which pays Bob only once `free` is set."""

    async def waiting(arguments: dict[str, Any], context: CallContext) -> str:
        if arguments["to"] == "Bob":
            await free.wait()
        return await pay(arguments, context)

    return waiting


def unstored(new: NewResponse) -> NewResponse:
    return replace(new, request=replace(new.request, store=False))


def words(call_id: str, *says: str, **settings: Any) -> NewResponse:
    yes = WordItem(id="word_1", request=approval_of(call_id), approve=True)
    more = [MessageItem(id=f"msg_{text}", role="user", texts=(text,)) for text in says]
    return replace(asked("", "agent/a", **settings), input=(yes, *more))


class Asked(NamedTuple):
    """A run that asks about Ann's payment, in the conversation of its first response."""

    service: Service
    live: LiveRun
    conversation: str
    first: ResponseState

    async def goes_on(self, how: How, *says: str) -> str:
        """Allow the payment that is asked about, and say something, in a response that is told whole; its id."""
        (waiting,) = self.live.progress.waiting
        state = await (await self.service.responses.create(words(waiting.id, *says, **self.where(how)))).finish()
        assert state.status == "completed"
        return state.record.id

    def where(self, how: How) -> dict[str, str]:
        """What a response goes on from."""
        if how == "conversation":
            return {"conversation": self.conversation}
        return {"previous_response_id": self.first.record.id}

    async def told(self) -> list[str]:
        """What the conversation has. No two items of it have one id."""
        items = await self.service.responses.conversations.all_items("default", self.conversation)
        assert len({item.id for item in items}) == len(items)
        return told(items)


@asynccontextmanager
async def asks(folder: Path, rules: Mapping[str, str | Rule], body: Body = pay) -> AsyncIterator[Asked]:
    plane = await opened(folder)
    async with benched(folder, rules, [BodyTool("pay", body, approval=True)], plane=plane) as it:
        responses = it.service.responses
        conversation = (await responses.conversations.create("default", {}, ())).id
        first = await (await responses.create(asked("go", "agent/a", conversation=conversation))).finish()
        live = it.service.agents.live("default", run_of(first.record.id))
        assert live is not None
        yield Asked(it.service, live, conversation, first)
    await plane.close()


async def first_word(it: Asked, how: How) -> str:
    """Allow Ann's payment, and say something, so that the run asks about Bob's. The id of the response in which."""
    says, agents, live = "Be quick.", it.service.agents, it.live
    (waiting,) = live.progress.waiting
    if how == "run":
        await agents.tell("default", live.id, Added(message=Message("user", says)))
        await agents.approve("default", live.id, ApprovalGiven(call_id=waiting.id, allowed=True))
        await live.until(lambda: live.progress.step == 1 and live.progress.waits_for_word)
        await live.kept()
        return ""
    new = words(waiting.id, says, **it.where(how))
    stream = await it.service.responses.create(unstored(new) if how == "unstored" else new)
    await stream.finish()
    await stream.aclose()
    return stream.id


def told(items: Sequence[Item]) -> list[str]:
    """What is said and done, in order."""
    return [
        f"{item.role}: {''.join(item.texts)}" if isinstance(item, MessageItem) else str(item.output)
        for item in items
        if isinstance(item, MessageItem | ToolItem)
    ]


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("how", ["unstored", "previous", "run", "conversation"])
async def test_all_that_is_said_between_two_questions_is_in_the_conversation(
    tmp_path: Path, how: How, looked: bool
) -> None:
    async with asks(tmp_path, RULES) as it:
        await first_word(it, how)
        if looked:
            await it.told()
        await it.goes_on("conversation", "And then?")
        await it.service.agents.drain()
        quick = ["user: Be quick.", "paid Ann"]
        if how in (
            "unstored",
            "previous",
        ):  # no input of a response of this conversation: it is where the model read it
            quick.reverse()
        assert await it.told() == ["user: go", *quick, *REST]


async def test_each_of_two_conversations_of_a_run_has_all_since_it_was_told_last(tmp_path: Path) -> None:
    async with asks(tmp_path, RULES) as it:
        other = (await it.service.responses.conversations.create("default", {}, ())).id
        (waiting,) = it.live.progress.waiting
        new = words(waiting.id, "Be quick.", conversation=other, **it.where("previous"))
        await (await it.service.responses.create(new)).finish()
        await it.goes_on("conversation", "And then?")
        await it.service.agents.drain()
        assert await it.told() == ["user: go", "paid Ann", "user: Be quick.", *REST]
        items = await it.service.responses.conversations.all_items("default", other)
        assert told(items) == ["user: Be quick.", "paid Ann", "assistant: Now Bob. "]


@pytest.mark.parametrize("how", ["unstored", "run"])
async def test_what_was_said_at_a_run_that_nobody_else_tells_of_is_in_its_conversation(
    tmp_path: Path, how: How
) -> None:
    rules = {"Be quick": "Ann is paid.", "go": call("pay", '{"to": "Ann"}')}
    async with asks(tmp_path, rules) as it:
        await first_word(it, how)
        await it.service.agents.drain()
        quick = ["user: Be quick.", "paid Ann"] if how == "run" else ["paid Ann", "user: Be quick."]
        assert await it.told() == ["user: go", *quick, "assistant: Ann is paid."]
        assert (await it.service.responses.retrieve("default", it.first.record.id)).output == it.first.output


async def test_what_is_said_to_a_run_in_mid_flight_is_in_its_conversation_and_not_in_its_response(
    tmp_path: Path,
) -> None:
    free = asyncio.Event()

    async def look(_: dict[str, Any], __: CallContext) -> str:
        await free.wait()
        return "a hat"

    plane = await opened(tmp_path)
    async with benched(
        tmp_path, {"Be brief": "A hat.", "go": call("look")}, [BodyTool("look", look)], plane=plane
    ) as it:
        responses, runs = it.service.responses, it.service.agents
        conversation = (await responses.conversations.create("default", {}, ())).id
        stream = await responses.create(asked("go", "agent/a", conversation=conversation))
        await runs.tell("default", stream.run_id, Added(message=Message("user", "Be brief.")))
        free.set()
        state = await stream.finish()
        await runs.drain()
        items = await responses.conversations.all_items("default", conversation)
        assert told(items) == ["user: go", "a hat", "user: Be brief.", "assistant: A hat."]
        assert [item for item in items if item in state.output] == list(state.output)
        assert len(items) == len(state.output) + 2
    await plane.close()


DIES = Rule(answer="x", die_after_tokens=0)


async def test_what_was_done_before_a_response_that_fails_stays(tmp_path: Path) -> None:
    async with asks(tmp_path, {"And now": DIES, **RULES}) as it:
        await first_word(it, "run")
        (waiting,) = it.live.progress.waiting
        last = words(waiting.id, "And now?", conversation=it.conversation)
        assert (await (await it.service.responses.create(last)).finish()).status == "failed"
        await it.service.agents.drain()
        assert await it.told() == ["user: go", "user: Be quick.", "paid Ann", "assistant: Now Bob. "]


async def test_what_came_of_a_question_stays_though_the_run_fails_that_nobody_else_tells_of(tmp_path: Path) -> None:
    async with asks(tmp_path, {**RULES, "Be quick": DIES}) as it:
        await first_word(it, "unstored")
        await it.service.agents.drain()
        assert await it.told() == ["user: go", "paid Ann", "user: Be quick."]
        assert (await it.service.responses.retrieve("default", it.first.record.id)).output == it.first.output

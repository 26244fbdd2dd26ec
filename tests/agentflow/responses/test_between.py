"""What happens in a run between two of its questions is in their conversation, whoever answered the first, and where."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from agentflow.agents.record import Added, ApprovalGiven
from agentflow.messages import Message
from agentflow.responses.ids import approval_of, run_of
from agentflow.responses.items import Item, MessageItem, ToolItem, WordItem
from agentflow.responses.values import NewResponse
from agentflow.service import Service
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import BodyTool, benched, call
from tests.agentflow.responses.test_responses import asked, opened

RULES = {
    "paid Bob": "Both are paid.",
    "Be quick": "Now Bob. " + call("pay", '{"to": "Bob"}'),
    "go": call("pay", '{"to": "Ann"}'),
}
How = Literal["unstored", "previous", "run", "conversation"]


async def pay(arguments: dict[str, Any], _: CallContext) -> str:
    return f"paid {arguments['to']}"


def words(call_id: str, *says: str, **settings: Any) -> NewResponse:
    yes = WordItem(id="word_1", request=approval_of(call_id), approve=True)
    more = [MessageItem(id="msg_2", role="user", texts=(text,)) for text in says]
    return replace(asked("", "agent/a", **settings), input=(yes, *more))


async def first_word(service: Service, how: How, first: str, call_id: str, conversation: str) -> None:
    """Allow Ann's payment, and say something, so that the run asks about Bob's."""
    says, agents = "Be quick.", service.agents
    live = agents.live("default", run_of(first))
    assert live is not None
    if how == "run":
        await agents.tell("default", live.id, Added(message=Message("user", says)))
        await agents.approve("default", live.id, ApprovalGiven(call_id=call_id, allowed=True))
        await live.until(lambda: live.progress.step == 1 and live.progress.waits_for_word)
        return
    where = {"conversation": conversation} if how == "conversation" else {"previous_response_id": first}
    new = words(call_id, says, **where)
    stream = await service.responses.create(replace(new, request=replace(new.request, store=how != "unstored")))
    await stream.finish()
    await stream.aclose()


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
    plane = await opened(tmp_path)
    async with benched(tmp_path, RULES, [BodyTool("pay", pay, approval=True)], plane=plane) as it:
        responses, runs = it.service.responses, it.service.agents
        conversation = (await responses.conversations.create("default", {}, ())).id
        first = await (await responses.create(asked("go", "agent/a", conversation=conversation))).finish()
        live = runs.live("default", run_of(first.record.id))
        assert live is not None
        await first_word(it.service, how, first.record.id, live.progress.calls[0].id, conversation)
        if looked:
            await responses.conversations.all_items("default", conversation)
        last = words(live.progress.calls[0].id, conversation=conversation)
        assert (await (await responses.create(last)).finish()).status == "completed"
        await runs.drain()
        items = await responses.conversations.all_items("default", conversation)
        quick = ["user: Be quick.", "paid Ann"]
        if how in (
            "unstored",
            "previous",
        ):  # no input of a response of this conversation: it is where the model read it
            quick.reverse()
        assert told(items) == ["user: go", *quick, "assistant: Now Bob. ", "paid Bob", "assistant: Both are paid."]
        assert len({item.id for item in items}) == len(items)
    await plane.close()


@pytest.mark.parametrize("how", ["unstored", "run"])
async def test_what_was_said_at_a_run_that_nobody_else_tells_of_is_in_its_conversation(
    tmp_path: Path, how: How
) -> None:
    rules = {"Be quick": "Ann is paid.", "go": call("pay", '{"to": "Ann"}')}
    plane = await opened(tmp_path)
    async with benched(tmp_path, rules, [BodyTool("pay", pay, approval=True)], plane=plane) as it:
        responses, runs = it.service.responses, it.service.agents
        conversation = (await responses.conversations.create("default", {}, ())).id
        first = await (await responses.create(asked("go", "agent/a", conversation=conversation))).finish()
        live = runs.live("default", run_of(first.record.id))
        assert live is not None
        call_id = live.progress.calls[0].id
        if how == "run":
            await runs.tell("default", live.id, Added(message=Message("user", "Be quick.")))
            await runs.approve("default", live.id, ApprovalGiven(call_id=call_id, allowed=True))
        else:
            new = words(call_id, "Be quick.", previous_response_id=first.record.id)
            await (await responses.create(replace(new, request=replace(new.request, store=False)))).finish()
        await runs.drain()
        items = await responses.conversations.all_items("default", conversation)
        quick = ["user: Be quick.", "paid Ann"] if how == "run" else ["paid Ann", "user: Be quick."]
        assert told(items) == ["user: go", *quick, "assistant: Ann is paid."]
        assert (await responses.retrieve("default", first.record.id)).output == first.output
    await plane.close()


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

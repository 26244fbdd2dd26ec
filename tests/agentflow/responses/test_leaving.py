"""Who leaves a response ends its run where nobody goes on with it, or can, and else nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentflow.engine.script import Rule
from agentflow.responses.ids import approval_of, run_of
from agentflow.responses.items import MessageItem, WordItem
from agentflow.responses.values import NewResponse
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import BodyTool, benched, call
from tests.agentflow.responses.test_responses import asked, opened


async def never(_: dict[str, Any], __: CallContext) -> str:
    await asyncio.Event().wait()
    return "never"


async def test_who_leaves_late_ends_neither_his_response_nor_the_one_that_went_on(tmp_path: Path) -> None:
    free = asyncio.Event()

    async def pay(_: dict[str, Any], __: CallContext) -> str:
        await free.wait()
        return "paid"

    plane, rules = await opened(tmp_path), {"paid": "It is paid.", "go": call("pay")}
    async with benched(tmp_path, rules, [BodyTool("pay", pay, approval=True)], plane=plane) as it:
        responses = it.service.responses
        slow = await responses.create(asked("go", "agent/a"))
        live = it.service.agents.live("default", slow.run_id)
        assert live is not None
        await live.until(lambda: live.progress.waits_for_word)
        yes = WordItem(id="word_1", request=approval_of(live.progress.calls[0].id), approve=True)
        new = replace(asked("", "agent/a", previous_response_id=slow.id), input=(yes,))
        second = await responses.create(new)
        await slow.aclose()
        assert slow.state().status == "completed"
        free.set()
        assert (await second.finish()).status == "completed"
        await second.aclose()
    await plane.close()


async def test_who_leaves_late_a_response_that_is_not_stored_does_not_end_the_one_that_went_on(tmp_path: Path) -> None:
    free = asyncio.Event()

    async def pay(arguments: dict[str, Any], _: CallContext) -> str:
        if arguments["to"] == "Bob":
            await free.wait()
        return f"paid {arguments['to']}"

    rules = {"paid Bob": "Both are paid.", "paid Ann": call("pay", '{"to": "Bob"}'), "go": call("pay", '{"to": "Ann"}')}
    plane = await opened(tmp_path)
    async with benched(tmp_path, rules, [BodyTool("pay", pay, approval=True)], plane=plane) as it:
        responses = it.service.responses
        asks = await (await responses.create(asked("go", "agent/a"))).finish()
        live = it.service.agents.live("default", run_of(asks.record.id))
        assert live is not None

        def says_yes(*, store: bool) -> NewResponse:
            (waiting,) = live.progress.waiting
            yes = WordItem(id="word_1", request=approval_of(waiting.id), approve=True)
            new = replace(asked("", "agent/a", previous_response_id=asks.record.id), input=(yes,))
            return replace(new, request=replace(new.request, store=store))

        slow = await responses.create(says_yes(store=False))
        await live.until(lambda: live.progress.step == 1 and live.progress.waits_for_word)
        last = await responses.create(says_yes(store=True))
        await slow.aclose()
        free.set()
        state = await last.finish()
        assert state.status == "completed"
        assert isinstance(state.output[-1], MessageItem)
        assert state.output[-1].texts == ("Both are paid.",)
        await last.aclose()
    await plane.close()


async def test_who_leaves_a_response_that_is_not_stored_ends_its_run_while_nobody_else_goes_on_with_it(
    tmp_path: Path,
) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, {"go": call("pay")}, [BodyTool("pay", never, approval=True)], plane=plane) as it:
        responses = it.service.responses
        asks = await (await responses.create(asked("go", "agent/a"))).finish()
        (request,) = asks.output
        yes = WordItem(id="word_1", request=request.id, approve=True)
        new = replace(asked("", "agent/a", previous_response_id=asks.record.id), input=(yes,))
        stream = await responses.create(replace(new, request=replace(new.request, store=False)))
        await stream.aclose()
        assert it.service.agents.live("default", run_of(asks.record.id)) is None
        run = await (await it.service.agents.archive()).find("default", run_of(asks.record.id))
        assert run is not None
        assert run.end == "cancelled"
    await plane.close()


async def test_a_run_that_is_not_stored_ends_with_whoever_leaves_it_at_its_question(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    async with benched(tmp_path, {"go": call("pay")}, [BodyTool("pay", never, approval=True)], plane=plane) as it:
        new = asked("go", "agent/a")
        stream = await it.service.responses.create(replace(new, request=replace(new.request, store=False)))
        live = it.service.agents.live("default", stream.run_id)
        assert live is not None
        assert (await stream.finish()).status == "completed"
        assert not live.over
        await stream.aclose()
        assert live.over
    await plane.close()


async def test_who_leaves_before_the_first_word_leaves_nothing_behind(tmp_path: Path) -> None:
    plane = await opened(tmp_path)
    rules: dict[str, str | Rule] = {"wait": Rule(answer="late", ttft_s=60.0)}
    async with benched(tmp_path, rules, [], plane=plane) as it:
        conversation = await it.service.responses.conversations.create("default", {}, ())
        creating = asyncio.create_task(it.service.responses.create(asked("wait", conversation=conversation.id)))
        async with asyncio.timeout(10):
            while not it.service.agents.ids("default"):
                await asyncio.sleep(0.005)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert await plane.state.scan("default", "response") == []
        assert await plane.state.scan("default", "conversation_due") == []
        assert await it.service.responses.conversations.all_items("default", conversation.id) == []
    await plane.close()

"""Who leaves a response ends its run where nobody goes on with it, or can, and else nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.live import LiveRun
from agentflow.engine.script import Rule
from agentflow.responses.items import MessageItem
from agentflow.responses.values import NewResponse
from agentflow.service import Service
from agentflow.tools.tool import CallContext
from dataplane import StateStore
from tests.agentflow.agents.agencies import Body, BodyTool, benched, call
from tests.agentflow.responses.test_between import bob_waits, unstored, words
from tests.agentflow.responses.test_responses import asked, opened


async def never(_: dict[str, Any], __: CallContext) -> str:
    await asyncio.Event().wait()
    return "never"


@asynccontextmanager
async def stored(
    folder: Path, rules: Mapping[str, str | Rule], body: Body = never
) -> AsyncIterator[tuple[Service, StateStore]]:
    """A service whose agent pays, once it is allowed to, and what it stores."""
    plane = await opened(folder)
    async with benched(folder, rules, [BodyTool("pay", body, approval=True)], plane=plane) as it:
        yield it.service, plane.state
    await plane.close()


def live_of(service: Service, run_id: str) -> LiveRun:
    live = service.agents.live("default", run_id)
    assert live is not None
    return live


async def test_who_leaves_late_ends_neither_his_response_nor_the_one_that_went_on(tmp_path: Path) -> None:
    free = asyncio.Event()
    rules = {"paid": "It is paid.", "go": call("pay", '{"to": "Bob"}')}
    async with stored(tmp_path, rules, bob_waits(free)) as (service, _):
        slow = await service.responses.create(asked("go", "agent/a"))
        live = live_of(service, slow.run_id)
        await live.until(lambda: live.progress.waits_for_word)
        second = await service.responses.create(words(live.progress.calls[0].id, previous_response_id=slow.id))
        await slow.aclose()
        assert slow.state().status == "completed"
        free.set()
        assert (await second.finish()).status == "completed"
        await second.aclose()


async def test_who_leaves_late_a_response_that_is_not_stored_does_not_end_the_one_that_went_on(tmp_path: Path) -> None:
    free = asyncio.Event()
    rules = {"paid Bob": "Both are paid.", "paid Ann": call("pay", '{"to": "Bob"}'), "go": call("pay", '{"to": "Ann"}')}
    async with stored(tmp_path, rules, bob_waits(free)) as (service, _):
        asks = await (await service.responses.create(asked("go", "agent/a"))).finish()
        live = live_of(service, asks.record.run_id)

        def says_yes() -> NewResponse:
            (waiting,) = live.progress.waiting
            return words(waiting.id, previous_response_id=asks.record.id)

        slow = await service.responses.create(unstored(says_yes()))
        await live.until(lambda: live.progress.step == 1 and live.progress.waits_for_word)
        last = await service.responses.create(says_yes())
        await slow.aclose()
        free.set()
        state = await last.finish()
        assert state.status == "completed"
        assert isinstance(state.output[-1], MessageItem)
        assert state.output[-1].texts == ("Both are paid.",)
        await last.aclose()


async def test_who_leaves_a_response_that_is_not_stored_ends_its_run_while_nobody_else_goes_on_with_it(
    tmp_path: Path,
) -> None:
    async with stored(tmp_path, {"go": call("pay")}) as (service, _):
        asks = await (await service.responses.create(asked("go", "agent/a"))).finish()
        live = live_of(service, asks.record.run_id)
        new = words(live.progress.calls[0].id, previous_response_id=asks.record.id)
        stream = await service.responses.create(unstored(new))
        await stream.aclose()
        assert service.agents.live("default", live.id) is None
        run = await (await service.agents.archive()).find("default", live.id)
        assert run is not None
        assert run.end == "cancelled"


async def test_a_run_that_is_not_stored_ends_with_whoever_leaves_it_at_its_question(tmp_path: Path) -> None:
    async with stored(tmp_path, {"go": call("pay")}) as (service, _):
        stream = await service.responses.create(unstored(asked("go", "agent/a")))
        live = live_of(service, stream.run_id)
        assert (await stream.finish()).status == "completed"
        assert not live.over
        await stream.aclose()
        assert live.over


async def test_who_leaves_before_the_first_word_leaves_nothing_behind(tmp_path: Path) -> None:
    async with stored(tmp_path, {"wait": Rule(answer="late", ttft_s=60.0)}) as (service, state):
        conversation = await service.responses.conversations.create("default", {}, ())
        creating = asyncio.create_task(service.responses.create(asked("wait", conversation=conversation.id)))
        async with asyncio.timeout(10):
            while not service.agents.ids("default"):
                await asyncio.sleep(0.005)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert await state.scan("default", "response") == []
        assert await state.scan("default", "conversation_due") == []
        assert await service.responses.conversations.all_items("default", conversation.id) == []

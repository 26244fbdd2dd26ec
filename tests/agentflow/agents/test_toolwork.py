"""A run's calls of tools: how many are made at a time, what each holds, and which results are too old."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.clock import RunClock
from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.agents.journal import MemoryJournal
from agentflow.agents.live import LiveRun
from agentflow.agents.progress import Call
from agentflow.agents.record import CallEnded, Event
from agentflow.agents.toolwork import ToolWork
from agentflow.library.refusals import DataUnavailable
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import CallContext
from agentflow.tools.toolbox import Toolbox
from tests.agentflow.agents.agencies import BodyTool, benched, call, text_of
from tests.agentflow.tools.doing import files


async def never(_: dict[str, Any], __: CallContext) -> str:
    raise AssertionError("never")


async def test_no_more_calls_are_made_at_a_time_than_the_agent_may(tmp_path: Path) -> None:
    now, most, made = 0, 0, 0

    async def look(_: dict[str, Any], __: CallContext) -> str:
        nonlocal now, most, made
        now, made = now + 1, made + 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return "seen"

    rules = {"seen": "All seen.", "go": call("look") * 7}
    agent = AgentConfig(tools=("*",), limits=AgentLimits(parallel_tools=2))
    async with benched(tmp_path, rules, [BodyTool("look", look, concurrency=64)], agent) as it:
        assert text_of(await it.ask("go")) == "All seen."
    assert (most, made) == (2, 7)


class Unlogged(LiveRun):
    """A run whose log takes nothing."""

    async def keep(self, *events: Event) -> bool:
        raise DataUnavailable("The disk is full.", retry_after_s=5.0)


async def test_a_call_that_cannot_be_logged_is_not_made_and_holds_nothing(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path)
    handle = await handles.keep("ann", "run_0", b"a report", "text/plain")
    work = ToolWork(Toolbox([BodyTool("send", never)], handles), frozenset({"send"}), AgentLimits())
    with pytest.raises(DataUnavailable):
        await work.call(
            Unlogged("run_1", "ann", MemoryJournal()),
            Call(id="call_1", name="send", pieces=[f'{{"what": "{handle}"}}']),
            RunClock(10),
        )
    await handles.forget("ann", "run_0")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("ended", "stale"),
    [
        ({"age_s": 61}, True),
        ({"age_s": 30}, False),
        ({"age_s": 61, "name": "pi"}, False),
        ({"age_s": 61, "name": "gone"}, False),
        ({"age_s": 61, "is_error": True}, False),
        ({"age_s": 61, "answered_at": 1}, False),
        (None, False),
    ],
)
def test_a_result_is_stale_once_it_is_older_than_its_tool_says_and_the_model_does_not_know(
    tmp_path: Path, ended: dict[str, Any] | None, stale: bool
) -> None:
    tools = [BodyTool("price", never, fresh_for_s=60.0), BodyTool("pi", never)]
    work = ToolWork(Toolbox(tools, HandleStore(tmp_path)), frozenset({"price", "pi", "gone"}), AgentLimits())
    call_ = Call(id="call_1", name="price")
    if ended is not None:
        more = dict(ended)
        call_.name, age_s = more.pop("name", "price"), more.pop("age_s")
        call_.ended = CallEnded(at=int((time.time() - age_s) * 1000), call_id="call_1", text="7", **more)
    assert work.is_stale(call_) is stale

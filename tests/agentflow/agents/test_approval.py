"""A call that waits for a person's word: what it holds meanwhile, and how long it waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.agents.record import ApprovalGiven
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import Bench, BodyTool, benched, call, text_of


async def never(_: dict[str, Any], __: CallContext) -> str:
    raise AssertionError("never")


async def asked(it: Bench) -> tuple[str, str]:
    """The run that waits for a person, and its call."""
    async with asyncio.timeout(10):
        while True:
            for run_id in it.service.agents.ids("default"):
                live = it.service.agents.live("default", run_id)
                if live is not None and (calls := [each.id for each in live.progress.waiting if each.asked]):
                    return run_id, calls[0]
            await asyncio.sleep(0.005)


async def test_what_a_call_would_read_may_go_while_nobody_has_allowed_it(tmp_path: Path) -> None:
    handles = HandleStore(tmp_path / "handles")
    await handles.open()
    handle = await handles.keep("default", "run_0", b"a report", "text/plain")
    rules = {"or no longer": "A pity.", "go": call("send", f'{{"what": "{handle}"}}')}
    async with benched(tmp_path, rules, [BodyTool("send", never, approval=True)]) as it:
        reading = asyncio.create_task(it.ask("go"))
        run_id, call_id = await asked(it)
        await it.service.agents.forget("default", "run_0")
        assert [path for path in (tmp_path / "handles").rglob("*") if path.is_file()] == []
        await it.service.agents.approve("default", run_id, ApprovalGiven(call_id=call_id, allowed=True))
        assert text_of(await reading) == "A pity."


async def test_the_time_for_an_answer_runs_from_the_question_also_while_no_daemon_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    rules = {"nobody answered within 600 s": "A pity.", "go": call("pay")}
    tools = [BodyTool("pay", never, approval=True)]
    agent = AgentConfig(tools=("*",), limits=AgentLimits(approval_s=600))
    async with benched(tmp_path, rules, tools, agent, plane=plane) as it:
        reading = asyncio.create_task(it.ask("go"))
        run_id, _ = await asked(it)
    await asyncio.wait([reading])
    assert reading.exception() is not None
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 601)
    async with benched(tmp_path, rules, tools, agent, plane=plane) as it, asyncio.timeout(20):
        assert await it.service.agents.resume() == 1
        while it.service.agents.ids("default"):
            await asyncio.sleep(0.005)
        run = await (await it.service.agents.archive()).find("default", run_id)
        assert run is not None
        assert (run.end, run.steps, run.calls) == ("completed", 2, 1)
    await plane.close()

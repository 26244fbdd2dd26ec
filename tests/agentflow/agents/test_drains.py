"""A drain, and the runs that wait for a person while somebody reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentflow.agents.record import Ended
from agentflow.errors import Draining
from agentflow.events import ToolAsked
from agentflow.tools.tool import CallContext
from dataplane import DataPlane, DataPlaneConfig
from tests.agentflow.agents.agencies import BodyTool, benched, call, request


async def test_who_reads_a_run_that_waits_for_a_person_is_told_of_a_drain_at_once(tmp_path: Path) -> None:
    async def pay(_: object, __: CallContext) -> str:
        return "paid"

    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    async with benched(tmp_path, {"go": call("pay")}, [BodyTool("pay", pay, approval=True)], plane=plane) as it:
        runs = it.service.agents
        stream = await it.service.chat(request("go"))
        events = aiter(stream)
        while not isinstance(asked := await anext(events), ToolAsked):
            pass
        (run_id,) = runs.ids("default")
        assert (asked.run_id, asked.name, asked.arguments) == (run_id, "pay", "{}")
        (agent,) = runs.status().agents
        assert (agent.name, agent.tools, agent.running, agent.waiting) == ("a", ("pay",), 1, 1)
        live = runs.live("default", run_id)
        assert live is not None
        async with asyncio.timeout(20):
            await live.until(lambda: live.progress.waits_for_word)
            await it.service.drain(60.0)
            with pytest.raises(Draining):
                await anext(events)
            await stream.aclose()
        assert runs.ids("default") == ()
        log = await (await runs.archive()).events("default", run_id)
        assert not any(isinstance(event, Ended) for _, event in log)
        assert await (await runs.archive()).open_runs() == [("default", run_id)]
    await plane.close()

"""A run's calls of tools: how many are made at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import BodyTool, benched, call, text_of


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

"""A run that a limit has ended names the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.archive import Archive
from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.agents.record import Ended
from agentflow.messages import Sampling
from dataplane import DataPlane
from tests.agentflow.agents.agencies import BodyTool, benched, call
from tests.agentflow.agents.test_loop import echo
from tests.agentflow.agents.test_planner import plane

__all__ = ["plane"]

CALLING = call("echo", '{"a": 1}')
SIZE = len(CALLING)  # in tokens of the scripted model, as well


@pytest.mark.parametrize(
    ("limits", "asked", "answer", "end"),
    [
        ({"tokens": 5}, "go", "a" * 100, ("max_tokens", "The run took all of limits.tokens: 5.")),
        ({"tokens": SIZE}, "go", CALLING, ("max_tokens", f"The run took all of limits.tokens: {SIZE}.")),
        ({"steps": 1}, "go", CALLING, ("max_steps", "The run took all of limits.steps: 1.")),
        ({"wall_s": 0.1}, "go", "a" * 100, ("wall_time", "The run took longer than limits.wall_s: 0.1.")),
        ({}, "few", "a" * 100, ("max_tokens", "The answer took all of the request's max_tokens: 7.")),
        ({}, "much", "a" * 100, ("max_tokens", "The answer came to the end of the model's context.")),
    ],
)
async def test_a_run_that_a_limit_ended_names_it(
    tmp_path: Path, plane: DataPlane, limits: Any, asked: str, answer: str, end: tuple[str, str]
) -> None:
    agent = AgentConfig(tools=("*",), limits=AgentLimits(**limits), routing=False)
    tools = [BodyTool("echo", echo)]
    text = "much" + "!" * 19_000 if asked == "much" else asked
    speed = 50.0 if "wall_s" in limits else 0.0
    answers = answer * 10 if asked == "much" else answer
    async with benched(tmp_path, {"": answers}, tools, agent, plane=plane, tokens_per_s=speed) as it:
        await it.ask(text, sampling=Sampling(max_tokens=7 if asked == "few" else None))
        await it.service.agents.drain()
    ((name, _),) = await plane.state.scan("default", "run")
    *_, (_, ended) = await Archive(plane.state).events("default", name)
    assert isinstance(ended, Ended)
    assert (ended.end, (ended.why, ended.error)) == ("incomplete", end)

"""acu.telemetry.agentmetrics: what a run's parts add to which series, and that nobody makes series at will."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from acu.telemetry.agentmetrics import AgentMetrics
from acu.telemetry.metrics import Telemetry
from agentflow.agents.record import Began, Routed
from agentflow.agents.watch import CallOver, Outcome, RunLeft, RunSeen, StepOver, Watched
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import BodyTool, benched, call

PART: dict[str, Any] = {
    "run_id": "run_1",
    "run": Began(agent="a", model="m", messages=()),
    "began_ms": 1,
    "ended_ms": 2,
}


def counted(*parts: Watched) -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = AgentMetrics(registry)
    for part in parts:
        metrics.observe(part)
    return registry


def called(name: str, known: bool, outcome: Outcome) -> CallOver:
    return CallOver(**PART, call_id="c", name=name, known=known, outcome=outcome, seconds=0.5)


async def test_a_run_with_a_call_is_counted(tmp_path: Path) -> None:
    async def add(arguments: dict[str, Any], _: CallContext) -> str:
        return str(arguments["a"] + 20)

    telemetry = Telemetry("1", dropped_logs=lambda: 0, dropped_audits=lambda: 0)
    rules = {"21": "So it is 21.", "sum": "Let me see." + call("add", '{"a": 1}')}
    async with benched(tmp_path, rules, [BodyTool("add", add)], watcher=telemetry.on_part) as it:
        await it.ask("the sum, please")
    lines = telemetry.render(full=True).decode().splitlines()
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}
    assert found['acu_agent_runs_total{agent="a",end="completed"}'] == 1
    assert found['acu_agent_runs_running{agent="a"}'] == 0
    assert found['acu_agent_steps_total{agent="a"}'] == 2
    assert found['acu_agent_tool_calls_total{outcome="ok",tool="add"}'] == 1
    assert found['acu_agent_tool_seconds_count{tool="add"}'] == 1
    first, second = it.ended
    assert found['acu_agent_prompt_tokens_total{agent="a"}'] == sum(len(run.prompt_token_ids) for run in it.ended)
    assert found['acu_agent_cached_prompt_tokens_total{agent="a"}'] == first.cached_tokens + second.cached_tokens > 0
    assert found['acu_agent_generation_tokens_total{agent="a"}'] == sum(run.completion_tokens for run in it.ended)
    assert not any(line.startswith("acu_agent") for line in telemetry.render(full=False).decode().splitlines())


def test_runs_that_go_on_or_are_left_are_running_or_not() -> None:
    assert counted(RunSeen(**PART)).get_sample_value("acu_agent_runs_running", {"agent": "a"}) == 1
    assert counted(RunSeen(**PART), RunLeft(**PART)).get_sample_value("acu_agent_runs_running", {"agent": "a"}) == 0


def test_a_name_that_a_model_made_up_makes_no_series() -> None:
    registry = counted(*(called(f"made-up-{number}", False, "refused") for number in range(3)))
    labels = {"tool": "unknown", "outcome": "refused"}
    assert registry.get_sample_value("acu_agent_tool_calls_total", labels) == 3
    series = [sample for family in registry.collect() for sample in family.samples]
    assert [sample for sample in series if "made-up" in str(sample)] == []


@pytest.mark.parametrize(("outcome", "timed"), [("ok", 1), ("error", 1), ("refused", None), ("cut", None)])
def test_only_calls_that_were_made_are_timed(outcome: Outcome, timed: float | None) -> None:
    registry = counted(called("add", True, outcome))
    assert registry.get_sample_value("acu_agent_tool_calls_total", {"tool": "add", "outcome": outcome}) == 1
    assert registry.get_sample_value("acu_agent_tool_seconds_count", {"tool": "add"}) == timed


def test_routes_are_counted() -> None:
    registry = counted(StepOver(**PART, number=0, model="m", routed=Routed(route="extract")))
    assert registry.get_sample_value("acu_agent_route_total", {"route": "extract"}) == 1


def test_an_answer_of_a_plain_model_is_no_agent_s_run() -> None:
    plain = PART | {"run": Began(agent="", model="m", messages=())}
    registry = counted(RunSeen(**plain), StepOver(**plain, number=0, model="m"))
    assert [sample for family in registry.collect() for sample in family.samples] == []

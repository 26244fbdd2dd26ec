"""Metrics of agents' runs, fed by what is over of them (agentflow.agents.watch), never once a token.

Labels are bounded by the configuration: agents and tools go by the names that they have there, and a tool that a model made
up counts as `unknown`. Answers of plain models, which are runs of no agent, are counted elsewhere.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agentflow.agents.watch import CallOver, RunLeft, RunOver, RunSeen, StepOver, Watched

TOOL_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
UNKNOWN = "unknown"


class AgentMetrics:
    """In `registry`. Used on the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._running = Gauge("acu_agent_runs_running", "Runs of agents now.", ["agent"], registry=registry)
        self._runs = counter("acu_agent_runs", "Runs of agents that ended.", "agent", "end")
        self._steps = counter("acu_agent_steps", "Generations of agents' runs.", "agent")
        self._prompt = counter("acu_agent_prompt_tokens", "Prompt tokens of agents' steps.", "agent")
        self._cached = counter("acu_agent_cached_prompt_tokens", "Those that the prefix cache had.", "agent")
        self._generated = counter("acu_agent_generation_tokens", "Tokens that agents' steps said.", "agent")
        self._routes = counter("acu_agent_route", "Steps that a router decided on.", "route")
        self._calls = counter("acu_agent_tool_calls", "Calls of tools by how they ended.", "tool", "outcome")
        self._seconds = Histogram(
            "acu_agent_tool_seconds", "Time of calls that were made.", ["tool"], buckets=TOOL_BUCKETS, registry=registry
        )

    def observe(self, part: Watched) -> None:
        """Count a part of a run."""
        agent = part.run.agent
        if not agent:
            return
        match part:
            case RunSeen():
                self._running.labels(agent).inc()
            case StepOver():
                self._step(agent, part)
            case CallOver(outcome=outcome):
                tool = part.name if part.known else UNKNOWN
                self._calls.labels(tool, outcome).inc()
                if outcome in ("ok", "error"):
                    self._seconds.labels(tool).observe(part.seconds)
            case RunOver(end=end):
                self._running.labels(agent).dec()
                self._runs.labels(agent, end).inc()
            case RunLeft():
                self._running.labels(agent).dec()

    def _step(self, agent: str, part: StepOver) -> None:
        self._steps.labels(agent).inc()
        if part.routed is not None:
            self._routes.labels(part.routed.route).inc()
        if part.measured is not None:
            self._prompt.labels(agent).inc(part.measured.prompt_tokens)
            self._cached.labels(agent).inc(part.measured.cached_tokens)
            self._generated.labels(agent).inc(part.measured.completion_tokens)

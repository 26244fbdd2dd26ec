"""Frozen snapshots of the orchestrator, for `acu status`, /readyz and the gauges of /metrics."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from agentflow.engine.protocol import EngineInfo, EngineStats

EngineState = Literal["starting", "ready", "backing_off", "stopped"]


class EngineStatus(Struct, frozen=True):
    """One supervised engine. `stage` and `fraction` (0.0 to 1.0) tell how far a start is; ages are in seconds.

    `start_s`: what each stage of the latest start took, in their order, as far as it is.
    """

    id: str
    state: EngineState
    stage: str = ""
    fraction: float | None = None
    info: EngineInfo | None = None
    stats: EngineStats = EngineStats()
    restarts: int = 0
    last_error: str | None = None
    uptime_s: float = 0.0
    start_s: dict[str, float] = {}


class HeldStatus(Struct, frozen=True):
    """What idle runs hold of a model's KV pool, as last read.

    `runs`: their prompts, which have `tokens` tokens that nothing at work has too; `share`: of the pool, with what runs, where
    1.0 is all of it. `above`: whether it is above its watermark, which was passed so many times; `released`: runs that let go.
    """

    runs: int
    tokens: int
    share: float
    above: bool
    passed: int
    released: int


class ModelStatus(Struct, frozen=True):
    """A served model with its engines; `ready` when at least one of them takes work.

    `sampling` has the defaults of requests in which the model differs from OpenAI.
    """

    name: str
    aliases: tuple[str, ...]
    role: str
    ready: bool
    created: int  # Unix time in seconds, for /v1/models
    engines: tuple[EngineStatus, ...]
    max_model_len: int | None
    queued: int
    running: int
    sampling: dict[str, float] = {}
    held: HeldStatus | None = None


class AgentStatus(Struct, frozen=True):
    """An agent, the tools that it has now, and its runs that go on. `waiting`: those of them that wait for a person's word."""

    name: str
    model: str
    tools: tuple[str, ...]
    running: int
    waiting: int


class AgentsStatus(Struct, frozen=True):
    """The agents, whose runs are counted over all tenants, and why MCP servers are not there now, by their names."""

    agents: tuple[AgentStatus, ...]
    mcp_problems: dict[str, str]


class Capacity(Struct, frozen=True):
    """What the scheduler admits at a time and what of it is free now, in requests (runs) and in prompt tokens that wait.

    Requests are those that run and those that wait. Each `reset_s` is the estimate, in seconds, of when all of it will be
    free if nothing else comes; while nothing is admitted, of when to ask again.
    """

    requests: int
    requests_free: int
    requests_reset_s: float
    tokens: int
    tokens_free: int
    tokens_reset_s: float


class ServiceStatus(Struct, frozen=True):
    """The whole orchestrator. `reason` says in a sentence why it is not ready.

    `idle_prefixes`: prompts that the engines keep for runs that are not at work. `prompt_limit`: the longest prompt that is
    taken now, in tokens, while the device's memory runs short.
    """

    ready: bool
    reason: str | None
    draining: bool
    queued: int
    queued_tokens: int
    running: int
    models: tuple[ModelStatus, ...]
    idle_prefixes: int = 0
    prompt_limit: int | None = None
    agents: AgentsStatus | None = None

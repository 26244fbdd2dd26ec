"""A service with an agent, a scripted model and tools that do what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentflow.agents.agency import Agency
from agentflow.agents.config import AgentConfig
from agentflow.agents.watch import Watcher
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.errors import AgentFlowError
from agentflow.events import Event, TextDelta
from agentflow.messages import ChatRequest, Message
from agentflow.run import Run
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import ByteTokenizer
from agentflow.tools.handles import HandleStore
from agentflow.tools.tool import CallContext, ToolOutput, ToolSpec
from agentflow.tools.toolbox import Toolbox
from dataplane import DataPlane, StateStore

Body = Callable[[dict[str, Any], CallContext], Awaitable[str]]


class BodyTool:
    """A tool that is a coroutine function of the test's."""

    def __init__(self, name: str, body: Body, **spec: Any) -> None:
        self.spec = ToolSpec(name=name, **{"parameters": {"type": "object"}, **spec})
        self._body = body

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        return ToolOutput(await self._body(arguments, context))


class Bench:
    """The service, and the engine's runs that have ended."""

    def __init__(self, service: Service, ended: list[Run]) -> None:
        self.service = service
        self.ended = ended

    async def ask(self, text: str, agent: str = "a", **more: Any) -> list[Event]:
        """All events of an agent's answer."""
        stream = await self.service.chat(request(text, agent, **more))
        try:
            return [event async for event in stream]
        finally:
            await stream.aclose()


def request(text: str, agent: str = "a", **more: Any) -> ChatRequest:
    return ChatRequest(id="req", model=f"agent/{agent}", messages=(Message("user", text),), **more)


def call(name: str, arguments: str = "{}") -> str:
    """A call as the scripted model writes it."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def kept(error: AgentFlowError | None) -> None:
    """For a journal's `append`: nothing may be lost."""
    assert error is None


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@asynccontextmanager
async def benched(
    folder: Path,
    rules: Mapping[str, str | Rule],
    tools: list[BodyTool],
    agent: AgentConfig | None = None,
    *,
    max_running: int = 64,
    plane: DataPlane | None = None,
    within: Literal["user", "prompt"] = "user",
    queue_limit: int = 1024,
    watcher: Watcher | None = None,
    idle: tuple[int, float] = (128, 600.0),
    **script: Any,
) -> AsyncIterator[Bench]:
    """`rules`: what the model says to a last message that matches. The agent `a` has all tools."""
    ended: list[Run] = []
    script_ = Script(rules=tuple(_rule(match, answer, within) for match, answer in rules.items()), **script)
    served = ServedModel(
        name="m",
        aliases=("large",),
        role="chat",
        config=ModelConfig(model="m", engine="scripted", max_model_len=20_000),
        path=None,
        created=0,
        tokenizer=ByteTokenizer,
        engines=(lambda: ScriptedEngine(script_, max_model_len=20_000, max_running=max_running),),
    )
    handles = HandleStore(folder / "handles")
    await handles.open()

    async def state() -> StateStore:
        assert plane is not None
        return plane.state

    agents = {"a": agent or AgentConfig(tools=("*",))}
    agency = Agency(agents, Toolbox(tools, handles), None if plane is None else state, watcher=watcher)
    config = SchedulerConfig(
        queue_limit=queue_limit, restart_backoff_s=0.01, idle_prefixes=idle[0], idle_prefix_s=idle[1]
    )
    service = Service((served,), config, ended.append, agency=agency)
    async with asyncio.TaskGroup() as tasks:
        await service.start(tasks)
        try:
            yield Bench(service, ended)
        finally:
            await service.stop(1.0)


def _rule(match: str, answer: str | Rule, within: Literal["user", "prompt"]) -> Rule:
    if isinstance(answer, str):
        return Rule(match=match, answer=answer, within=within)
    return msgspec.structs.replace(answer, match=match)

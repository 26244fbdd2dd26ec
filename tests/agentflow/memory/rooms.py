"""A service with agents that remember: real data plane, scripted model, and the scripted embedder behind the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentflow.agents.agency import Agency
from agentflow.agents.archive import Archive
from agentflow.agents.config import AgentConfig, MemoryConfig
from agentflow.agents.record import Event, Recalled, StepBegan
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.script import Rule, Script
from agentflow.engine.scripted import ScriptedEngine
from agentflow.engine.scripted_embedder import ScriptedEmbedder
from agentflow.events import Event as Told
from agentflow.events import TextDelta
from agentflow.library.embedder import Embedder
from agentflow.library.embedderid import EmbedderId
from agentflow.memory.agentmemory import AgentMemory, Keeping
from agentflow.memory.diary import Diary
from agentflow.memory.memories import Findings, Memories, Wanted
from agentflow.memory.recollection import Memory
from agentflow.messages import Caller, ChatRequest, Message
from agentflow.service import ServedModel, Service
from agentflow.tokenizer import ByteTokenizer
from agentflow.tools.handles import HandleStore
from agentflow.tools.remembering import remembering_tools
from agentflow.tools.tool import Tool
from agentflow.tools.toolbox import Toolbox
from dataplane import DataPlane, DataPlaneConfig, StateStore

RECALL_MS = 10_000.0  # so long that a busy machine changes nothing
REMEMBERS = MemoryConfig(recall=True, recall_ms=RECALL_MS, recall_floor=None, remember="turns")
AGENTS = {
    "a": AgentConfig(memory=REMEMBERS, instructions="You are kind."),
    "b": AgentConfig(memory=REMEMBERS),
    "deaf": AgentConfig(),
}
EMBED = "bytes-embed"
PATIENCE_S = 60.0


class Room:
    """What a test works with, in short words."""

    def __init__(self, service: Service, plane: DataPlane, memories: Memories, memory: AgentMemory) -> None:
        self.service = service
        self.plane = plane
        self.memories = memories
        self.memory = memory

    async def ask(self, *turns: str, agent: str = "a", tenant: str = "acme", **more: Any) -> str:
        """An agent's answer to a conversation: turns of the user and, in between, of the assistant."""
        roles = ("user", "assistant")
        messages = tuple(Message(roles[number % 2], text) for number, text in enumerate(turns))  # type: ignore[arg-type]
        request = ChatRequest(id="req", model=f"agent/{agent}", messages=messages, caller=Caller(tenant=tenant), **more)
        stream = await self.service.chat(request)
        events: list[Told] = [event async for event in stream]
        await stream.aclose()
        return "".join(event.text for event in events if isinstance(event, TextDelta))

    async def written(self) -> None:
        """Wait until all that is due is in its memory."""
        async with asyncio.timeout(PATIENCE_S):
            await self.service.agents.drain()
            while self.memory.diary.due:
                await asyncio.sleep(0.005)

    async def events(self, tenant: str = "acme") -> list[Event]:
        """The log of the tenant's newest run."""
        (name, _), *_ = await self.plane.state.scan(tenant, "run")
        return [event for _, event in await Archive(self.plane.state).events(tenant, name)]

    async def recalled(self, tenant: str = "acme") -> Recalled:
        """What the tenant's newest run was reminded of."""
        (found,) = [event for event in await self.events(tenant) if isinstance(event, Recalled)]
        return found

    async def prompt(self, tenant: str = "acme") -> str:
        """What the model read in the first step of the tenant's newest run."""
        step = next(event for event in await self.events(tenant) if isinstance(event, StepBegan))
        return "" if step.prompt is None else ByteTokenizer().decode(step.prompt, skip_special_tokens=False)

    async def found(self, text: str, name: str = "a", tenant: str = "acme", most: int = 10) -> tuple[Memory, ...]:
        """What a search of a memory finds."""
        findings: Findings = await self.memories.search(tenant, name, Wanted(text, most, PATIENCE_S))
        return findings.memories

    def keeping(self, tenant: str, run_id: str) -> Keeping | None:
        return self.service.agents.keeping(tenant, run_id)


def config(folder: Path) -> DataPlaneConfig:
    return DataPlaneConfig(path=str(folder / "data"), hot_layer_mem_mb=64)


@asynccontextmanager
async def opened(
    folder: Path,
    rules: Mapping[str, str] | None = None,
    agents: Mapping[str, AgentConfig] = AGENTS,
    *,
    tools: Sequence[Tool] = (),
    embedder: Script | None = None,
    max_model_len: int = 20_000,
) -> AsyncIterator[Room]:
    """A room on the data plane in `folder`. `rules`: what the model says to a last turn that matches."""
    plane = await DataPlane.open(config(folder))
    try:
        models = _models(rules or {}, embedder, max_model_len)
        async with _served(folder, plane, agents, tools, models) as room:
            yield room
    finally:
        await plane.close()


@asynccontextmanager
async def _served(
    folder: Path,
    plane: DataPlane,
    agents: Mapping[str, AgentConfig],
    tools: Sequence[Tool],
    models: tuple[ServedModel, ...],
) -> AsyncIterator[Room]:
    async def opened_plane() -> DataPlane:
        return plane

    async def state() -> StateStore:
        return plane.state

    async def embed(tenant: str, texts: Sequence[str], background: bool) -> Any:
        door = Embedder(service, EmbedderId(model=EMBED), ByteTokenizer().spans, special_tokens=0)
        return await door.embed(tenant, texts, background=background)

    def keeping(tenant: str, run_id: str) -> Keeping | None:
        return service.agents.keeping(tenant, run_id)

    async def embedder_id() -> EmbedderId:
        return EmbedderId(model=EMBED)

    memories = Memories(opened_plane, embed, embedder_id)
    handles = HandleStore(folder / "handles")
    await handles.open()
    diary = Diary(memories, state)
    box = Toolbox([*tools, *remembering_tools(memories, diary, keeping)], handles)
    memory = AgentMemory(agents, box.specs(), memories, diary)
    agency = Agency(agents, box, state, memory=memory)
    service = Service(models, SchedulerConfig(deadline_s=5.0), lambda _: None, agency=agency)
    async with asyncio.TaskGroup() as group:
        await service.start(group)
        try:
            yield Room(service, plane, memories, memory)
        finally:
            await service.stop(1.0)


def _models(rules: Mapping[str, str], embedder: Script | None, max_model_len: int) -> tuple[ServedModel, ...]:
    script = Script(rules=tuple(Rule(match=match, answer=answer) for match, answer in rules.items()))
    speaks = ServedModel(
        name="m",
        aliases=("large",),
        role="chat",
        config=ModelConfig(model="m", engine="scripted", max_model_len=max_model_len),
        path=None,
        created=0,
        tokenizer=ByteTokenizer,
        engines=(lambda: ScriptedEngine(script, max_model_len=max_model_len),),
    )
    embeds = ServedModel(
        EMBED,
        ("embed",),
        "embed",
        ModelConfig(model="e"),
        None,
        1,
        ByteTokenizer,
        (lambda: ScriptedEmbedder(embedder),),
    )
    return speaks, embeds

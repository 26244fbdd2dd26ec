"""Guide: the router of one agent, with the vectors that it needs. Decides within a bound of time, whatever the embedder does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentflow.agents.config import AgentConfig
from agentflow.errors import AgentFlowError
from agentflow.router import Decision, Router, Thresholds, Turn
from agentflow.routing.cards import ToolCard
from agentflow.tools.tool import ToolSpec
from agentflow.tools.toolbox import Toolbox

Embed = Callable[[str, Sequence[str]], Awaitable[Any]]
"""Unit vectors of texts, for a tenant: float32 (texts, width)."""

EMBED_S = 0.05  # for a turn's vector; without it words decide alone
RETRY_S = 5.0

_log = logging.getLogger(__name__)


class Guided(NamedTuple):
    """A decision, and the seconds that it took."""

    decision: Decision
    seconds: float


class Guide:
    """For one agent. `embed` None: words decide alone."""

    def __init__(self, specs: Iterable[ToolSpec], thresholds: Thresholds, embed: Embed | None) -> None:
        self.cards = tuple(ToolCard.of(spec) for spec in specs)
        self._aliases = {card.name: card.aliases for card in self.cards}
        self._router = Router(self.cards, thresholds)
        self._embed = embed

    def aliases(self, tool: str) -> tuple[str, ...]:
        """The words by which a tool is found; none of a tool that is not the agent's."""
        return self._aliases.get(tool, ())

    async def warm(self) -> None:
        """Embed the tools' descriptions and examples, once; tries until it can. Until then words decide."""
        while self._embed is not None:
            try:
                vectors = await self._embed("default", self._router.texts())
            except AgentFlowError as error:
                _log.info("tools are not embedded yet", extra={"why": str(error)})
                await asyncio.sleep(RETRY_S)
            else:
                self._router = await asyncio.to_thread(self._router.with_vectors, vectors)
                return

    async def decide(self, turn: Turn, tenant: str) -> Guided:
        """Where a turn goes. Never raises what the embedder does."""
        began = time.monotonic()
        vector, hindered = None, ""
        text = self._router.to_embed(turn)
        if text is not None and self._embed is not None:
            try:
                async with asyncio.timeout(EMBED_S):
                    (vector,) = await self._embed(tenant, [text])
            except (AgentFlowError, TimeoutError) as error:
                hindered = "words alone decided: " + (str(error) or f"the embedder took over {1000 * EMBED_S:.0f} ms")
        decision = self._router.decide(turn, vector)
        if hindered:
            decision = replace(decision, reasons=(*decision.reasons, hindered))
        return Guided(decision, time.monotonic() - began)


class Guides:
    """The guides of all agents that are routed, of the tools that there are now. `start` it, and `stop` it."""

    def __init__(self, agents: Mapping[str, AgentConfig], toolbox: Toolbox, embed: Embed | None) -> None:
        self._agents = agents
        self._toolbox = toolbox
        self._embed = embed
        self._tasks: asyncio.TaskGroup | None = None
        self._warming: list[asyncio.Task[None]] = []
        self._guides: dict[str, Guide] = {}
        self._version = -1  # of the toolbox, that they are of

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Embed the tools in `tasks`, now and whenever they are others."""
        self._tasks = tasks
        self.of("")

    def stop(self) -> None:
        """End what `start` began."""
        for task in self._warming:
            task.cancel()

    def of(self, name: str) -> Guide | None:
        """An agent's guide; None where it is not routed."""
        if self._version != self._toolbox.version:
            self._version = self._toolbox.version
            self._guides = {
                each: Guide(self._toolbox.specs(agent.tools), agent.thresholds, self._embed)
                for each, agent in self._agents.items()
                if agent.routing and agent.tools
            }
            self.stop()
            if self._tasks is not None:
                self._warming = [self._tasks.create_task(guide.warm()) for guide in self._guides.values()]
        return self._guides.get(name)

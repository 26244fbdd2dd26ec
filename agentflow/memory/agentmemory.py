"""AgentMemory: the memories of a configuration's agents: who is reminded of what, and what of a run is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from agentflow.errors import AgentFlowError
from agentflow.memory.diary import Page
from agentflow.memory.entries import entries_of
from agentflow.memory.recall import Recall

if TYPE_CHECKING:
    from agentflow.agents.config import AgentConfig
    from agentflow.agents.live import LiveRun
    from agentflow.memory.diary import Diary
    from agentflow.memory.memories import Memories
    from agentflow.tools.tool import ToolSpec

_log = logging.getLogger(__name__)


class Keeping(NamedTuple):
    """How an agent's memory is kept: its name, whether notes are written, and for how many days (None: for ever)."""

    agent: str
    name: str
    notes: bool
    ttl_days: float | None


class AgentMemory:
    """Lives on the event loop. `specs`: the tools that there are, which say for how long their results hold."""

    def __init__(
        self,
        agents: Mapping[str, AgentConfig],
        specs: Iterable[ToolSpec],
        memories: Memories,
        diary: Diary,
    ) -> None:
        self._agents = agents
        self._fresh_s = {spec.name: spec.fresh_for_s for spec in specs if spec.fresh_for_s is not None}
        self._memories = memories
        self.diary = diary

    def recall(self, agent: str) -> Recall | None:
        """What reminds the agent's runs; None where nothing does."""
        config = self._agents.get(agent)
        if config is None or not config.memory.recall:
            return None
        memory = config.memory
        return Recall(
            self._memories, memory.name or agent, memory.recall_count, memory.recall_ms / 1000, memory.recall_floor
        )

    def keeping(self, agent: str) -> Keeping | None:
        """How the agent's memory is kept; None for one that has none."""
        config = self._agents.get(agent)
        if config is None or not (config.memory.recall or config.memory.remember != "none"):
            return None
        memory = config.memory
        return Keeping(agent, memory.name or agent, memory.remember != "none", memory.ttl_days)

    async def remember(self, live: LiveRun) -> None:
        """Have what is worth it of a run that is over, and is stored, written behind it. Raises nothing but CancelledError."""
        began = live.progress.began
        config = None if began is None or live.archive is None else self._agents.get(began.agent)
        if began is None or config is None or config.memory.remember != "turns":
            return
        try:
            entries = entries_of(live.progress, live.told(), self._fresh_s, config.memory.ttl_days)
            if entries:
                page = Page(name=config.memory.name or began.agent, entries=tuple(entries))
                await self.diary.put(live.tenant, live.id, page)
        except AgentFlowError as error:
            _log.warning("a run is not remembered", extra={"run": live.id, "why": str(error)})
        except Exception:  # noqa: BLE001 - a defect there must not touch a run
            _log.exception("a run is not remembered, for a defect", extra={"run": live.id})

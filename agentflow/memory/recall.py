"""Recall: what a run is reminded of before its first step. Within a bound of time, whatever the embedder and the disk do."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from agentflow.agents.record import Recalled
from agentflow.errors import AgentFlowError
from agentflow.memory.memories import Findings, Memories, Wanted
from agentflow.memory.recollection import bounded
from agentflow.memory.rows import fingerprint
from agentflow.messages import Message

MOST_TURNS: Final = 512  # of a conversation that are looked at, so that it is not reminded of itself

_log = logging.getLogger(__name__)


class Recall:
    """For one agent: of the memory `name`, up to `count` memories that are not below `floor`, within `within_s` seconds."""

    def __init__(self, memories: Memories, name: str, count: int, within_s: float, floor: float | None) -> None:
        self._memories = memories
        self._name = name
        self._count = count
        self._within_s = within_s
        self._floor = floor

    async def ask(self, tenant: str, messages: Sequence[Message], most_bytes: int | None = None) -> Recalled:
        """What fits the user's last turn. What the conversation itself says is left out. Raises nothing but CancelledError.

        `most_bytes`: how long the text of it may be; None: any length that recollection.py lets pass.
        """
        began = time.monotonic()
        said = [message.content or "" for message in messages if message.role == "user"]
        findings = await self._findings(tenant, said)
        kept = bounded(findings.memories, most_bytes)
        why = findings.why
        if findings.far:
            why = "; ".join(filter(None, (why, f"{findings.far} left out, which are below recall_floor")))
        if len(kept) < len(findings.memories):
            left = len(findings.memories) - len(kept)
            why = "; ".join(filter(None, (why, f"{left} left out, which would have been too long")))
        return Recalled(
            ids=tuple(memory.id for memory in kept),
            texts=tuple(memory.text for memory in kept),
            written=tuple(memory.at for memory in kept),
            names=tuple(memory.name for memory in kept) if any(memory.name for memory in kept) else (),
            tiers=findings.tiers,
            complete=findings.complete,
            seconds=time.monotonic() - began,
            why=why,
        )

    async def _findings(self, tenant: str, said: list[str]) -> Findings:
        if not said or not said[-1].strip():
            return Findings(why="the user said nothing")
        before = [fingerprint(text) for text in said[-MOST_TURNS - 1 : -1]]
        try:
            return await self._memories.search(
                tenant, self._name, Wanted(said[-1], self._count, self._within_s, tuple(before), self._floor)
            )
        except AgentFlowError as error:
            _log.info("nothing is recalled", extra={"memory": self._name, "why": str(error)})
            return Findings(complete=False, why=str(error))
        except Exception as error:  # noqa: BLE001 - a defect there must not end a run
            _log.exception("nothing is recalled, for a defect")
            return Findings(complete=False, why=f"the memory failed: {type(error).__name__}")

"""Vectors: what the served embedding model makes of texts for memories, and which model that is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from agentflow.errors import AgentFlowError, ContextLengthExceeded
from agentflow.library.embedderid import EmbedderId
from agentflow.memory.scripts import PROBES, knows

Embed = Callable[[str, Sequence[str], bool], Awaitable[Any]]
"""Vectors of texts, for a tenant: float32 (texts, width). True: nobody waits for them, and they are to be found; else queries."""
Identity = Callable[[], Awaitable[EmbedderId]]
"""Which model it is. Raises Refused while that is not known."""

QUERY_CHARS: Final = 1000
_HALVINGS: Final = 6


class Vectors:
    """Methods raise Refused, EngineFailure, InvalidRequest."""

    def __init__(self, embed: Embed, identity: Identity) -> None:
        self._embed = embed
        self.embedder = identity
        self._measuring = asyncio.Lock()
        self._knows_chinese: dict[EmbedderId, bool] = {}

    async def measured(self, tenant: str, embedder: EmbedderId) -> bool:
        """Whether the model knows Chinese (scripts.py), which is measured once."""
        async with self._measuring:
            if embedder not in self._knows_chinese:
                said = [text for pair in PROBES for text in pair]
                self._knows_chinese[embedder] = knows(await self._embed(tenant, said, True))
        return self._knows_chinese[embedder]

    def knows_chinese(self, embedder: EmbedderId | None) -> bool | None:
        """What was measured; None where nobody has."""
        return None if embedder is None else self._knows_chinese.get(embedder)

    async def passages(self, tenant: str, texts: list[str]) -> Any:
        """Of texts that are to be found. Of one that the model does not take, that of its beginning."""
        for _ in range(_HALVINGS):
            try:
                return await self._embed(tenant, texts, True)
            except ContextLengthExceeded:
                half = max(map(len, texts)) // 2
                texts = [text[:half] for text in texts]
        return await self._embed(tenant, texts, True)

    async def query(self, tenant: str, text: str, within_s: float) -> tuple[Any, EmbedderId | None, str]:
        """A query's vector and whose it is; or that there is none, and why."""
        try:
            async with asyncio.timeout(within_s):
                vectors = await self._embed(tenant, [text[:QUERY_CHARS]], False)
                return vectors[0], await self.embedder(), ""
        except (AgentFlowError, TimeoutError) as error:
            slow = f"the embedding model took over {1000 * within_s:.0f} ms"
            return None, None, str(error) or slow

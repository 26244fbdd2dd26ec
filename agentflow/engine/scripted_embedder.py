"""ScriptedEmbedder: a deterministic stand-in for an embedding model, which ships and serves.

Texts with more three-byte sequences in common get nearer vectors. The script says how wide they are, and how long a
call takes. No process, thread or task is its own: a large call computes on the loop, and lets others have their turn
after every few thousand tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from agentflow.engine.protocol import EngineInfo, EngineStats, StartProgress
from agentflow.engine.script import Script
from agentflow.engine.script_start import pretend_to_start
from agentflow.errors import EngineDied, EngineFailure

TURN_TOKENS = 8192  # tokens that are computed in one turn of the loop, about a millisecond; an input is never cut


class ScriptedEmbedder:
    """An Embedder without a model. See the module."""

    def __init__(self, script: Script | None = None, *, max_model_len: int = 8192, max_running: int = 1024) -> None:
        self._script = script or Script()
        self._max_model_len = max_model_len
        self._max_running = max_running
        self._failure: EngineFailure | None = None
        self._outstanding = 0
        self._last_progress_at = 0.0
        self._died = asyncio.Event()
        self.dimensions = self._script.dimensions

    @property
    def failure(self) -> EngineFailure | None:
        """As Embedder.failure."""
        return self._failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Embedder.start."""
        await pretend_to_start(self._script, progress, lambda: self._failure)
        self._last_progress_at = monotonic()
        return EngineInfo(name="scripted", max_model_len=self._max_model_len, max_running=self._max_running)

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Any:
        """As Embedder.embed."""
        self._outstanding += len(inputs)
        try:
            if self._script.embed_s and self._failure is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._died.wait(), self._script.embed_s)
            if self._failure is not None:
                raise self._failure.again()
            self._last_progress_at = monotonic()
            return await self._vectors(inputs)
        finally:
            self._outstanding -= len(inputs)

    async def free_memory(self) -> int:
        """As Embedder.free_memory: it keeps nothing."""
        return 0

    def stats(self) -> EngineStats:
        """As Embedder.stats."""
        return EngineStats(
            outstanding=self._outstanding, running=self._outstanding, last_progress_at=self._last_progress_at
        )

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Embedder.kill."""
        self._fail(reason or EngineDied("the scripted embedder was killed"))

    async def stop(self, timeout_s: float) -> None:
        """As Embedder.stop."""
        self._fail(EngineDied("the scripted embedder was stopped"))

    async def _vectors(self, inputs: Sequence[Sequence[int]]) -> Any:
        import numpy as np  # here, because it takes 0.1 s to import and only an embedder needs it

        vectors = np.empty((len(inputs), self.dimensions), dtype=np.float32)
        tokens = 0
        for place, ids in enumerate(inputs):
            vectors[place] = _trigram_vector(ids, self.dimensions)
            tokens += len(ids)
            if tokens >= TURN_TOKENS:
                tokens = 0
                await asyncio.sleep(0)
                if self._failure is not None:
                    raise self._failure.again()
        return vectors

    def _fail(self, failure: EngineFailure) -> None:
        if self._failure is None:
            self._failure = failure
            self._died.set()


def _trigram_vector(ids: Sequence[int], dimensions: int) -> Any:
    """Count each three-token sequence in the bucket that it hashes to; unit length. Shape [dimensions]."""
    import numpy as np

    padded = np.array([0, *ids, 0, 0], dtype=np.uint64)
    mixed = (padded[:-2] * np.uint64(1_000_003) + padded[1:-1]) * np.uint64(1_000_003) + padded[2:]
    buckets = (mixed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)) % np.uint64(dimensions)
    counts = np.bincount(buckets.astype(np.intp), minlength=dimensions).astype(np.float32)
    return counts / np.linalg.norm(counts)

"""ScriptedEmbedder: a deterministic stand-in for an embedding model, which ships and serves.

Texts with more three-byte sequences in common get nearer vectors. The script says how wide they are, and how long a
call takes. No process, thread or task is its own.
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


class ScriptedEmbedder:
    """An Embedder without a model. See the module."""

    def __init__(self, script: Script | None = None, *, max_model_len: int = 8192) -> None:
        self._script = script or Script()
        self._max_model_len = max_model_len
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
        return EngineInfo(name="scripted", max_model_len=self._max_model_len, max_running=1024)

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
            return _trigram_vectors(inputs, self.dimensions)
        finally:
            self._outstanding -= len(inputs)

    def stats(self) -> EngineStats:
        """As Embedder.stats."""
        return EngineStats(
            outstanding=self._outstanding, running=self._outstanding, last_progress_at=self._last_progress_at
        )

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Embedder.kill."""
        if self._failure is None:
            self._failure = reason or EngineDied("the scripted embedder was killed")
            self._died.set()

    async def stop(self, timeout_s: float) -> None:
        """As Embedder.stop."""
        self.kill()


def _trigram_vectors(inputs: Sequence[Sequence[int]], dimensions: int) -> Any:
    """Count each three-token sequence in the bucket that it hashes to; unit length. Shape [inputs, dimensions]."""
    import numpy as np  # here, because it takes 0.1 s to import and only an embedder needs it

    vectors = np.zeros((len(inputs), dimensions), dtype=np.float32)
    for row, ids in zip(vectors, inputs, strict=True):
        padded = np.array([0, *ids, 0, 0], dtype=np.uint64)
        mixed = (padded[:-2] * np.uint64(1_000_003) + padded[1:-1]) * np.uint64(1_000_003) + padded[2:]
        np.add.at(row, (mixed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)) % np.uint64(dimensions), 1.0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

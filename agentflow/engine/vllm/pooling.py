"""VllmEmbedder: an Embedder that is a second vLLM engine, with the pooling runner.

It costs two more processes; worth it for large embedding models, above all on a GPU. Small ones are cheaper in a
thread of the daemon (see engine/encoder.py).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentflow.config import ModelConfig
from agentflow.engine.protocol import EngineInfo, EngineStats, StartProgress
from agentflow.engine.vllm import forgetting
from agentflow.engine.vllm.facts import MachineFacts, read_model
from agentflow.engine.vllm.host import EngineHost
from agentflow.engine.vllm.startup import Startup, expected_seconds
from agentflow.engine.vllm.tuning import choose_pooling
from agentflow.errors import EngineDied, EngineFailure, InvalidRequest, SequenceFailed


class VllmEmbedder:
    """One vLLM engine that pools, started once. Arguments as VllmEngine's."""

    dimensions: int = 0

    def __init__(self, path: Path, config: ModelConfig, machine: Callable[[], MachineFacts]) -> None:
        self._path = path
        self._config = config
        self._machine = machine
        self._host = EngineHost()
        self._outstanding = 0
        self._max_running = 0
        self._progress_at = 0.0
        self._numbers = itertools.count()

    @property
    def failure(self) -> EngineFailure | None:
        """As Embedder.failure."""
        return self._host.failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Embedder.start."""
        model = read_model(self._path)
        choices = choose_pooling(model, self._config, self._machine())
        startup = Startup(expected_seconds(model.weights_bytes, compiled=choices.shown["compiled"]), progress)
        await self._host.start(choices, startup)
        self._max_running = choices.max_running
        config = self._host.llm.vllm_config.model_config
        self.dimensions = config.get_hidden_size()
        return EngineInfo(
            name="vllm",
            max_model_len=config.max_model_len,
            max_running=choices.max_running,
            pids=self._host.processes.pids,
            choices=choices.shown,
        )

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Any:
        """As Embedder.embed. Raises InvalidRequest, EngineFailure."""
        import numpy as np  # here, because it takes 0.1 s to import, and vLLM has had it imported in its thread

        if (failure := self.failure) is not None:
            raise failure.again()
        tasks = [asyncio.ensure_future(self._embed_one(list(token_ids))) for token_ids in inputs]
        try:
            vectors = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # one has failed, or the caller is gone: nobody wants the others
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return np.stack(vectors) if vectors else np.empty((0, self.dimensions), np.float32)

    async def _embed_one(self, token_ids: list[int]) -> Any:
        from vllm.exceptions import VLLMClientError
        from vllm.pooling_params import PoolingParams
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        prompt = {"type": "token", "prompt_token_ids": token_ids}
        number = f"embed#{next(self._numbers)}"
        vector = None
        self._outstanding += 1
        try:
            async for output in self._host.llm.encode(prompt, PoolingParams(task="embed"), number):
                vector = output.outputs.data.float().numpy()
        except EngineDeadError as error:
            raise (self.failure or EngineDied("the engine's process ended")).again() from error
        except (VLLMClientError, ValueError) as error:
            raise InvalidRequest(str(error), param="input") from error
        except EngineGenerateError as error:
            raise SequenceFailed(f"The engine gave an input up: {error.__cause__ or error}") from error
        finally:
            self._outstanding -= 1
        self._progress_at = time.monotonic()
        return vector

    async def free_memory(self) -> int:
        """As Embedder.free_memory; see forgetting.py."""
        return await self._host.call(forgetting.FREE_METHOD, "The engine gave no memory back")

    def stats(self) -> EngineStats:
        """As Embedder.stats. The engine runs as many inputs as it may; the others wait there."""
        running = min(self._outstanding, self._max_running)
        return EngineStats(
            outstanding=self._outstanding,
            running=running,
            waiting=self._outstanding - running,
            last_progress_at=self._progress_at,
        )

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Embedder.kill."""
        self._host.kill(reason)

    async def stop(self, timeout_s: float) -> None:
        """As Embedder.stop."""
        await self._host.stop(timeout_s)

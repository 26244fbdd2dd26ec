"""Encoder: a sentence encoder (all-MiniLM-L6-v2 and its like) in one thread of the daemon.

A model of some 20 million weights takes milliseconds a sentence: less than what another engine's process would cost.
torch and transformers are imported in the thread, when the encoder starts.

What arrives together is computed together: inputs wait in the order of arrival while the thread computes; when it is
free, the oldest is taken, and with it those nearest to it in length, up to `max_batched_tokens` tokens with the padding.
So an input waits for at most the batches before it, padding is small, and memory is bounded by one batch.

All state belongs to the event loop; the thread gets a batch and gives its vectors back. A caller that is cancelled only leaves
its place: the batch goes on for the others. A batch that fails ends the encoder (`failure`); its supervisor loads it anew.
A thread cannot be killed: after `kill`, the batch that runs ends by itself, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct

from agentflow.config import ModelConfig
from agentflow.engine.imports import heavy_imports
from agentflow.engine.protocol import EngineInfo, EngineStats, StartProgress
from agentflow.errors import ContextLengthExceeded, EngineDied, EngineFailure, EngineStartFailed

BATCH_TOKENS = 2048
WINDOW = 512  # inputs that are looked at for a batch
CORES_A_THREAD = 4  # one thread for each so many cores: the engine and the loop need the others


class _Files(Struct, frozen=True):
    """What the model's folder says: vector width, longest input (tokens), and whether the first token stands for all."""

    dimensions: int
    max_tokens: int
    first_token: bool


class _Input(Struct):
    """One input that waits for its vector."""

    token_ids: Sequence[int]
    vector: asyncio.Future[Any]


class Encoder:
    """An Embedder. See the module."""

    dimensions: int = 0

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self._path = path
        self._config = config
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._model: Any = None
        self._files = _Files(0, 0, False)
        self._waiting: deque[_Input] = deque()
        self._computing: list[_Input] = []
        self._failure: EngineFailure | None = None
        self._progress_at = 0.0

    @property
    def failure(self) -> EngineFailure | None:
        """As Embedder.failure."""
        return self._failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """Load the model. Raises EngineStartFailed."""
        progress(StartProgress("loading"))
        threads = max(1, len(os.sched_getaffinity(0)) // CORES_A_THREAD)
        try:
            self._files = _read_files(self._path, self._config)
            self._model = await asyncio.get_running_loop().run_in_executor(
                self._thread, _load, self._path, self._files, threads
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise EngineStartFailed(f"the encoder in {self._path} cannot be loaded: {error}") from error
        self.dimensions = self._files.dimensions
        return EngineInfo(
            name="encoder",
            max_model_len=self._files.max_tokens,
            max_running=self._config.max_running or 64,
            choices={"device": "cpu", "dtype": "float32", "threads": threads, "dimensions": self.dimensions},
        )

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Any:
        """As Embedder.embed. Raises ContextLengthExceeded, EngineFailure."""
        import numpy as np  # here, because it takes 0.1 s to import, and `start` had it imported in the thread

        for token_ids in inputs:
            if not 0 < len(token_ids) <= self._files.max_tokens:
                raise ContextLengthExceeded(
                    f"an input of {len(token_ids)} tokens; the model takes 1 to {self._files.max_tokens}", param="input"
                )
        if self._failure is not None:
            raise self._failure.again()
        loop = asyncio.get_running_loop()
        mine = [_Input(token_ids, loop.create_future()) for token_ids in inputs]
        self._waiting += mine
        self._compute_next()
        try:
            vectors = await asyncio.gather(*(item.vector for item in mine))
        finally:
            for item in mine:  # gather cancels them when it is cancelled, but not when one of them failed
                item.vector.cancel()
        return np.stack(vectors) if vectors else np.empty((0, self.dimensions), np.float32)

    async def free_memory(self) -> int:
        """As Embedder.free_memory: it keeps nothing."""
        return 0

    def stats(self) -> EngineStats:
        """As Embedder.stats."""
        return EngineStats(
            outstanding=len(self._waiting) + len(self._computing),
            running=len(self._computing),
            waiting=len(self._waiting),
            last_progress_at=self._progress_at,
        )

    def kill(self, reason: EngineFailure | None = None) -> None:
        """Make every caller raise, and forget the thread. Idempotent."""
        self._fail(reason or EngineDied("the encoder was stopped"))
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = None

    async def stop(self, timeout_s: float) -> None:
        """Let the batch that runs finish, for at most `timeout_s`, then as `kill`."""
        running = [item.vector for item in self._computing if not item.vector.done()]
        if running and self._failure is None:
            await asyncio.wait(running, timeout=timeout_s)
        self.kill()

    def _compute_next(self) -> None:
        """Hand the thread the next batch, if it is free and there is one."""
        if self._computing or self._failure is not None:
            return
        batch = self._computing = _take_batch(self._waiting, self._config.max_batched_tokens or BATCH_TOKENS)
        if not batch:
            return
        result = asyncio.get_running_loop().run_in_executor(
            self._thread, self._model, [item.token_ids for item in batch]
        )
        result.add_done_callback(self._computed)

    def _computed(self, result: asyncio.Future[Any]) -> None:
        batch, self._computing = self._computing, []
        if result.cancelled() or self._failure is not None:
            return
        if (error := result.exception()) is not None:
            self._computing = batch
            failure = EngineDied(f"the encoder failed: {error}")
            failure.__cause__ = error
            self._fail(failure)
            return
        self._progress_at = time.monotonic()
        for item, vector in zip(batch, result.result(), strict=True):
            if not item.vector.done():
                item.vector.set_result(vector)
        self._compute_next()

    def _fail(self, failure: EngineFailure) -> None:
        if self._failure is None:
            self._failure = failure
        for item in (*self._computing, *self._waiting):
            if not item.vector.done():
                item.vector.set_exception(self._failure.again())
        self._computing = []
        self._waiting.clear()


def _take_batch(waiting: deque[_Input], tokens: int) -> list[_Input]:
    """Remove a batch from `waiting`: the oldest, and those nearest to it in length that fit.

    Only the oldest WINDOW are looked at, so that a batch costs the same however many wait. Inputs whose caller was
    cancelled (their vector is done) are dropped on the way.
    """
    window: list[_Input] = []
    while waiting and len(window) < WINDOW:
        item = waiting.popleft()
        if not item.vector.done():
            window.append(item)
    if not window:
        return []
    oldest = len(window[0].token_ids)
    batch: list[_Input] = []
    longest = 0
    for item in sorted(window, key=lambda item: abs(len(item.token_ids) - oldest)):  # stable: the oldest comes first
        longest = max(longest, len(item.token_ids))
        if batch and longest * (len(batch) + 1) > tokens:
            break
        batch.append(item)
    taken = {id(item) for item in batch}
    waiting.extendleft(item for item in reversed(window) if id(item) not in taken)
    return batch


def _read_files(path: Path, config: ModelConfig) -> _Files:
    model = json.loads((path / "config.json").read_text(encoding="utf-8"))
    sentence = _read_optional(path / "sentence_bert_config.json")
    pooling = _read_optional(path / "1_Pooling" / "config.json")
    if not (pooling.get("pooling_mode_cls_token") or pooling.get("pooling_mode_mean_tokens", True)):
        raise ValueError("1_Pooling/config.json asks for a pooling that is neither cls nor mean")
    own = int(sentence.get("max_seq_length") or model["max_position_embeddings"])
    return _Files(
        dimensions=int(model["hidden_size"]),
        max_tokens=min(config.max_model_len or own, int(model["max_position_embeddings"])),
        first_token=bool(pooling.get("pooling_mode_cls_token")),
    )


def _read_optional(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _load(path: Path, files: _Files, threads: int) -> Callable[[list[Sequence[int]]], Any]:
    """In the thread: load the model. Returns what turns a batch of token ids into unit vectors, shape [inputs, width]."""
    with heavy_imports():
        import torch
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        model = AutoModel.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    model.eval()
    padding = model.config.pad_token_id or 0

    def compute(batch: list[Sequence[int]]) -> Any:
        with torch.inference_mode():
            return vectors(batch)

    def vectors(batch: list[Sequence[int]]) -> Any:
        longest = max(map(len, batch))
        ids = torch.full((len(batch), longest), padding, dtype=torch.long)
        mask = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, token_ids in enumerate(batch):
            ids[row, : len(token_ids)] = torch.tensor(token_ids, dtype=torch.long)
            mask[row, : len(token_ids)] = 1
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        if files.first_token:
            pooled = hidden[:, 0]
        else:
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1).numpy()

    return compute

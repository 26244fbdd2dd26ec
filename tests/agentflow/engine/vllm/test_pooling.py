"""The real engine that pools, under a supervisor: the vectors that it gives, what it refuses, and its end.

The tests share one supervisor and the engine that it has just now: the one that kills it leaves a new one to the others.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from msgspec.structs import replace

from acu import models
from agentflow.config import ModelConfig
from agentflow.engine.encoder import Encoder
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.engine.vllm.pooling import VllmEmbedder
from agentflow.errors import EngineDied, InvalidRequest
from tests.agentflow.engine.machine import this_machine
from tests.agentflow.engine.sentences import QUESTIONS, SENTENCES, token_ids

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # vLLM and torch warn while they are imported
]

MODEL = "all-minilm-l6-v2"
CONFIG = ModelConfig(model=MODEL, max_running=32, kv_cache_mb=64)
WITH_A_WORKER = replace(CONFIG, engine_args={"distributed_executor_backend": "mp"})
"""A second process, which shares memory with the first, as an operator may choose and as a spread model has."""
LIMITS = SupervisorLimits(start_timeout_s=300, backoff_s=0.1, kill_timeout_s=10)


class Embedding:
    """The supervised embedder, every engine that its supervisor built, and how far the start of each was told to be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.built: list[VllmEmbedder] = []
        self.told: list[list[tuple[str, float | None]]] = []
        self.supervisor = Supervisor("embed/0", self._build, LIMITS, self._note)

    def _build(self) -> VllmEmbedder:
        self.built.append(VllmEmbedder(self.path, CONFIG if self.built else WITH_A_WORKER, this_machine))
        self.told.append([])
        return self.built[-1]

    def _note(self, supervisor: Supervisor[Any]) -> None:
        status = supervisor.status()
        if status.state == "starting" and status.stage:
            self.told[-1].append((status.stage, status.fraction))

    @property
    def engine(self) -> VllmEmbedder:
        """The last one."""
        return self.built[-1]

    async def ready(self, count: int) -> None:
        """Return once `count` engines were built and the last of them takes work."""
        await until(lambda: len(self.built) == count and self.supervisor.engine is not None, 300)

    async def embed(self, texts: list[str]) -> Any:
        """Their vectors."""
        return await self.engine.embed(token_ids(self.path, texts))


async def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedding(real_model_cache: Path) -> AsyncIterator[Embedding]:
    """A VllmEmbedder that takes work, and whose end leaves nothing."""
    embedding = Embedding(models.pull(MODEL, real_model_cache).path)
    running = asyncio.create_task(embedding.supervisor.run())
    try:
        await embedding.ready(1)
        yield embedding
        memory, pids = held_by(embedding.engine)
    finally:
        await embedding.supervisor.stop(10)
        await running
    assert not any(map(shared, memory))
    assert not any(map(lives, pids))


async def test_it_tells_how_far_its_start_is_and_what_it_turned_out_to_be(embedding: Embedding) -> None:
    stages = [stage for stage, _ in embedding.told[-1]]
    fractions = [fraction for _, fraction in embedding.told[-1] if fraction is not None]
    assert stages[0] == "importing"
    assert {"initializing", "loading", "loaded"} <= set(stages)
    assert len(fractions) == len(stages)
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1] > 0.7, fractions[-1] <= 1) == (0, True, True)
    info = embedding.supervisor.info
    assert info is not None
    assert (info.name, info.max_model_len, embedding.engine.dimensions) == ("vllm", 256, 384)


async def test_its_vectors_have_unit_length_and_are_those_of_the_encoder(embedding: Embedding) -> None:
    vectors = await embedding.embed(list(SENTENCES))
    assert (vectors.dtype, vectors.shape) == (np.float32, (10, 384))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    encoder = Encoder(embedding.path, ModelConfig(model=MODEL))
    await encoder.start(lambda _: None)
    try:
        theirs = await encoder.embed(token_ids(embedding.path, list(SENTENCES)))
    finally:
        await encoder.stop(10)
    np.testing.assert_allclose(vectors, theirs, atol=1e-3)


async def test_the_nearest_of_ten_sentences_is_the_right_one(embedding: Embedding) -> None:
    vectors = await embedding.embed([*SENTENCES, *QUESTIONS])
    assert (vectors[10:] @ vectors[:10].T).argmax(axis=1).tolist() == list(QUESTIONS.values())


async def test_company_changes_nothing_and_no_inputs_give_no_vectors(embedding: Embedding) -> None:
    together = await embedding.embed(list(SENTENCES))
    np.testing.assert_allclose(await embedding.embed([SENTENCES[4]]), together[4:5], atol=1e-4)
    assert (await embedding.engine.embed([])).shape == (0, 384)


async def test_an_input_that_is_too_long_is_refused_and_harms_no_other(embedding: Embedding) -> None:
    with pytest.raises(InvalidRequest, match="256"):
        await embedding.engine.embed([[101, 102], [5] * 257])
    assert embedding.engine.stats().outstanding == 0, "its company was given up with it"
    assert (await embedding.embed(["again"])).shape == (1, 384)


async def test_a_caller_that_leaves_leaves_nothing_behind(embedding: Embedding) -> None:
    engine = embedding.engine
    call = asyncio.ensure_future(engine.embed([[7] * 256] * 100))
    await until(lambda: engine.stats().outstanding == 100)
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (32, 68)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert engine.stats().outstanding == 0
    assert (await embedding.embed(["again"])).shape == (1, 384)


async def test_after_kill_9_callers_are_told_nothing_is_left_and_a_new_engine_serves(embedding: Embedding) -> None:
    before = await embedding.embed([SENTENCES[0]])
    first, built = embedding.engine, len(embedding.built)
    memory, pids = held_by(first)
    assert memory
    assert all(map(shared, memory))
    assert len(pids) == 2
    calls = [asyncio.ensure_future(first.embed([[7] * 256] * 100)) for _ in range(4)]
    await until(lambda: first.stats().outstanding == 400)
    os.kill(first._host.processes.pids[0], signal.SIGKILL)
    for call in (*calls, first.embed([[7]])):
        with pytest.raises(EngineDied) as caught:
            await call
        assert caught.value is not first.failure
    assert first.stats().outstanding == 0
    assert isinstance(first.failure, EngineDied)
    await embedding.ready(built + 1)
    status = embedding.supervisor.status()
    assert (status.state, status.restarts, status.last_error) == ("ready", built, None)
    assert not any(map(lives, pids))
    assert not any(map(shared, memory))
    assert len(held_by(embedding.engine)[1]) == 1
    np.testing.assert_allclose(await embedding.embed([SENTENCES[0]]), before, atol=1e-5)


def held_by(engine: VllmEmbedder) -> tuple[frozenset[str], frozenset[int]]:
    """The names of its shared memory, and its processes."""
    return engine._host._shared_memory, frozenset(engine._host.processes.pids)


def shared(name: str) -> bool:
    return Path("/dev/shm", name).exists()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

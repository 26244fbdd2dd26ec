"""The embedder without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from agentflow.engine.protocol import Embedder, StartProgress
from agentflow.engine.script import Script
from agentflow.engine.scripted_embedder import TURN_TOKENS, ScriptedEmbedder
from agentflow.errors import EngineDied
from agentflow.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


def nobody(_: StartProgress) -> None:
    pass


async def test_embeddings_are_unit_vectors_and_alike_for_like_texts() -> None:
    embedder: Embedder = ScriptedEmbedder(Script(dimensions=64))
    await embedder.start(nobody)
    texts = ["a cat sat on the mat", "the cat sat on a mat", "stock prices fell sharply", ""]
    vectors = await embedder.embed([TOKENIZER.encode(text, add_special_tokens=True) for text in texts])
    assert vectors.shape == (4, 64)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    again = await embedder.embed([TOKENIZER.encode(texts[0], add_special_tokens=True)])
    np.testing.assert_array_equal(again[0], vectors[0])


async def test_a_large_call_lets_others_have_their_turn() -> None:
    embedder = ScriptedEmbedder()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    await embedder.embed([[1] * TURN_TOKENS] * 50)
    waiting.cancel()
    assert turns >= 50


async def test_a_large_call_ends_with_the_embedder() -> None:
    embedder = ScriptedEmbedder()
    call = asyncio.create_task(_embed_died(embedder, "killed", [[1] * TURN_TOKENS] * 3))
    while embedder.stats().outstanding == 0:
        await asyncio.sleep(0)
    embedder.kill()
    await call


async def test_a_killed_embedder_raises_at_once() -> None:
    embedder = ScriptedEmbedder(Script(embed_s=60))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_embed_died(embedder, "killed"))
        async with asyncio.timeout(10):
            while embedder.stats().outstanding == 0:
                await asyncio.sleep(0.001)
        embedder.kill()
        await task
    assert isinstance(embedder.failure, EngineDied)
    await _embed_died(embedder, "killed")
    assert embedder.stats().outstanding == 0


async def test_a_stopped_embedder_says_so_and_not_that_it_was_killed() -> None:
    embedder = ScriptedEmbedder()
    await embedder.stop(1.0)
    await embedder.stop(1.0)
    await _embed_died(embedder, "stopped")


async def test_it_runs_as_many_calls_as_it_is_told() -> None:
    info = await ScriptedEmbedder(max_model_len=100, max_running=3).start(nobody)
    assert (info.max_model_len, info.max_running) == (100, 3)


async def _embed_died(embedder: ScriptedEmbedder, how: str, inputs: Sequence[Sequence[int]] = ((1, 2, 3),)) -> None:
    with pytest.raises(EngineDied, match=how):
        await embedder.embed(inputs)

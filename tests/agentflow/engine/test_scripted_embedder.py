"""The embedder without a model."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from agentflow.engine.protocol import Embedder, StartProgress
from agentflow.engine.script import Script
from agentflow.engine.scripted_embedder import ScriptedEmbedder
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


async def test_a_killed_embedder_raises_at_once() -> None:
    embedder = ScriptedEmbedder(Script(embed_s=60))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_embed_died(embedder))
        async with asyncio.timeout(10):
            while embedder.stats().outstanding == 0:
                await asyncio.sleep(0.001)
        embedder.kill()
        await task
    assert isinstance(embedder.failure, EngineDied)
    await _embed_died(embedder)
    assert embedder.stats().outstanding == 0


async def _embed_died(embedder: ScriptedEmbedder) -> None:
    with pytest.raises(EngineDied, match="killed"):
        await embedder.embed([[1, 2, 3]])

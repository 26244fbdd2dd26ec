"""The encoder: batches, cancellation and failure with a stand-in for the network; meaning with the real one."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acu.models import pull
from agentflow.config import ModelConfig
from agentflow.engine.encoder import Encoder
from agentflow.errors import ContextLengthExceeded, EngineDied, EngineStartFailed
from tests.agentflow.engine.sentences import QUESTIONS, SENTENCES, token_ids

CONFIG = ModelConfig(model="encoder", max_batched_tokens=64)


class Network:
    """Turns token ids into [their sum, their number]; notes the batches; can be held up and can fail."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def __call__(self, batch: list[list[int]]) -> Any:
        self.batches.append([list(ids) for ids in batch])
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        return np.array([[sum(ids), len(ids)] for ids in batch], np.float32)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    network = Network()
    (tmp_path / "config.json").write_text('{"hidden_size": 2, "max_position_embeddings": 32}')
    monkeypatch.setattr("agentflow.engine.encoder._load", lambda *_: network)
    return network


@pytest.fixture
async def encoder(network: Network, tmp_path: Path) -> Any:
    encoder = Encoder(tmp_path, CONFIG)
    await encoder.start(lambda _: None)
    yield encoder
    network.go.set()
    await encoder.stop(1)


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_vectors_come_back_in_the_order_of_the_inputs(encoder: Encoder) -> None:
    vectors = await encoder.embed([[1, 2, 3], [7], [4, 5]])
    assert vectors.tolist() == [[6, 3], [7, 1], [9, 2]]
    assert vectors.dtype == np.float32


async def test_no_inputs_give_an_empty_array(encoder: Encoder) -> None:
    assert (await encoder.embed([])).shape == (0, 2)


async def test_what_arrives_while_a_batch_runs_is_computed_together(encoder: Encoder, network: Network) -> None:
    network.go.clear()
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(encoder.embed([[n]])) for n in range(10)]
        await until(lambda: network.batches and encoder.stats().waiting == 9)
        network.go.set()
    assert [call.result().tolist() for call in calls] == [[[n, 1]] for n in range(10)]
    assert [len(batch) for batch in network.batches] == [1, 9]


async def test_a_batch_holds_no_more_tokens_than_allowed_with_the_padding(encoder: Encoder, network: Network) -> None:
    inputs = [[1] * length for length in (30, 1, 29, 2, 28, 3, 27, 4)]
    assert (await encoder.embed(inputs))[:, 1].tolist() == [30, 1, 29, 2, 28, 3, 27, 4]
    assert all(len(batch) * max(map(len, batch)) <= 64 for batch in network.batches)
    assert [sorted(map(len, batch)) for batch in network.batches] == [[29, 30], [1, 2, 3, 4], [27, 28]]


async def test_a_cancelled_caller_does_not_spoil_the_batch(encoder: Encoder, network: Network) -> None:
    network.go.clear()
    first = asyncio.ensure_future(encoder.embed([[1]]))
    others = [asyncio.ensure_future(encoder.embed([[n]])) for n in (2, 3, 4)]
    await until(lambda: network.batches)
    first.cancel()
    others[1].cancel()
    network.go.set()
    assert (await others[0]).tolist() == [[2, 1]]
    assert (await others[2]).tolist() == [[4, 1]]
    assert network.batches == [[[1]], [[2], [4]]]
    assert encoder.stats().outstanding == 0


async def test_a_failing_batch_ends_the_encoder_and_every_caller_is_told(encoder: Encoder, network: Network) -> None:
    network.go.clear()
    network.error = MemoryError("no more")
    calls = [asyncio.ensure_future(encoder.embed([[n]])) for n in range(3)]
    await until(lambda: network.batches)
    network.go.set()
    raised: list[EngineDied] = []
    for call in (*calls, encoder.embed([[1]])):
        with pytest.raises(EngineDied, match="no more") as caught:
            await call
        raised.append(caught.value)
    assert isinstance(encoder.failure, EngineDied)
    assert len({id(error) for error in (encoder.failure, *raised)}) == 5, "each has a traceback of its own"
    assert {error.__cause__ for error in raised} == {network.error}


async def test_kill_makes_waiting_callers_raise_at_once(encoder: Encoder, network: Network) -> None:
    network.go.clear()
    call = asyncio.ensure_future(encoder.embed([[1]]))
    await until(lambda: network.batches)
    encoder.kill()
    with pytest.raises(EngineDied):
        await call


async def test_an_input_that_is_too_long_is_refused_naming_both_lengths(encoder: Encoder) -> None:
    with pytest.raises(ContextLengthExceeded, match=r"33 tokens.* 32"):
        await encoder.embed([[1] * 33])


async def test_a_folder_without_a_model_fails_to_start(tmp_path: Path) -> None:
    with pytest.raises(EngineStartFailed, match=r"config\.json"):
        await Encoder(tmp_path, CONFIG).start(lambda _: None)


async def test_the_nearest_of_ten_sentences_is_the_right_one(real_model_cache: Path) -> None:
    pull("all-minilm-l6-v2", real_model_cache)
    path = real_model_cache / "all-minilm-l6-v2"
    encoder = Encoder(path, ModelConfig(model="all-minilm-l6-v2"))
    info = await encoder.start(lambda _: None)
    ids = token_ids(path, [*SENTENCES, *QUESTIONS])
    vectors = await encoder.embed(ids)
    alone = await encoder.embed([ids[4]])
    await encoder.stop(1)
    assert (info.max_model_len, encoder.dimensions, vectors.shape) == (256, 384, (13, 384))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(alone[0], vectors[4], atol=1e-5)  # company and padding change nothing
    assert (vectors[10:] @ vectors[:10].T).argmax(axis=1).tolist() == list(QUESTIONS.values())

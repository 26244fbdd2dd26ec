"""From completion and embedding bodies to the orchestrator's values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from acu.http.errors import BadRequest
from acu.http.wire.completions import COMPLETION_DECODER, completion_request
from acu.http.wire.embeddings import EMBEDDING_DECODER, embedding_request
from acu.http.wire.sampling import Envelope
from agentflow.messages import Caller, CompletionRequest, EmbeddingRequest, Sampling


def completion(**fields: Any) -> CompletionRequest:
    body = COMPLETION_DECODER.decode(msgspec.json.encode({"model": "m", **fields}))
    return completion_request(body, Envelope("cmpl-1", Caller(), None, Sampling()))


def embedding(**fields: Any) -> EmbeddingRequest:
    body = EMBEDDING_DECODER.decode(msgspec.json.encode({"model": "m", **fields}))
    return embedding_request(body, request_id="embd-1", caller=Caller(), deadline_s=None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_the_four_forms_of_input_are_taken(value: Any, expected: tuple[Any, ...]) -> None:
    assert completion(prompt=value).prompts == expected
    assert embedding(input=value).inputs == expected


@pytest.mark.parametrize("value", ["", [], [""], [[]], [[1], []], ["a", 1], [1, "a"], [[1], "a"], ["a\0"]])
def test_empty_and_mixed_inputs_are_refused_by_name(value: Any) -> None:
    for ask, name in ((completion, "prompt"), (embedding, "input")):
        with pytest.raises(BadRequest) as caught:
            ask(**{name: value})
        assert (caught.value.param or "").startswith(name)


def test_too_many_inputs_are_refused() -> None:
    assert len(embedding(input=["x"] * 2048).inputs) == 2048
    with pytest.raises(BadRequest, match="2049 inputs"):
        embedding(input=["x"] * 2049)


def test_a_completion_is_sixteen_tokens_unless_said_otherwise() -> None:
    assert completion(prompt="a").sampling.max_tokens == 16
    assert completion(prompt="a", max_tokens=5).sampling.max_tokens == 5


def test_what_a_completion_leaves_open_the_model_decides() -> None:
    body = COMPLETION_DECODER.decode(b'{"model": "m", "prompt": "a", "top_p": 1}')
    sampling = completion_request(
        body, Envelope("cmpl-1", Caller(), None, Sampling(temperature=0.6, top_p=0.9))
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.6, 1.0, 16)


def test_logprobs_are_a_number() -> None:
    assert completion(prompt="a", logprobs=3).sampling.logprobs == 3
    assert completion(prompt="a", logprobs=0).sampling.logprobs == 0


def test_echo_and_n_arrive() -> None:
    request = completion(prompt="a", echo=True, n=2, best_of=2)
    assert request.echo
    assert request.n == 2


@pytest.mark.parametrize(("field", "value"), [("best_of", 3), ("suffix", "z")])
def test_what_cannot_be_served_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        completion(prompt="a", **{field: value})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)


def test_dimensions_and_priority_of_an_embedding_arrive() -> None:
    request = embedding(input="a", dimensions=8, priority=3, user="u", encoding_format="base64")
    assert (request.dimensions, request.priority) == (8, 3)

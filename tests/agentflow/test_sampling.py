"""Which of several sources says what a request gets that leaves its sampling open."""

from __future__ import annotations

import msgspec
import pytest

from acu.http.wire.sampling import GenerationBody
from agentflow.config import SamplingConfig
from agentflow.messages import Sampling
from agentflow.sampling import FIELDS, differing, merged, settled


def test_the_first_source_that_speaks_of_a_field_wins_field_by_field() -> None:
    operator = SamplingConfig(temperature=0.5)
    model = SamplingConfig(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)
    assert settled(operator, model) == Sampling(temperature=0.5, top_p=0.8, top_k=20, repetition_penalty=1.05)
    assert merged(operator, model) == SamplingConfig(temperature=0.5, top_p=0.8, top_k=20, repetition_penalty=1.05)


def test_zero_is_said_and_is_not_nothing() -> None:
    assert settled(SamplingConfig(temperature=0, min_p=0), SamplingConfig(temperature=0.7, min_p=0.1)) == Sampling(
        temperature=0, min_p=0
    )


def test_nobody_speaking_leaves_openais_defaults() -> None:
    assert settled() == settled(SamplingConfig()) == Sampling()


@pytest.mark.parametrize("everything", [0, -1])
def test_both_words_for_all_tokens_are_one(everything: int) -> None:
    assert settled(SamplingConfig(top_k=everything), SamplingConfig(top_k=50)) == Sampling()


def test_what_differs_from_openai_is_told_and_nothing_else() -> None:
    assert differing(Sampling()) == {}
    assert differing(Sampling(temperature=0.2, top_p=0.9, max_tokens=5, stop=("x",))) == {
        "temperature": 0.2,
        "top_p": 0.9,
    }


def test_a_default_may_be_whatever_a_request_may_ask_for_and_no_more() -> None:
    def ranges(kind: type) -> dict[str, object]:
        properties = msgspec.json.schema_components([kind])[1][kind.__name__]["properties"]
        return {name: properties[name]["anyOf"] for name in FIELDS}

    assert ranges(SamplingConfig) == ranges(GenerationBody)

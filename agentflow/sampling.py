"""Default sampling: what a request that leaves it open gets. Pure.

Several sources have something to say (the operator, the model's own files, the catalogue), each about some of the fields.
The first that says something about a field wins; what nobody speaks of is OpenAI's default, which `Sampling` has.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from agentflow.config import SamplingConfig
from agentflow.messages import Sampling

FIELDS = SamplingConfig.__struct_fields__


def settled(*sources: SamplingConfig) -> Sampling:
    """The defaults that `sources` make, the most important of them first."""
    return overlaid(merged(*sources), Sampling())


def overlaid(source: SamplingConfig, on: Sampling) -> Sampling:
    """`on`, with what `source` says over it."""
    wanted = given(source)
    if "top_k" in wanted:
        wanted["top_k"] = plain_top_k(wanted["top_k"])
    return replace(on, **wanted)


def plain_top_k(given: int) -> int:
    """`given` as `Sampling` has it: -1 is vLLM's other word for all tokens, which is 0."""
    return max(0, given)


def merged(*sources: SamplingConfig) -> SamplingConfig:
    """One source that says what all of them say, the most important of them first."""
    found: dict[str, Any] = {}
    for source in reversed(sources):
        found |= given(source)
    return SamplingConfig(**found)


def given(source: SamplingConfig) -> dict[str, Any]:
    """The fields that it says something about."""
    return {name: value for name, value in msgspec.structs.asdict(source).items() if value is not None}


def differing(sampling: Sampling) -> dict[str, float]:
    """The fields, of those that a model may have defaults for, in which `sampling` is not OpenAI's default."""
    plain = Sampling()
    return {name: value for name in FIELDS if (value := getattr(sampling, name)) != getattr(plain, name)}

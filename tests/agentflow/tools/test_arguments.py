"""Arguments as models write them."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.tools.arguments import MAX_DEPTH, MAX_LENGTH, parsed, places_of_handles
from agentflow.tools.errors import InvalidArguments


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ('{"a": [1, null, "x"]}', {"a": [1, None, "x"]}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('""', {}),
    ],
)
def test_json_text_becomes_an_object(text: str, values: dict[str, Any]) -> None:
    assert parsed(text) == values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no JSON"),
        ('{"a": 1', "no JSON"),
        ("{'a': 1}", "no JSON"),
        ('"text"', "no JSON"),
        ("[1]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ('"[1]"', "must be a JSON object"),
        ('{"a": NaN}', "no JSON"),
        ('{"a": 1e999}', "no JSON"),
        ('{"a": "\ud800"}', "no JSON"),
        ('{"a":' * 100_00, "nest more than"),
        ("x" * (MAX_LENGTH + 1), "Give long content as a handle"),
    ],
)
def test_what_is_no_object_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArguments, match=reason):
        parsed(text)


def test_handles_are_found_at_any_depth_and_only_whole() -> None:
    values = {"a": "h_0123456789ab", "b": [{"c": "h_abcdef012345"}], "d": "see h_0123456789ab", "e": "h_0123456789AB"}
    found = sorted(around[key] for around, key in places_of_handles(values))
    assert found == ["h_0123456789ab", "h_abcdef012345"]


def test_what_nests_too_deep_is_refused() -> None:
    with pytest.raises(InvalidArguments, match=f"more than {MAX_DEPTH} deep"):
        list(places_of_handles(parsed('{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}")))

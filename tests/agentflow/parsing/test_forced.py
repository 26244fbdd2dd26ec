"""Every case is parsed whole, a character at a time and cut at each point; and the schemas behind these answers."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.messages import Tool
from agentflow.parsing.events import ParserEvent
from agentflow.parsing.forced import ListParser, named_schema, required_schema
from tests.agentflow.parsing.cases import FORCED, call, named, parsed


@pytest.mark.parametrize("case", FORCED)
def test_the_text_is_understood_whole_and_cut_anywhere(case: str) -> None:
    make, text, expected = FORCED[case]
    assert parsed(make(), text) == expected
    for cut in range(len(text) + 1):
        assert parsed(make(), [text[:cut], text[cut:]]) == expected, f"cut at {cut}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(calls=st.lists(st.tuples(st.text(min_size=1, max_size=9), JSON), min_size=1, max_size=3), size=st.integers(1, 9))
def test_whatever_is_called_comes_out_as_it_was_written(calls: list[tuple[str, object]], size: int) -> None:
    expected: list[ParserEvent] = []
    for index, (name, value) in enumerate(calls):
        expected += call(index, name, json.dumps(value))
    text = json.dumps([{"name": name, "arguments": value} for name, value in calls])
    assert parsed(ListParser(), [text[at : at + size] for at in range(0, len(text), size)]) == expected


def test_a_value_nested_a_hundred_thousand_deep_is_passed_on() -> None:
    arguments = "[" * 100_000 + "]" * 100_000
    assert parsed(named(), [arguments]) == call(0, "f", arguments)


TREE = Tool(
    "plant",
    parameters={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "tree": {"$ref": "#/$defs/Tree"},
            "again": {"$ref": "#"},
            "$ref": {"type": "string"},
            "default": {"$ref": "#/$defs/Leaf"},
        },
        "required": ["tree"],
        "additionalProperties": False,
        "default": {"$ref": "#/data, not a reference"},
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {"left": {"$ref": "#/$defs/Tree"}, "leaf": {"$ref": "#/$defs/Leaf"}},
                "additionalProperties": False,
            },
            "Leaf": {"type": "integer"},
        },
    },
)
PLAIN = Tool("plain")


@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        ([{"name": "plant", "arguments": {"tree": {"left": {"leaf": 1}}}}], True),
        ([{"name": "plant", "arguments": {"tree": {"left": {"leaf": "x"}}}}], False),
        ([{"name": "plant", "arguments": {"tree": {}, "again": {"tree": {}}, "$ref": "x", "default": 2}}], True),
        ([{"name": "plant", "arguments": {"tree": {}, "again": {}}}], False),
        ([{"name": "plain", "arguments": {}}, {"name": "plain", "arguments": {}}], True),
        ([{"name": "plain", "arguments": {"x": 1}}], False),
        ([{"name": "other", "arguments": {}}], False),
        ([], False),
    ],
)
def test_the_schema_of_required_calls_keeps_each_tools_own_references(answer: list[object], valid: bool) -> None:
    schema = required_schema([TREE, PLAIN], parallel=True)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(answer) is valid


def test_a_single_call_is_an_object() -> None:
    schema = required_schema([TREE, PLAIN], parallel=False)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"name": "plant", "arguments": {"tree": {}}})
    assert not validator.is_valid([{"name": "plain", "arguments": {}}])


def test_building_a_schema_leaves_the_tool_as_it_was() -> None:
    before = json.dumps(TREE.parameters)
    required_schema([TREE], parallel=True)
    assert json.dumps(TREE.parameters) == before


def test_a_tool_without_parameters_takes_none() -> None:
    validator = jsonschema.Draft202012Validator(named_schema(PLAIN))
    assert validator.is_valid({})
    assert not validator.is_valid({"a": 1})

from __future__ import annotations

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agentflow.engine.sample import Unsatisfiable, regex_sample, schema_sample

TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/t"}, "value": {"type": "null"}},
    "required": ["value"],
}

SAMPLES: list[tuple[Any, Any]] = [
    (True, None),
    ({}, None),
    ({"type": "object"}, {}),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 0}),
    ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": {"type": "string"}}, {"b": ""}),
    ({"type": "array", "items": {"type": "string"}}, []),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2.0}, [False, False]),
    ({"prefixItems": [{"const": 1}, {"const": "b"}], "items": {"type": "null"}, "minItems": 3}, [1, "b", None]),
    ({"type": "string", "minLength": 3}, "aaa"),
    ({"pattern": "^[A-Z]{2}-[0-9]+$"}, "AA-0"),
    ({"type": "string", "format": "date"}, "2001-02-03"),
    ({"type": "integer", "minimum": 3}, 3),
    ({"type": "integer", "exclusiveMinimum": 3}, 4),
    ({"type": "integer", "maximum": -2}, -2),
    ({"type": "integer", "exclusiveMaximum": 0, "minimum": -9}, -1),
    ({"type": "integer", "minimum": 1.5}, 2),
    ({"type": "number", "minimum": 1.5}, 1.5),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 0.5),
    ({"type": "integer", "multipleOf": 7, "minimum": 8}, 14),
    ({"type": "boolean"}, False),
    ({"type": ["string", "null"]}, ""),
    ({"enum": ["b", "a"]}, "b"),
    ({"const": {"x": [1]}}, {"x": [1]}),
    ({"anyOf": [False, {"type": "integer", "minimum": 5, "maximum": 4}, {"type": "string"}]}, ""),
    ({"type": "object", "required": ["a"], "oneOf": [{"properties": {"a": {"const": 1}}}]}, {"a": 1}),
    ({"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "string"}}}, {"type": "object"}]}, {"a": ""}),
    ({"$ref": "#/$defs/t", "$defs": {"t": TREE}}, {"value": None}),
]


@pytest.mark.parametrize(("schema", "sample"), SAMPLES)
def test_the_sample_is_small_and_valid(schema: Any, sample: Any) -> None:
    assert schema_sample(schema) == sample
    assert Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(sample)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#"},
        {"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"t": {"$ref": "#/$defs/t"}}, "required": ["t"]}}},
        {"$ref": "https://example.com"},
        {"type": "array", "minItems": 10**9},
        {"type": "array", "minItems": 100, "items": {"type": "array", "minItems": 100, "items": {"type": "array"}}},
        {"type": "string", "minLength": 10**9},
        {"type": "string", "pattern": "a{1000}{1000}("},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "number", "minimum": 10**400, "multipleOf": 3.5},
        {"anyOf": [False]},
        {"type": "string", "pattern": r"\ud800"},
    ],
)
def test_a_schema_without_a_small_instance_is_refused(schema: Any) -> None:
    with pytest.raises(Unsatisfiable):
        schema_sample(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 4_999, "items": {"type": "string", "minLength": 1_000}},
        {"type": "array", "minItems": 4_999, "items": {"pattern": "x{1000}"}},
        {"type": "array", "minItems": 4_999, "items": {"const": "x" * 1_000}},
        {"type": "array", "minItems": 2_000, "items": {"required": ["x" * 1_000]}},
        {
            "type": "integer",
            "minimum": 2,
            "anyOf": [{"maximum": 1}] * 900,
            "allOf": [{}] * 900,
            "properties": {str(n): {} for n in range(90)},
        },
    ],
    ids=["texts", "matches", "values", "names", "merging"],
)
def test_a_schema_of_much_work_or_output_is_too_large(schema: Any) -> None:
    with pytest.raises(Unsatisfiable, match="too large"):
        schema_sample(schema)


def test_an_expression_of_many_items_is_read_once() -> None:
    schema = {"type": "array", "minItems": 4_900, "items": {"pattern": "b?" * 10_000 + "a"}}
    assert schema_sample(schema) == ["a"] * 4_900


@pytest.mark.parametrize(
    ("pattern", "sample"),
    [
        (r"\d{4}-\d{2}", "0000-00"),
        ("(yes|no)", "yes"),
        ("a*b+c?", "b"),
        ("^x$", "x"),
        ("[^a]", "b"),
        (r"[^\w]", " "),
        (r"[^\w\d\s]", "!"),
        (r"[^\W]", "a"),
        ("[^a-z ]", "!"),
        ("[^!-~ \u2000-\U0010ffff]", "\xa1"),
        ("[^日]", "a"),
        (r"\S\W\D", "a~~"),
        ("[c-f]x", "cx"),
        (".{3}", "aaa"),
        ("(?:ab){2}|c", "abab"),
        (r"[\[\]]", "["),
        ("[[x]", "["),
        ("日+", "日"),
        ("", ""),
    ],
)
def test_the_shortest_match_of_an_expression_matches_it(pattern: str, sample: str) -> None:
    assert regex_sample(pattern) == sample
    assert re.fullmatch(pattern.replace("[[", r"[\["), sample)


@pytest.mark.parametrize(
    "pattern",
    ["(", "a(?!b)", r"(a)\1", "(a{1000}){1000}", "(" * 5_000 + ")" * 5_000, r"[^\w\W]", r"\ud800", r"[\ud800-\udfff]"],
)
def test_an_expression_without_a_short_match_is_refused(pattern: str) -> None:
    with pytest.raises(Unsatisfiable):
        regex_sample(pattern)

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.config import SchedulerConfig
from agentflow.errors import InvalidGrammar
from agentflow.grammar import GrammarLimits, check
from agentflow.messages import Structured

LIMITS = GrammarLimits()


def nested(levels: int, key: str = "items") -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {key: schema}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "null"}}}


HONEST_SCHEMAS: dict[str, Any] = {
    "empty": {},
    "a person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 80, "pattern": "^[A-Z][a-z]+$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 1000},
            "kind": {"enum": ["a", "b", None, 3]},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "a tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value"],
            }
        },
    },
    "itself within": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
    "an escaped reference": {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": True}},
    "an encoded reference": {"$ref": "#/%24defs/A%5BB%5D", "$defs": {"A[B]": True}},
    "an id that is none": {"properties": {"a": {"id": "a"}, "id": {"type": "string"}}},
    "definitions of an older draft": {"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}},
    "a property named $ref": {"type": "object", "properties": {"$ref": {"type": "string"}}},
    "as deep as allowed": nested(LIMITS.max_depth),
    "a few references twice": doubling(8),
    "composition": {"allOf": [{"type": "object"}, {"if": {"required": ["a"]}, "then": {"required": ["b"]}}]},
    "a name of its own": {"$id": "https://example.com/a", "$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}},
    "a reference into another property": {"properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}}},
    "a reference into a list": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/anyOf/0"}}]},
    "a constant that looks like a reference": {"const": {"$ref": "#/x"}},
    "patternProperties": {"type": "object", "patternProperties": {r"^x-\w{1,20}$": {"type": "string"}}},
}

UNSEEN: list[dict[str, Any]] = [
    {"type": "array", "minItems": 1_000_000_000},
    {"pattern": "(a{9999}){9999}"},
    {"pattern": "(?=a)"},
    {"enum": list(range(9_000))},
    {"anyOf": [{"type": "null"}] * 3_000},
    {"properties": {"a": {"$ref": "https://example.com/x"}}},
    {"properties": {"a": {"$dynamicRef": "#a"}}},
    {"anyOf": [{"$ref": "#/x"}]},
    {"$ref": 5},
    {"enum": 5},
    {"allOf": 5},
    {"type": "object", "properties": 5, "required": 7},
    {"type": "array", "minItems": "a"},
    {"type": "number", "minimum": "a"},
    {"type": "string", "format": []},
    {"properties": {"a": {"$ref": "#/x/d/0"}}, "d": [{"anyOf": [{"$ref": "#/x/d/1"}] * 2}, False]},
]

HOSTILE_SCHEMAS: dict[str, tuple[Any, str]] = {
    "a list": ([], "must be an object, not a list"),
    "a text": ("{}", "must be an object, not a text"),
    "null": (None, "not null"),
    "one level too deep": (nested(LIMITS.max_depth + 1), "nesting of schemas: 33, and at most 32"),
    "a hundred thousand deep": (nested(100_000), "nesting of JSON"),
    "a hundred thousand deep in a value": ({"const": nested(100_000)}, "nesting of JSON"),
    "very many nodes": ({"enum": list(range(50_000))}, "nodes: "),
    "too many entries": ({"enum": list(range(3_000))}, "enum entries: 3000, and at most 2000"),
    "entries in many enums": (
        {"properties": {str(n): {"enum": list(range(500))} for n in range(5)}},
        "enum entries: 2500",
    ),
    "too many properties": ({"properties": {str(n): {} for n in range(1_500)}}, "properties and definitions: 1500"),
    "too many alternatives": ({"anyOf": [{"type": "null"}] * 1_001}, "alternatives (anyOf, oneOf): 1001"),
    "too many bytes": ({"description": "x" * 70_000}, "bytes: 7"),
    "half a surrogate": ({"const": "\ud800"}, "is not valid Unicode"),
    "an unknown type": ({"type": "objekt"}, "no valid JSON schema: #/type must be one or several of"),
    "properties that are a list": ({"properties": []}, "no valid JSON schema: #/properties"),
    "a schema that is a number": ({"properties": {"a": 5}}, "no valid JSON schema: #/properties/a"),
    "a negative length": ({"minLength": -1}, "no valid JSON schema: #/minLength"),
    "a huge length": ({"maxLength": 10**12}, "maxLength: 1000000000000, and at most 1000000"),
    "a huge number of items": ({"items": {"minItems": 2_000_000}}, "minItems: 2000000"),
    "more at least than at most": ({"minItems": 3, "maxItems": 2}, "minItems is 3, and maxItems only 2"),
    "a reference to the network": ({"$ref": "https://example.com/schema"}, "is not local"),
    "a reference to a file": ({"$ref": "other.json#/a"}, "is not local"),
    "a reference to an anchor": ({"$ref": "#a", "$defs": {"x": {"$anchor": "a"}}}, "leads nowhere"),
    "a reference into nothing": ({"$ref": "#/$defs/a"}, "leads nowhere"),
    "a reference to a number": ({"$ref": "#/minLength", "minLength": 1}, "leads to a number"),
    "a reference to itself": ({"$ref": "#"}, "leads back to itself"),
    "references in a ring": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "leads back to itself",
    ),
    "a ring through allOf": (
        {"$defs": {"a": {"allOf": [{"type": "object"}, {"anyOf": [{"$ref": "#/$defs/a"}]}]}}},
        "leads back to itself",
    ),
    "references that double": (doubling(20), "size with references written out"),
    "a dynamic reference": ({"$dynamicRef": "#a"}, "$dynamicRef is not supported"),
    "a resource within": (
        {"properties": {"a": {"$id": "https://example.com/a", "$ref": "#/$defs/b"}}, "$defs": {"b": {}}},
        "an $id (or draft 4's id) within the schema is not supported",
    ),
    "a resource of draft 4 within": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "properties": {"a": {"id": "https://example.com/a", "allOf": [{"$ref": "#/definitions/b"}]}},
            "definitions": {"b": {}},
        },
        "an $id (or draft 4's id) within the schema is not supported",
    ),
    "a reference to itself, encoded": (
        {"$defs": {"a%62": {}, "ab": {"$ref": "#/$defs/a%62"}}},
        "leads back to itself",
    ),
    **{f"a place for no schema: {x}"[:60]: ({"$ref": "#/x", "x": x}, "leads to a place for no schema") for x in UNSEEN},
    "a reference into a constant": ({"$ref": "#/const", "const": {"type": "null"}}, "leads to a place for no schema"),
    "a reference to all definitions": ({"$ref": "#/$defs", "$defs": {}}, "leads to a place for no schema"),
    "a reference through a place for no schema": (
        {"properties": {"a": {"$ref": "#/x/properties/a"}}, "x": {"properties": {"a": {"minItems": 10**9}}}},
        "leads to a place for no schema",
    ),
    "a pattern that is wrong": ({"pattern": "a("}, "pattern 'a(' is wrong at 1: missing ), unterminated subpattern"),
    "a pattern that multiplies": ({"pattern": "((a{100}){100}){100}"}, "1000000, and at most 20000"),
    "patterns that add up": (
        {"properties": {str(n): {"pattern": "a{15000}"} for n in range(2)}},
        "characters of all patterns, with every repetition written out: 30000",
    ),
    "a pattern as a name": ({"patternProperties": {"(?=a)": {}}}, "looks around"),
}

HONEST_EXPRESSIONS = [
    r"\d{4}-\d{2}-\d{2}",
    r"(yes|no|maybe)",
    r"[^\[\]]*",
    "[[]",
    "[]abc]",
    "[^]]",
    "[a&&b||c--d~~e]",
    r"(?:(?:a+)+)+",
    "(a*)*(b|a+)*" + "a?" * 5_000,  # it would backtrack for ever, if anybody ran it
    "a{1,1000}",
    r"^[\w.]+@[\w.]+$",
    "日本|[ぁ-ん]+",
    "(" * 32 + "a" + ")" * 32,
]

HOSTILE_EXPRESSIONS = {
    "(a{1000}){1000}": "1000000, and at most 20000",
    "a{0,30000}": "30000, and at most 20000",
    "(a{200}|b{200}){200}": "80000, and at most 20000",
    "((((a*)*)*)*)*": "quantifiers within each other: 5",
    "(a|" * 33 + "b" + ")" * 33: "nests groups more than 32 deep (at 96)",
    "(" * 60_000: "nests groups more than 32 deep",
    "|".join(["ab", "cd"] * 600): "alternatives: 1200",
    "a(?=b)": "looks around",
    "(?<!a)b": "looks around",
    r"(a)\1": "refers back",
    "(?P<x>a)(?P=x)": "refers back",
    "a(": "is wrong at 1: missing ), unterminated subpattern",
    "a)": "is wrong at 1: unbalanced parenthesis",
    "*a": "is wrong at 0: nothing to repeat",
    "[[[z-a]": "is wrong at 3: bad character range z-a",
    "a{5,2}": "is wrong at",
    r"\p{L}": "is wrong at 0: bad escape",
    "a{99999999999}": "repeats too often",
    "a{" + "9" * 5_000 + "}": "cannot be used: Exceeds the limit",
    "(?a)(?u)b": "cannot be used: ASCII and UNICODE flags are incompatible",
    "a" * 70_000: "bytes: 70000, and at most 65536",
    "": "not empty",
}

HONEST_GRAMMARS = [
    'root ::= "yes" | "no"',
    'root ::= item{1,50}\nitem ::= [a-z(]+ "|" # ((((',
    'root ::= "{" [^"\\]]* \'[\' "a" # don\'t ((((',
    "root ::= [[(] /* /\\/(((/ */ '\\'(' // \"((((",
    'start: sum\nsum: product ("+" product)*\nproduct: /[0-9]+/ ~ 1..5\n',
]

HOSTILE_GRAMMARS = {
    "root ::= " + "(" * 50 + '"a"' + ")" * 50: "nesting of brackets: 50, and at most 32",
    'root ::= (("a"{1000}){1000})': "repetitions, multiplied: 1000000",
    'root ::= "a"{' + "9" * 50_000 + "}": "repetitions, multiplied: 1000000000",
    'start: "a" ~ 1..99999': "repetitions, multiplied: 99999",
    "root ::= a" + "{999999999}" * 5_000: "repetitions, multiplied: 1000000000",
    'root ::= "' + "(" * 33: "nesting of brackets: 33, and at most 32",
    'root ::= "\\"' + "(" * 33 + "\n": "nesting of brackets: 33, and at most 32",
    "root ::= " + "|".join(["a"] * 1_500): "alternatives: 1499",
    "x" * 70_000: "bytes: 70000",
    "": "not empty",
}


def refusal(kind: Any, value: Any, limits: GrammarLimits = LIMITS) -> str:
    with pytest.raises(InvalidGrammar) as caught:
        check(Structured(kind, value, "response_format.json_schema.schema"), limits)
    assert caught.value.param == "response_format.json_schema.schema"
    return str(caught.value)


@pytest.mark.parametrize("case", HONEST_SCHEMAS)
def test_an_honest_schema_passes(case: str) -> None:
    check(Structured("json", HONEST_SCHEMAS[case]), LIMITS)


@pytest.mark.parametrize("case", HOSTILE_SCHEMAS)
def test_a_hostile_schema_is_refused_with_what_is_wrong(case: str) -> None:
    schema, reason = HOSTILE_SCHEMAS[case]
    assert reason in refusal("json", schema)


@pytest.mark.parametrize("pattern", HONEST_EXPRESSIONS)
def test_an_honest_expression_passes(pattern: str) -> None:
    check(Structured("regex", pattern), LIMITS)


@pytest.mark.parametrize("pattern", HOSTILE_EXPRESSIONS, ids=lambda pattern: pattern[:20])
def test_a_hostile_expression_is_refused_with_what_is_wrong(pattern: str) -> None:
    assert HOSTILE_EXPRESSIONS[pattern] in refusal("regex", pattern)


@pytest.mark.parametrize("grammar", HONEST_GRAMMARS)
def test_an_honest_grammar_passes(grammar: str) -> None:
    check(Structured("grammar", grammar), LIMITS)


@pytest.mark.parametrize("grammar", HOSTILE_GRAMMARS, ids=lambda grammar: grammar[:20])
def test_a_hostile_grammar_is_refused_with_what_is_wrong(grammar: str) -> None:
    assert HOSTILE_GRAMMARS[grammar] in refusal("grammar", grammar)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ([], "not empty"),
        ("yes", "must be a list"),
        (["a", ""], "choice 1 must be a text that is not empty"),
        (["a", 5], "choice 1 must be a text"),
        (["a"] * 3_000, "choices: 3000, and at most 2000"),
        (["a" * 40_000] * 2, "bytes: 80000"),
        (["\ud800"], "is not valid Unicode"),
    ],
)
def test_a_choice_is_a_short_list_of_texts(choice: Any, reason: str) -> None:
    assert reason in refusal("choice", choice)


def test_a_choice_and_any_object_pass() -> None:
    check(Structured("choice", ["yes", "no"]), LIMITS)
    check(Structured("json_object"), LIMITS)


def test_the_configuration_sets_bytes_and_depth() -> None:
    limits = GrammarLimits.of(SchedulerConfig(grammar_max_bytes=256, grammar_max_depth=4))
    assert "bytes: 300, and at most 256" in refusal("regex", "a" * 300, limits)
    assert "nesting of schemas: 5, and at most 4" in refusal("json", nested(5), limits)


def test_the_deepest_configuration_does_not_exhaust_the_stack() -> None:
    limits = GrammarLimits(max_depth=256)
    check(Structured("json", nested(250)), limits)
    check(Structured("regex", "(" * 150 + "a" + ")" * 150), limits)


SCHEMA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "$ref", "$defs", "items", "enum", "pattern", "anyOf", "minItems", "a"]
            ),
            inner | st.sampled_from(["object", "#", "#/$defs/a", "^a", "("]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["json", "regex", "grammar", "choice"]), SCHEMA | st.text())
def test_any_value_passes_or_is_refused_and_nothing_else_is_raised(kind: Any, value: Any) -> None:
    with suppress(InvalidGrammar):
        check(Structured(kind, value), LIMITS)

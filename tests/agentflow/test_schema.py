from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker, SchemaError

from agentflow.schema import flaw, parts, rebased, resolve

KEYWORDS = [
    *(
        "type",
        "enum",
        "const",
        "multipleOf",
        "minimum",
        "exclusiveMaximum",
        "minLength",
        "maxItems",
        "minContains",
        "pattern",
    ),
    *("uniqueItems", "required", "dependentRequired", "properties", "patternProperties", "$defs", "dependentSchemas"),
    *("anyOf", "prefixItems", "items", "additionalProperties", "not", "propertyNames", "unevaluatedItems", "title"),
    *("format", "examples", "readOnly", "$comment", "default", "unknown"),
]
VALUE = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 1.0, 0.5, -0.5, "string", "object", "x", "", "^a$"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=3)
        | st.just(["a", "a"])
        | st.just(["string", "null"])
    ),
    max_leaves=8,
)


def valid_by_the_metaschema(schema: Any) -> bool:
    try:
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(formats=()))
    except SchemaError:
        return False
    return True


@settings(max_examples=600, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUE, max_size=3) | VALUE)
def test_a_flaw_is_found_exactly_where_the_metaschema_finds_one(schema: Any) -> None:
    assert (flaw(schema) is None) == valid_by_the_metaschema(schema)


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize(
    "value",
    [None, True, 0, 1, -1, 2.0, 0.5, "x", "string", [], ["a"], ["a", "a"], [{}], {}, {"a": {}}, {"a": ["b"]}, {"a": 1}],
)
def test_each_keyword_takes_the_values_that_the_metaschema_lets_it_take(keyword: str, value: Any) -> None:
    assert (flaw({keyword: value}) is None) == valid_by_the_metaschema({keyword: value})


def test_a_flaw_is_named_with_its_place() -> None:
    schema = {"properties": {"a": {"anyOf": [True, {"minLength": -1}]}}}
    assert flaw(schema) == "#/properties/a/anyOf/1/minLength must be a whole number, 0 or more"


def test_the_place_of_a_flaw_is_written_for_the_flaw_alone() -> None:
    schema: Any = {"properties": {"x" * 40_000: {"anyOf": [{}] * 8_000 + [5]}}}
    tracemalloc.start()
    try:
        found = flaw(schema)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == f"#/properties/{'x' * 40_000}/anyOf/8000 must be a schema (an object or a boolean)"
    assert most < 20_000_000


def test_parts_are_schemas_and_not_the_data_beside_them() -> None:
    schema = {"properties": {"enum": {"type": "null"}}, "enum": [{}], "const": {"not": {}}, "not": False, "items": True}
    assert list(parts(schema)) == [("properties", "enum", {"type": "null"}), ("not", "", False), ("items", "", True)]


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", None),
        ("#/a", {"b/c~d": [1, 2]}),
        ("#/a/b~1c~0d", [1, 2]),
        ("#/a/b~1c~0d/1", 2),
        ("#/%61/b%7E1c~0d", [1, 2]),
    ],
)
def test_a_local_reference_leads_to_its_target(reference: str, target: Any) -> None:
    root = {"a": {"b/c~d": [1, 2]}}
    assert resolve(root, reference) == (root if target is None else target)


@pytest.mark.parametrize("reference", ["", "a", "#a", "#/b", "#/a/2", "#/a/-1", "#/a/x", "#/a/0/0", "http://x/#/a"])
def test_any_other_reference_leads_nowhere(reference: str) -> None:
    with pytest.raises(LookupError):
        resolve({"a": [1, 2]}, reference)


def test_a_rebased_schema_refers_to_itself_in_its_new_place() -> None:
    schema = {
        "$id": "https://example.com",
        "properties": {"a": {"$ref": "#/$defs/x"}, "$ref": {"$ref": "#"}},
        "const": {"$ref": "#/$defs/x"},
        "anyOf": [{"$ref": "other#/a"}],
    }
    assert rebased(schema, "#/$defs/tool") == {
        "properties": {"a": {"$ref": "#/$defs/tool/$defs/x"}, "$ref": {"$ref": "#/$defs/tool"}},
        "const": {"$ref": "#/$defs/x"},
        "anyOf": [{"$ref": "other#/a"}],
    }
    assert schema["properties"] == {"a": {"$ref": "#/$defs/x"}, "$ref": {"$ref": "#"}}

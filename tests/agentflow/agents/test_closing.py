"""Objects of a form have the fields that their schemas name, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.agents.closing import closed

TEXT = {"type": "string"}
ENDS = {"additionalProperties": False}


def an_object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def test_every_object_with_fields_is_closed_at_every_level_and_the_schema_itself_is_not_changed() -> None:
    inner = an_object(a=TEXT)
    schema = an_object(one=inner, many={"type": "array", "items": inner}, either={"anyOf": [inner, TEXT]})
    shut = {**inner, **ENDS}
    assert closed(schema) == {
        **an_object(one=shut, many={"type": "array", "items": shut}, either={"anyOf": [shut, TEXT]}),
        **ENDS,
    }
    assert inner == an_object(a=TEXT)
    assert closed(an_object()) == {**an_object(), **ENDS}


def test_a_field_may_be_called_as_a_keyword_is() -> None:
    found = closed(an_object(properties=an_object(enum=TEXT), default=an_object(a=TEXT)))
    assert found["properties"]["properties"] == {**an_object(enum=TEXT), **ENDS}
    assert found["properties"]["default"] == {**an_object(a=TEXT), **ENDS}
    assert "additionalProperties" not in found["properties"]


@pytest.mark.parametrize(
    "said",
    [
        {"additionalProperties": True},
        {"additionalProperties": TEXT},
        {"unevaluatedProperties": False},
        {"patternProperties": {"^x-": TEXT}},
        {"required": ["b"]},  # which only another field's coming can meet
        {"anyOf": [an_object(b=TEXT), an_object(c=TEXT)]},
        {"allOf": [an_object(b=TEXT)]},
    ],
)
def test_what_a_schema_says_of_other_fields_stays(said: dict[str, Any]) -> None:
    schema = {**an_object(a=TEXT), **said}
    assert closed(schema) == schema


def test_what_has_no_fields_stays_open() -> None:
    schema = an_object(free={"type": "object"}, never=False)
    assert closed(schema) == {**schema, **ENDS}


def test_an_object_that_is_described_in_several_places_is_not_closed_in_any() -> None:
    both = {"allOf": [an_object(a=TEXT), {"$ref": "#/$defs/b"}]}
    found = closed({**an_object(it=both), "$defs": {"b": an_object(b=TEXT)}})
    assert found == {**an_object(it=both), "$defs": {"b": an_object(b=TEXT)}, **ENDS}


def test_a_definition_is_closed_where_it_is_all_of_an_object_and_may_hold_itself() -> None:
    node = an_object(next={"$ref": "#/$defs/node"})
    for way in ({"$ref": "#/$defs/node"}, {"allOf": [{"$ref": "#/$defs/node"}], "default": {}}):
        found = closed({**an_object(it=way, lost={"$ref": "#/$defs/gone"}), "$defs": {"node": node}})
        assert found["$defs"]["node"] == {**node, **ENDS}
        assert found["properties"]["it"] == way

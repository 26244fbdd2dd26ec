"""What is wrong with arguments, in words; and what is read as it was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow.tools.errors import InvalidArguments, InvalidTool, ToolFailed
from agentflow.tools.schemacheck import ArgumentCheck
from agentflow.tools.tool import Content

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 10},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        "at": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        "exact": {"type": "boolean"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[a-z]{2}$"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
CONTENT = Content(Path("/nowhere"), 3)


@pytest.mark.parametrize(
    "values",
    [
        {"city": "Paris"},
        {"city": "Paris", "days": 3, "unit": "C", "tags": [1, 2], "at": {"lat": 1}, "exact": True, "limit": None},
        {
            "city": CONTENT,
            "days": CONTENT,
            "unit": CONTENT,
            "tags": [CONTENT, 1],
            "at": {"lat": CONTENT},
            "code": CONTENT,
        },
        {"city": CONTENT, "tags": CONTENT, "limit": CONTENT, "at": CONTENT, "exact": CONTENT},
    ],
)
def test_arguments_that_fit_pass_as_they_are(values: dict[str, Any]) -> None:
    assert ArgumentCheck("weather", WEATHER).check(values) == (values, ())


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "city (string) missing."),
        ({"city": "Paris", "cty": 1}, "no such field: 'cty' (did you mean 'city'?)."),
        ({"city": "Paris", "days": "three"}, 'days must be integer, not "three".'),
        ({"city": "Paris", "days": 99}, "days must be at most 14, not 99."),
        ({"city": "Paris", "unit": "K"}, 'unit must be one of "C", "F", not "K".'),
        ({"city": "Much too long a name"}, "city must have at most 10 characters, not"),
        ({"city": "Paris", "at": {}}, "in at: lat (number) missing."),
        ({"city": "Paris", "at": {"lat": "north"}}, 'at.lat must be number, not "north".'),
        ({"city": "Paris", "tags": [1, "b"]}, 'tags[1] must be integer, not "b".'),
        ({"city": "Paris", "tags": [1, 1]}, "tags must have no item twice, not [1, 1]."),
        ({"city": "Paris", "limit": "many"}, 'limit must be integer or null, not "many".'),
        ({"city": "Paris", "code": "DE"}, 'code must match ^[a-z]{2}$, not "DE".'),
        ({"city": None}, "city must be string, not null."),
        ({"city": "Paris", "days": CONTENT, "unit": [CONTENT]}, 'unit must be one of "C", "F", not ["content"].'),
    ],
)
def test_a_problem_names_the_field_what_is_expected_and_what_is_there(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArguments) as raised:
        ArgumentCheck("weather", WEATHER).check(values)
    assert problem in str(raised.value)
    assert 'Fields: city (string, required), days (integer), unit (one of "C", "F")' in str(raised.value)


def test_at_most_three_problems_are_told_and_the_message_stays_short() -> None:
    with pytest.raises(InvalidArguments) as raised:
        ArgumentCheck("weather", WEATHER).check({"days": 0, "unit": "x" * 9999, "tags": [0.5, "a"], "exact": "perhaps"})
    assert str(raised.value).count(";") == 3
    assert "and 3 more" in str(raised.value)
    assert len(str(raised.value)) < 700


@pytest.mark.parametrize(
    ("written", "read", "note"),
    [
        ({"days": "3"}, {"days": 3}, 'days: "3" read as 3'),
        ({"days": " 3.0 "}, {"days": 3}, 'days: " 3.0 " read as 3'),
        ({"exact": "True"}, {"exact": True}, 'exact: "True" read as true'),
        ({"tags": 7}, {"tags": [7]}, "tags: 7 read as [7]"),
        ({"tags": "[1, 2]"}, {"tags": [1, 2]}, 'tags: "[1, 2]" read as [1, 2]'),
        ({"at": '{"lat": 1.5}'}, {"at": {"lat": 1.5}}, 'at: "{\\"lat\\": 1.5}" read as {"lat": 1.5}'),
        ({"at": {"lat": "1.5"}}, {"at": {"lat": 1.5}}, 'at.lat: "1.5" read as 1.5'),
        ({"limit": "7"}, {"limit": 7}, 'limit: "7" read as 7'),
        ({"unit": None}, {}, "unit: null, left out"),
    ],
)
def test_what_is_harmless_is_read_as_it_was_meant(written: dict[str, Any], read: dict[str, Any], note: str) -> None:
    given = {"city": "Paris", **written}
    assert ArgumentCheck("weather", WEATHER).check(given) == ({"city": "Paris", **read}, (note,))
    assert given == {"city": "Paris", **written}


def test_a_number_is_read_as_a_text_where_a_text_is_asked_for() -> None:
    assert ArgumentCheck("weather", WEATHER).check({"city": 12}) == ({"city": "12"}, ('city: 12 read as "12"',))


def test_one_value_becomes_a_list_of_what_it_was_meant_to_be() -> None:
    values, notes = ArgumentCheck("weather", WEATHER).check({"city": "Paris", "tags": "3"})
    assert values == {"city": "Paris", "tags": [3]}
    assert len(notes) == 2


@pytest.mark.parametrize("days", ["3.5", "3 days", "0x3", "", "1e400", "9" * 40, "٣", True, [3]])
def test_what_may_be_meant_otherwise_is_not_coerced(days: object) -> None:
    with pytest.raises(InvalidArguments, match="days must be integer"):
        ArgumentCheck("weather", WEATHER).check({"city": "Paris", "days": days})


def test_nothing_is_coerced_if_the_whole_would_not_pass() -> None:
    with pytest.raises(InvalidArguments, match=r'days must be integer, not "3"'):
        ArgumentCheck("weather", WEATHER).check({"days": "3"})


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "string"}, "none of an object"),
        ({"properties": {"a": {"type": "text"}}}, "#/properties/a/type must be"),
        ({"properties": []}, "#/properties must be an object of schemas"),
        ({"required": "a"}, "#/required must be"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "is not fetched"),
        ({"properties": {"a": {"$ref": "a.json"}}}, "is not fetched"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "which it does not have"),
        ({"$ref": "#"}, "in a circle"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}}, "in a circle"),
        ({"patternProperties": {"(a+)+$": {}}}, "could take too long"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"minimum": "1"}}},
            r"properties\.a\.minimum",
        ),
    ],
)
def test_what_is_no_schema_is_refused_with_the_tools_name(parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTool, match=f"tool weather .*{reason}"):
        ArgumentCheck("weather", parameters)


def test_a_reference_that_leads_nowhere_is_told_at_the_call_where_it_could_not_be_before() -> None:
    check = ArgumentCheck("weather", {"properties": {"a": {"$ref": "#anchor"}}})
    with pytest.raises(ToolFailed, match="cannot be followed"):
        check.check({"a": 1})


def test_references_within_the_schema_are_followed_and_told() -> None:
    parameters = {"properties": {"unit": {"$ref": "#/$defs/unit"}}, "$defs": {"unit": {"enum": ["C", "F"]}}}
    with pytest.raises(InvalidArguments, match=r'unit must be one of "C", "F".* Fields: unit \(one of "C", "F"\)'):
        ArgumentCheck("weather", parameters).check({"unit": "K"})


def test_a_schema_with_an_address_of_its_own_is_not_looked_for_there() -> None:
    parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/weather.json",
        "properties": {"unit": {"$ref": "#/$defs/unit"}},
        "$defs": {"unit": {"enum": ["C", "F"]}},
    }
    assert ArgumentCheck("weather", parameters).check({"unit": "C"}) == ({"unit": "C"}, ())


def test_older_drafts_are_read_as_they_were_meant() -> None:
    parameters = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"pair": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}},
    }
    check = ArgumentCheck("weather", parameters)
    assert check.check({"pair": [1, "a"]}) == ({"pair": [1, "a"]}, ())
    with pytest.raises(InvalidArguments, match=r"pair\[1\] must be string"):
        check.check({"pair": [1, []]})


def test_a_pattern_that_could_take_for_ever_is_left_to_the_tool() -> None:
    check = ArgumentCheck("weather", {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}})
    values = {"a": "a" * 60 + "!"}
    assert check.check(values) == (values, ())


def test_what_would_cost_too_much_to_check_is_refused() -> None:
    check = ArgumentCheck("weather", WEATHER)
    with pytest.raises(InvalidArguments, match="too many values to be checked"):
        check.check({"city": "Paris", "tags": list(range(30_000))})
    doubling: dict[str, Any] = {"anyOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["x"]}] * 2}
    check = ArgumentCheck("weather", {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": doubling}})
    deep: dict[str, Any] = {}
    for _ in range(30):
        deep = {"a": deep}
    with pytest.raises(InvalidArguments, match="too many values to be checked"):
        check.check(deep)


def test_items_of_a_long_list_must_differ_too() -> None:
    check = ArgumentCheck("weather", WEATHER)
    check.check({"city": "Paris", "tags": list(range(500))})
    with pytest.raises(InvalidArguments, match="tags must have no item twice, not a list of 501"):
        check.check({"city": "Paris", "tags": [*range(500), 7]})

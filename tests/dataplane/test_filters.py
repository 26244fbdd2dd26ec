"""What a filter means, and which filters and attributes are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dataplane.errors import InvalidFilter, InvalidInput
from dataplane.filters import Attribute, Comparison, Compound, check_attributes, matches, parse_filter

ROW: dict[str, Attribute] = {"lang": "en", "year": 2020, "score": 0.5, "draft": True, "text1": "1"}


def comparison(kind: str, key: str, value: object) -> dict[str, object]:
    return {"type": kind, "key": key, "value": value}


def test_a_filter_becomes_frozen_values() -> None:
    parsed = parse_filter(
        {"type": "and", "filters": [comparison("eq", "a", "x"), comparison("in", "b", [1, True, "1"])]}
    )
    assert parsed == Compound("and", (Comparison("eq", "a", "x"), Comparison("in", "b", (1.0, True, "1"))))


@pytest.mark.parametrize(
    ("kind", "key", "value", "passes"),
    [
        ("eq", "lang", "en", True),
        ("eq", "lang", "EN", False),
        ("ne", "lang", "en", False),
        ("eq", "year", 2020.0, True),
        ("gt", "year", 2020, False),
        ("gte", "year", 2020, True),
        ("lt", "score", 0.6, True),
        ("lte", "score", 0.4, False),
        ("in", "lang", ["de", "en"], True),
        ("nin", "lang", ["de", "en"], False),
        ("in", "lang", [], False),
        ("nin", "lang", [], True),
        ("eq", "draft", True, True),
        ("ne", "draft", False, True),
    ],
)
def test_a_comparison_compares(kind: str, key: str, value: object, passes: bool) -> None:
    assert matches(parse_filter(comparison(kind, key, value)), ROW) is passes


@pytest.mark.parametrize(
    ("key", "value"),
    [("text1", 1), ("year", "2020"), ("draft", 1), ("draft", "true"), ("score", False), ("text1", True)],
)
def test_types_do_not_mix(key: str, value: object) -> None:
    for kind, given in (("eq", value), ("in", [value])):
        assert not matches(parse_filter(comparison(kind, key, given)), ROW)
    for kind, given in (("ne", value), ("nin", [value])):
        assert matches(parse_filter(comparison(kind, key, given)), ROW)


@pytest.mark.parametrize("kind", ["gt", "gte", "lt", "lte"])
@pytest.mark.parametrize("key", ["lang", "draft", "none of it"])
def test_what_is_no_number_is_in_no_order(kind: str, key: str) -> None:
    for bound in (-math.inf, -1e300, 0, 1, 1e300):
        if math.isfinite(bound):
            assert not matches(parse_filter(comparison(kind, key, bound)), ROW)


def test_a_missing_attribute_differs_from_every_value() -> None:
    for kind, value, passes in (("eq", "x", False), ("in", ["x"], False), ("ne", "x", True), ("nin", ["x"], True)):
        assert matches(parse_filter(comparison(kind, "absent", value)), ROW) is passes


def test_and_needs_all_and_or_needs_one() -> None:
    yes, no = comparison("eq", "lang", "en"), comparison("eq", "lang", "de")
    assert matches(parse_filter({"type": "and", "filters": [yes, yes]}), ROW)
    assert not matches(parse_filter({"type": "and", "filters": [yes, no]}), ROW)
    assert matches(parse_filter({"type": "or", "filters": [no, yes]}), ROW)
    assert not matches(parse_filter({"type": "or", "filters": [no, no]}), ROW)
    assert matches(parse_filter({"type": "and", "filters": [{"type": "or", "filters": [no, yes]}, yes]}), ROW)


def test_large_integers_are_their_nearest_double() -> None:
    assert matches(parse_filter(comparison("eq", "n", 2**53)), {"n": 2**53 + 1})
    assert not matches(parse_filter(comparison("eq", "n", 2**53)), {"n": 2**53 + 2})


def nested(deep: int) -> dict[str, object]:
    value = comparison("eq", "a", "b")
    for _ in range(deep):
        value = {"type": "or", "filters": [value]}
    return value


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "filters"),
        ([], "filters"),
        ("eq", "filters"),
        ({}, "filters.type"),
        ({"type": "like", "key": "a", "value": "b"}, "filters.type"),
        ({"type": ["eq"], "key": "a", "value": "b"}, "filters.type"),
        ({"type": {}, "key": "a", "value": "b"}, "filters.type"),
        ({"type": "eq", "value": "b"}, "filters.key"),
        ({"type": "eq", "key": "a"}, "filters.value"),
        ({"type": "eq", "key": "a", "value": "b", "filters": []}, "filters"),
        (comparison("eq", 1, "b"), "filters.key"),  # type: ignore[arg-type]
        (comparison("eq", "k" * 257, "b"), "filters.key"),
        (comparison("eq", "a", None), "filters.value"),
        (comparison("eq", "a", ["b"]), "filters.value"),
        (comparison("eq", "a", math.nan), "filters.value"),
        (comparison("eq", "a", 10**400), "filters.value"),
        (comparison("gt", "a", "5"), "filters.value"),
        (comparison("gt", "a", True), "filters.value"),
        (comparison("lte", "a", math.inf), "filters.value"),
        (comparison("in", "a", "b"), "filters.value"),
        (comparison("in", "a", [1, None]), "filters.value[1]"),
        (comparison("nin", "a", ["x"] * 1025), "filters.value"),
        ({"type": "and"}, "filters.filters"),
        ({"type": "and", "filters": []}, "filters.filters"),
        ({"type": "and", "filters": {}}, "filters.filters"),
        ({"type": "and", "filters": [comparison("eq", "a", 1), comparison("eq", "a", {})]}, "filters.filters[1].value"),
        ({"type": "or", "filters": [comparison("eq", "a", 1)] * 257}, "filters.filters[256]"),
        (nested(9), "filters" + ".filters[0]" * 8 + ".filters"),
    ],
)
def test_a_malformed_filter_is_refused_where_it_is_wrong(value: Any, param: str) -> None:
    with pytest.raises(InvalidFilter) as refused:
        parse_filter(value)
    assert refused.value.param == param
    assert str(refused.value).endswith(".")


def test_filters_at_the_bounds_are_taken() -> None:
    parse_filter(nested(8))
    parse_filter({"type": "or", "filters": [comparison("eq", "k" * 256, 1)] * 256})
    parse_filter(comparison("in", "a", ["x"] * 1024))


def test_endless_nesting_is_refused_before_it_is_followed() -> None:
    with pytest.raises(InvalidFilter):
        parse_filter(nested(100_000))


def test_the_callers_name_for_the_filter_begins_the_path() -> None:
    with pytest.raises(InvalidFilter) as refused:
        parse_filter({"type": "eq", "key": "a"}, param="query.filters")
    assert refused.value.param == "query.filters.value"


def test_attributes_are_given_back_as_a_copy() -> None:
    given = {"a": "x" * 512, "b" * 64: -1.5, "c": True, "d": 7}
    checked = check_attributes(given)
    assert checked == given
    assert checked is not given
    assert check_attributes(None) == {}


@pytest.mark.parametrize(
    ("attributes", "param"),
    [
        ([], "attributes"),
        ("a", "attributes"),
        ({str(at): 1 for at in range(17)}, "attributes"),
        ({"k" * 65: 1}, "attributes"),
        ({"\ud800": 1}, "attributes"),
        ({1: 1}, "attributes"),
        ({"a": None}, "attributes.a"),
        ({"a": ["x"]}, "attributes.a"),
        ({"a": {}}, "attributes.a"),
        ({"a": "x" * 513}, "attributes.a"),
        ({"a": "\udfff"}, "attributes.a"),
        ({"a": math.nan}, "attributes.a"),
        ({"a": -math.inf}, "attributes.a"),
        ({"a": 10**400}, "attributes.a"),
    ],
)
def test_malformed_attributes_are_refused_by_key(attributes: object, param: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_attributes(attributes)
    assert refused.value.param == param

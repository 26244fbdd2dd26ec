"""Attribute filters in OpenAI's language, and the rules for the attributes that they look at. Pure.

A comparison is `{"type": "eq", "key": "lang", "value": "en"}`; a compound is `{"type": "and", "filters": [...]}`.
`matches` is the definition of what a filter means; `dataplane.hot.attributes` answers the same for many rows at once.

Types do not mix: the string "1", the number 1 and true are three different values. A number is an IEEE double, as in most
readers of JSON, so integers beyond 2**53 are compared as the nearest double. A row that lacks the key differs from every
value: eq, in, gt, gte, lt and lte are false of it, ne and nin are true. A row whose value is no number is in no order:
gt, gte, lt and lte are false of it.

Source: OpenAI's API reference, "Search vector store" (filters) and "Vector stores" (attributes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

import msgspec

from dataplane.errors import InvalidFilter, InvalidInput

MAX_DEPTH = 8  # compounds inside each other
MAX_COMPARISONS = 256
MAX_VALUES = 1024  # in the list of one in or nin
MAX_FILTER_KEY = 256  # characters
MAX_ATTRIBUTES = 16
MAX_ATTRIBUTE_KEY = 64  # characters
MAX_ATTRIBUTE_VALUE = 512  # characters

COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")
COMPOUNDS = ("and", "or")

Attribute: TypeAlias = str | float | bool  # an int counts as a float
Operator: TypeAlias = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]


class Comparison(msgspec.Struct, frozen=True):
    """One key against one value; against a tuple of values for in and nin. Numbers are floats."""

    type: Operator
    key: str
    value: Attribute | tuple[Attribute, ...]

    @property
    def values(self) -> tuple[Attribute, ...]:
        """What is compared with, as a tuple in every case."""
        return self.value if isinstance(self.value, tuple) else (self.value,)

    @property
    def bound(self) -> float:
        """The number of gt, gte, lt and lte."""
        assert isinstance(self.value, float), "parse_filter lets an order have numbers only"
        return self.value


class Compound(msgspec.Struct, frozen=True):
    """Several filters, of which all (and) or at least one (or) must hold. Never empty."""

    type: Literal["and", "or"]
    filters: tuple[Comparison | Compound, ...]


Filter: TypeAlias = Comparison | Compound


def parse_filter(value: object, *, param: str = "filters") -> Filter:
    """The filter that decoded JSON describes. `param` is its place in the caller's request.

    Raises InvalidFilter, whose `param` is the place of what is wrong (`filters.filters[1].value`).
    """
    return _Parser().filter(value, param, depth=1)


def matches(filter: Filter, attributes: Mapping[str, Attribute]) -> bool:  # noqa: A002 - the field's word
    """Whether a row with these attributes passes."""
    if isinstance(filter, Compound):
        passed = (matches(part, attributes) for part in filter.filters)
        return all(passed) if filter.type == "and" else any(passed)
    found = attributes.get(filter.key)
    if filter.type in ("eq", "in"):
        return found is not None and _is_one_of(found, filter.values)
    if filter.type in ("ne", "nin"):
        return found is None or not _is_one_of(found, filter.values)
    return is_number(found) and ORDER[filter.type](float(cast(float, found)), filter.bound)


ORDER: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {
        "gt": lambda found, bound: found > bound,
        "gte": lambda found, bound: found >= bound,
        "lt": lambda found, bound: found < bound,
        "lte": lambda found, bound: found <= bound,
    }
)


def check_attributes(attributes: object, *, param: str = "attributes") -> dict[str, Attribute]:
    """The attributes that decoded JSON describes, as they may be stored. None means no attributes.

    Raises InvalidInput: more than 16 keys, a key over 64 characters, or a value that is no string (of at most 512
    characters), finite number or boolean. A lone surrogate is refused too, because it cannot be stored as UTF-8.
    """
    if attributes is None:
        return {}
    if not isinstance(attributes, dict):
        raise InvalidInput("Attributes must be an object of keys and values.", param=param)
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidInput(f"There may be at most {MAX_ATTRIBUTES} attributes, not {len(attributes)}.", param=param)
    for key, value in attributes.items():
        if not isinstance(key, str) or len(key) > MAX_ATTRIBUTE_KEY or not _is_storable(key):
            message = f"An attribute's key must be a string of at most {MAX_ATTRIBUTE_KEY} characters."
            raise InvalidInput(message, param=param)
        _check_attribute(value, f"{param}.{key}")
    return dict(attributes)


def is_number(value: object) -> bool:
    """Whether it is a number with a finite double. A bool is none, nor is an integer beyond the largest double."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class _Parser:
    """Counts the comparisons of one filter while it is read."""

    __slots__ = ("_comparisons",)

    def __init__(self) -> None:
        self._comparisons = 0

    def filter(self, value: object, param: str, depth: int) -> Filter:
        if not isinstance(value, dict):
            raise InvalidFilter("A filter must be an object with a type.", param=param)
        kind = value.get("type")
        if kind in COMPOUNDS:
            return self._compound(value, param, depth)
        if kind in COMPARISONS:
            return self._comparison(value, param)
        allowed = ", ".join(chain(COMPARISONS, COMPOUNDS))
        raise InvalidFilter(f"A filter's type must be one of {allowed}.", param=f"{param}.type")

    def _compound(self, value: dict[object, object], param: str, depth: int) -> Compound:
        _check_fields(value, ("type", "filters"), param)
        parts = value["filters"]
        param = f"{param}.filters"
        if not isinstance(parts, list) or not parts:
            raise InvalidFilter("The filters of an and or an or must be a list of at least one filter.", param=param)
        if depth > MAX_DEPTH:
            raise InvalidFilter(f"Filters may hold each other at most {MAX_DEPTH} deep.", param=param)
        filters = tuple(self.filter(part, f"{param}[{at}]", depth + 1) for at, part in enumerate(parts))
        return Compound(cast(Literal["and", "or"], value["type"]), filters)

    def _comparison(self, value: dict[object, object], param: str) -> Comparison:
        _check_fields(value, ("type", "key", "value"), param)
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise InvalidFilter(f"A filter may have at most {MAX_COMPARISONS} comparisons.", param=param)
        key, kind = value["key"], cast(Operator, value["type"])
        if not isinstance(key, str) or len(key) > MAX_FILTER_KEY:
            message = f"A filter's key must be a string of at most {MAX_FILTER_KEY} characters."
            raise InvalidFilter(message, param=f"{param}.key")
        return Comparison(kind, key, _compared(kind, value["value"], f"{param}.value"))


def _compared(kind: Operator, value: object, param: str) -> Attribute | tuple[Attribute, ...]:
    if kind in ("in", "nin"):
        if not isinstance(value, list) or len(value) > MAX_VALUES:
            raise InvalidFilter(f"The value of {kind} must be a list of at most {MAX_VALUES} values.", param=param)
        return tuple(_single(one, f"{param}[{at}]") for at, one in enumerate(value))
    if kind in ORDER and not is_number(value):
        raise InvalidFilter(f"The value of {kind} must be a finite number.", param=param)
    return _single(value, param)


def _single(value: object, param: str) -> Attribute:
    if isinstance(value, str | bool):
        return value
    if is_number(value):
        return float(cast(float, value))
    raise InvalidFilter("A filter's value must be a string, a finite number or a boolean.", param=param)


def _check_fields(value: dict[object, object], fields: tuple[str, ...], param: str) -> None:
    """A field that would be passed over could change what the caller meant, so there may be none."""
    for field in fields:
        if field not in value:
            raise InvalidFilter(f"A filter of this type must have the field {field}.", param=f"{param}.{field}")
    if len(value) > len(fields):
        message = f"A filter of this type has the fields {', '.join(fields)} and no others."
        raise InvalidFilter(message, param=param)


def _check_attribute(value: object, param: str) -> None:
    if isinstance(value, str):
        if len(value) > MAX_ATTRIBUTE_VALUE or not _is_storable(value):
            message = f"An attribute's string must be valid Unicode of at most {MAX_ATTRIBUTE_VALUE} characters."
            raise InvalidInput(message, param=param)
    elif not isinstance(value, bool) and not is_number(value):
        raise InvalidInput("An attribute must be a string, a finite number or a boolean.", param=param)


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_one_of(found: Attribute, values: tuple[Attribute, ...]) -> bool:
    if is_number(found):
        found = float(found)
    return any(type(found) is type(value) and found == value for value in values)

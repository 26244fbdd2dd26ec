"""The smallest instances of JSON schemas and regular expressions, for the scripted engine. Pure.

Only what a schema requires is made: required properties, minimal items, the first of several choices. Work and output
are bounded, so that a hostile schema costs no more than an honest one.
"""

from __future__ import annotations

import json
import math
from typing import Any

from agentflow.regex import RegexError, shortest_match
from agentflow.schema import resolve

_MAX_NODES = 5_000
_MAX_DEPTH = 100
_MAX_CHARACTERS = 100_000  # of all texts, names and given values together
_MAX_COPIED = 500_000  # keywords, properties and required names, in schemas that are put together
_FORMATS = {
    "date": "2001-02-03",
    "date-time": "2001-02-03T04:05:06Z",
    "duration": "P1D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "time": "04:05:06Z",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class Unsatisfiable(Exception):
    """No instance was found within the bounds."""


def schema_sample(schema: Any) -> Any:
    """A JSON value that `schema` allows. Raises Unsatisfiable."""
    try:
        return _Sampler(schema).make(schema, 0)
    except OverflowError as error:
        raise Unsatisfiable("a number in it is too large") from error


def regex_sample(pattern: str) -> str:
    """A text that `pattern` matches as a whole. Raises Unsatisfiable."""
    try:
        return shortest_match(pattern)
    except RegexError as error:
        raise Unsatisfiable(f"the regular expression {error}") from error


class _TooLarge(Unsatisfiable):
    """A bound of the whole instance is reached, so that no other alternative helps."""

    def __init__(self) -> None:
        super().__init__("its smallest instance is too large")


class _Sampler:
    """One instance of one schema. What is made, written and copied is counted over the whole of it."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = self._characters = self._copied = 0
        self._matches: dict[str, str] = {}  # of patterns: one may stand for thousands of items

    def make(self, schema: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise _TooLarge
        if depth > _MAX_DEPTH:
            raise Unsatisfiable("its smallest instance is too deep")
        if schema is False:
            raise Unsatisfiable("a part of it allows nothing")
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema:
            return self.make(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return self._given(schema["const"])
        if schema.get("enum"):
            return self._given(schema["enum"][0])
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self._first(_without(schema, key), schema[key], depth)
        if schema.get("allOf"):
            return self.make(self._merged(_without(schema, "allOf"), *schema["allOf"]), depth + 1)
        return self._typed(schema, depth)

    def _first(self, rest: dict[str, Any], options: list[Any], depth: int) -> Any:
        """An instance of the first option that has one."""
        for option in options:
            try:
                return self.make(self._merged(rest, option) if isinstance(option, dict) else option, depth + 1)
            except _TooLarge:
                raise
            except Unsatisfiable:
                pass
        raise Unsatisfiable("none of its alternatives can be made")

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0] if kind else None
        if kind is None:
            kind = "object" if "properties" in schema or "required" in schema else _implied_type(schema)
        match kind:
            case "object":
                properties = schema.get("properties", {})
                return {
                    self._text(name): self.make(
                        properties.get(name, schema.get("additionalProperties", True)), depth + 1
                    )
                    for name in schema.get("required", ())
                }
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return False
            case _:
                return None

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        prefix = schema.get("prefixItems", [])
        count = int(schema.get("minItems", 0))  # 3.0 is a whole number too
        if count > _MAX_NODES:
            raise Unsatisfiable("its smallest instance is too large")
        items = schema.get("items", True)
        return [self.make(prefix[i] if i < len(prefix) else items, depth + 1) for i in range(count)]

    def _string(self, schema: dict[str, Any]) -> str:
        if isinstance(pattern := schema.get("pattern"), str):
            if pattern not in self._matches:
                self._matches[pattern] = regex_sample(pattern)
            return self._text(self._matches[pattern])
        text = _FORMATS.get(schema.get("format", ""), "")
        length = schema.get("minLength", 0)
        if length > _MAX_CHARACTERS:
            raise Unsatisfiable("its smallest instance is too large")
        return self._text(text + "a" * (int(length) - len(text)))

    def _given(self, value: Any) -> Any:
        self._write(len(json.dumps(value)))
        return value

    def _text(self, text: str) -> str:
        self._write(len(text))
        return text

    def _write(self, characters: int) -> None:
        self._characters += characters
        if self._characters > _MAX_CHARACTERS:
            raise _TooLarge

    def _merged(self, *schemas: Any) -> dict[str, Any]:
        """Schemas that hold at the same time, as far as `properties` and `required` go; else the last one wins."""
        merged: dict[str, Any] = {}
        for schema in schemas:
            if not isinstance(schema, dict):
                continue
            properties = {**merged.get("properties", {}), **schema.get("properties", {})}
            required = [*merged.get("required", ()), *schema.get("required", ())]
            merged = {**merged, **schema}
            if properties:
                merged["properties"] = properties
            if required:
                merged["required"] = list(dict.fromkeys(required))
            self._copied += len(merged) + len(properties) + len(required)
            if self._copied > _MAX_COPIED:
                raise _TooLarge
        return merged

    def _resolve(self, reference: Any) -> Any:
        try:
            return resolve(self._root, reference)
        except LookupError as error:
            raise Unsatisfiable(f"the reference {reference!r} leads nowhere") from error


def _without(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != keyword}


def _implied_type(schema: dict[str, Any]) -> str | None:
    if schema.keys() & {"items", "prefixItems", "minItems"}:
        return "array"
    if schema.keys() & {"minLength", "maxLength", "pattern", "format"}:
        return "string"
    if schema.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}:
        return "number"
    return None


def _number(schema: dict[str, Any], *, whole: bool) -> float:
    """The number nearest to 0 from above, or else the largest one below, within the bounds."""
    step = schema.get("multipleOf", 1 if whole else None)
    low = schema.get("minimum", -math.inf)
    high = schema.get("maximum", math.inf)
    nudge = step or 0.5
    if "exclusiveMinimum" in schema:
        low = max(low, schema["exclusiveMinimum"] + nudge)
    if "exclusiveMaximum" in schema:
        high = min(high, schema["exclusiveMaximum"] - nudge)
    number = min(max(0, low), high)
    if step and math.isfinite(number):
        rounded = math.ceil(number / step) * step
        number = rounded if rounded <= high else math.floor(number / step) * step
    if not low <= number <= high:
        raise Unsatisfiable("no number lies within its bounds")
    return int(number) if whole or float(number).is_integer() else number

"""The smallest instances of JSON schemas and of regular expressions, for the scripted engine. Pure.

Only what a schema requires is made: required properties, minimal items, the first of several choices. Work and output
are bounded, so that a hostile schema costs no more than an honest one.
"""

from __future__ import annotations

import math
import re._constants as sre
import re._parser as sre_parser
from typing import Any

_MAX_NODES = 5_000
_MAX_DEPTH = 100
_MAX_CHARACTERS = 100_000
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
    return _Sampler(schema).make(schema, 0)


def regex_sample(pattern: str) -> str:
    """A text that `pattern` matches as a whole. Raises Unsatisfiable."""
    try:
        parsed = sre_parser.parse(pattern)
    except (sre.error, RecursionError, OverflowError) as error:
        raise Unsatisfiable(f"the regular expression is wrong: {error}") from error
    return _regex_text(parsed, 0)


class _Sampler:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = 0

    def make(self, schema: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise Unsatisfiable("its smallest instance is too large")
        if schema is False:
            raise Unsatisfiable("a part of it allows nothing")
        if not isinstance(schema, dict):
            return None
        if "$ref" in schema:
            return self.make(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                rest = {k: v for k, v in schema.items() if k != key}
                return self._first(rest, schema[key], depth)
        if schema.get("allOf"):
            return self.make(_merged({k: v for k, v in schema.items() if k != "allOf"}, *schema["allOf"]), depth + 1)
        return self._typed(schema, depth)

    def _first(self, rest: dict[str, Any], options: list[Any], depth: int) -> Any:
        """An instance of the first option that has one."""
        for option in options:
            try:
                return self.make(_merged(rest, option) if isinstance(option, dict) else option, depth + 1)
            except Unsatisfiable:
                if self._nodes > _MAX_NODES:
                    raise
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
                    name: self.make(properties.get(name, schema.get("additionalProperties", True)), depth + 1)
                    for name in schema.get("required", ())
                }
            case "array":
                return self._array(schema, depth)
            case "string":
                return _string(schema)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return False
            case _:
                return None

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        prefix = schema.get("prefixItems", [])
        count = schema.get("minItems", 0)
        if count > _MAX_NODES:
            raise Unsatisfiable("its smallest instance is too large")
        items = schema.get("items", True)
        return [self.make(prefix[i] if i < len(prefix) else items, depth + 1) for i in range(count)]

    def _resolve(self, ref: Any) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise Unsatisfiable(f"the reference {ref!r} is not a local one")
        node = self._root
        for part in ref[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise Unsatisfiable(f"the reference {ref!r} leads nowhere")
        return node


def _merged(*schemas: Any) -> dict[str, Any]:
    """Schemas that hold at the same time, as far as `properties` and `required` are concerned; else the last wins."""
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
    return merged


def _implied_type(schema: dict[str, Any]) -> str | None:
    if schema.keys() & {"items", "prefixItems", "minItems"}:
        return "array"
    if schema.keys() & {"minLength", "maxLength", "pattern", "format"}:
        return "string"
    if schema.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}:
        return "number"
    return None


def _string(schema: dict[str, Any]) -> str:
    if isinstance(pattern := schema.get("pattern"), str):
        return regex_sample(pattern)
    text = _FORMATS.get(schema.get("format", ""), "")
    length = schema.get("minLength", 0)
    if length > _MAX_CHARACTERS:
        raise Unsatisfiable("its smallest instance is too large")
    return text + "a" * (int(length) - len(text))


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


def _regex_text(parsed: Any, depth: int) -> str:
    """The text of a parsed expression: each repetition as short, each choice as early as it can be."""
    if depth > _MAX_DEPTH:
        raise Unsatisfiable("the regular expression is nested too deeply")
    parts: list[str] = []
    size = 0
    for op, value in parsed:
        parts.append(_regex_part(op, value, depth))
        size += len(parts[-1])
        if size > _MAX_CHARACTERS:
            raise Unsatisfiable("its smallest instance is too large")
    return "".join(parts)


def _regex_part(op: Any, value: Any, depth: int) -> str:
    match op:
        case sre.LITERAL:
            return chr(value)
        case sre.NOT_LITERAL:
            return _other_than({chr(value)})
        case sre.ANY:
            return "a"
        case sre.IN:
            return _from_set(value)
        case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
            least, _, body = value
            if least == 0:
                return ""
            text = _regex_text(body, depth + 1)
            if len(text) * least > _MAX_CHARACTERS:
                raise Unsatisfiable("its smallest instance is too large")
            return text * least
        case sre.BRANCH:
            return _regex_text(value[1][0], depth + 1)
        case sre.SUBPATTERN:
            return _regex_text(value[3], depth + 1)
        case sre.ATOMIC_GROUP:
            return _regex_text(value, depth + 1)
        case sre.AT:
            return ""
        case _:
            raise Unsatisfiable(f"the regular expression uses {str(op).lower()}")


def _from_set(items: Any) -> str:
    """A character of a set such as `[a-z_]`, or one that a negated set leaves."""
    matched = re_set_characters(items)
    if items and items[0][0] is sre.NEGATE:
        return _other_than(matched)
    return min(matched)


def re_set_characters(items: Any) -> set[str]:
    """Characters of a set: the first of each range (all of a short one), and samples of the classes."""
    samples = {sre.CATEGORY_DIGIT: "0", sre.CATEGORY_WORD: "a", sre.CATEGORY_SPACE: " "}
    found: set[str] = set()
    for op, value in items:
        if op is sre.LITERAL:
            found.add(chr(value))
        elif op is sre.RANGE:
            found.update(chr(code) for code in range(value[0], min(value[1], value[0] + 512) + 1))
        elif op is sre.CATEGORY:
            found.add(samples.get(value, "~"))
    return found


def _other_than(excluded: set[str]) -> str:
    for code in (*range(0x61, 0x7B), *range(0x21, 0x61), *range(0xA1, 0x2000)):
        if chr(code) not in excluded:
            return chr(code)
    raise Unsatisfiable("a set of the regular expression leaves no character")

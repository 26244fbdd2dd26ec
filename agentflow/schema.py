"""JSON schemas as trees: where their parts are, and what their references mean. Pure; no recursion anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value is an object of schemas."""

IN_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
"""Keywords whose value is, or in older drafts may be, a list of schemas."""

SINGLE = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords whose value is a schema."""

IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
"""Keywords whose schemas speak of the same value as the schema that holds them."""


def parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside of a schema, with the keyword that each stands under."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in BY_NAME and isinstance(value, dict):
            yield from ((keyword, part) for part in value.values())
        elif keyword in IN_LISTS and isinstance(value, list):
            yield from ((keyword, part) for part in value)
        elif keyword in SINGLE:
            yield keyword, value


def resolve(root: Any, reference: str) -> Any:
    """What a local reference (`#`, `#/...`) points to. Raises LookupError where it leads nowhere or is not local."""
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(reference)
    node = root
    for part in reference.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and len(key) < 10 and int(key) < len(node):
            node = node[int(key)]
        else:
            raise LookupError(reference)
    return node


def rebased(schema: Any, base: str) -> Any:
    """A copy of a whole schema that may stand at `base` (`#/$defs/x`) of another one: its references go on working."""
    if not isinstance(schema, dict):
        return schema
    copy = {key: value for key, value in schema.items() if key not in {"$schema", "$id"}}
    pending = [copy]
    while pending:
        node = pending.pop()
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            node["$ref"] = base + reference[1:]
        for keyword, value in node.items():
            node[keyword] = _copied(keyword, value, pending)
    return copy


def _copied(keyword: str, value: Any, pending: list[dict[str, Any]]) -> Any:
    """Copy a keyword's value as deep as its schemas, and note the copies of these for going on."""

    def copy(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        duplicate = dict(part)
        pending.append(duplicate)
        return duplicate

    if keyword in BY_NAME and isinstance(value, dict):
        return {name: copy(part) for name, part in value.items()}
    if keyword in IN_LISTS and isinstance(value, list):
        return [copy(part) for part in value]
    return copy(value) if keyword in SINGLE else value

"""JSON schemas (draft 2020-12) as trees: their parts, their references, and whether they are schemas at all.

Pure, and no recursion anywhere. `flaw` says what validating against the metaschema would say, but a hundred times
faster than a validator that interprets it, and without limits of depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

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


_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def parts(schema: Any) -> Iterator[tuple[str, str, Any]]:
    """The schemas directly inside of a schema, each with its keyword and, if it has one, its name or number there."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in BY_NAME and isinstance(value, dict):
            yield from ((keyword, name, part) for name, part in value.items())
        elif keyword in IN_LISTS and isinstance(value, list):
            yield from ((keyword, str(place), part) for place, part in enumerate(value))
        elif keyword in SINGLE:
            yield keyword, "", value


def flaw(root: Any) -> str | None:
    """What makes `root` no valid schema, with the place where it is (`#/properties/a`), or None."""
    pending: list[tuple[_Place, Any]] = [(None, root)]
    while pending:
        place, schema = pending.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            return f"{_written(place)} must be a schema (an object or a boolean)"
        for keyword, value in schema.items():
            form = _FORMS.get(keyword)
            if form is not None and not form[1](value):
                return f"{_written((place, keyword))} must be {form[0]}"
        for keyword, name, part in parts(schema):
            pending.append(((place, f"{keyword}/{name}" if name else keyword), part))
    return None


_Place = tuple[Any, str] | None
"""The place of a schema: that of the one around it, and the way from there. Written out it would be as long, for each
of thousands of schemas, as all the names around it."""


def _written(place: _Place) -> str:
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return "/".join(("#", *reversed(steps)))


def steps(reference: str) -> list[str]:
    """The keys by which a local reference (`#`, `#/...`) leads from the root. Raises LookupError where it is not local.

    It is a part of a URI, in which `%5B` is a bracket, as for every validator: another reading would lead elsewhere.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(reference)
    return [part.replace("~1", "/").replace("~0", "~") for part in unquote(reference).split("/")[1:]]


def resolve(root: Any, reference: str) -> Any:
    """What a local reference (`#`, `#/...`) points to. Raises LookupError where it leads nowhere or is not local."""
    node = root
    for key in steps(reference):
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == value // 1


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _are_types(value: object) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return _are_names(value) and bool(value) and _TYPES.issuperset(value)  # type: ignore[arg-type]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_Form = tuple[str, Callable[[Any], bool]]


def _forms() -> dict[str, _Form]:
    """What the value of each keyword must be. What a schema inside it must be is `flaw`'s to say."""
    number: _Form = ("a number", _is_number)
    count: _Form = ("a whole number, 0 or more", _is_count)
    text: _Form = ("a text", _is_text)
    flag: _Form = ("true or false", _is_flag)
    items: _Form = ("a list", lambda value: isinstance(value, list))
    schemas: _Form = ("a list of schemas that is not empty", lambda value: isinstance(value, list) and bool(value))
    named: _Form = ("an object of schemas", lambda value: isinstance(value, dict))
    single: _Form = ("a schema (an object or a boolean)", lambda value: isinstance(value, dict | bool))
    return {
        **dict.fromkeys(SINGLE, single),
        **dict.fromkeys(IN_LISTS - {"items"}, schemas),
        **dict.fromkeys(BY_NAME, named),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), number),
        **{f"{end}{what}": count for end in ("min", "max") for what in ("Length", "Items", "Properties", "Contains")},
        **dict.fromkeys(("$id", "$schema", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment"), text),
        **dict.fromkeys(("title", "description", "format", "pattern", "contentEncoding", "contentMediaType"), text),
        **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), flag),
        **dict.fromkeys(("enum", "examples"), items),
        "type": (f"one or several of {', '.join(sorted(_TYPES))}", _are_types),
        "multipleOf": ("a number above 0", lambda value: _is_number(value) and value > 0),
        "required": ("a list of different texts", _are_names),
        "dependentRequired": (
            "an object of lists of different texts",
            lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
        ),
    }


_FORMS = _forms()

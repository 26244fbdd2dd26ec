"""What is wrong with arguments, in words that a small model can act on: where, what is expected, what is there. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from jsonschema import ValidationError
from jsonschema.exceptions import best_match

from agentflow.nearest import nearest

_NAMES: Final = 3
_SHOWN: Final = 40
"""Characters of a value in a message."""


def told(fault: ValidationError) -> str:
    """One problem: where, what is expected, what is there."""
    field = path_of(fault)
    value: Any = fault.instance
    wanted: Any = fault.validator_value
    schema: Any = fault.schema
    match fault.validator:
        case "required":
            parts = _part(schema, "properties")
            missing = [f"{name} ({expected(parts.get(name))})" for name in wanted if name not in value]
            return f"{_inside(field)}{', '.join(missing)} missing"
        case "additionalProperties" | "unevaluatedProperties":
            return _inside(field) + _superfluous(_part(schema, "properties"), value)
        case "type" | "enum" | "const":
            return f"{field} must be {expected(schema)}, not {shown(value)}"
        case "anyOf" | "oneOf":
            best = best_match(iter([fault]))
            if best is not None and best is not fault and len(best.absolute_path) > len(fault.absolute_path):
                return told(best)
            return f"{field} must be {expected(schema)}, not {shown(value)}"
        case "pattern":
            return f"{field} must match {wanted[:80]}, not {shown(value)}"
    if (bound := _BOUNDS.get(str(fault.validator))) is not None:
        return f"{field} must {bound.format(wanted)}, not {shown(value)}"
    return f"{field}: {fault.message[:160]}"


_BOUNDS: Final = {
    "minimum": "be at least {}",
    "maximum": "be at most {}",
    "exclusiveMinimum": "be more than {}",
    "exclusiveMaximum": "be less than {}",
    "multipleOf": "be a multiple of {}",
    "minLength": "have at least {} characters",
    "maxLength": "have at most {} characters",
    "minItems": "have at least {} items",
    "maxItems": "have at most {} items",
    "uniqueItems": "have no item twice",
}


def _superfluous(properties: dict[str, Any], value: dict[str, Any]) -> str:
    unknown = [name for name in value if name not in properties]
    told = []
    for name in unknown[:_NAMES]:
        near = nearest(name, properties)
        told.append(f"{name[:64]!r}" + (f" (did you mean {near!r}?)" if near else ""))
    return f"no such field: {', '.join(told)}"


def expected(part: Any, depth: int = 0) -> str:
    """What a schema asks for, in a few words."""
    if not isinstance(part, dict) or depth > 2:
        return "any"
    if isinstance(part.get("enum"), list):
        choices = [shown(choice) for choice in part["enum"][:8]]
        return f"one of {', '.join(choices)}{', ...' if len(part['enum']) > 8 else ''}"
    if "const" in part:
        return shown(part["const"])
    kinds = part.get("type")
    if kinds == "array" and isinstance(part.get("items"), dict):
        return f"list of {expected(part['items'], depth + 1)}"
    if kinds:
        return " or ".join([kinds] if isinstance(kinds, str) else kinds)
    choices = [expected(choice, depth + 1) for key in ("anyOf", "oneOf") for choice in part.get(key, ())]
    return " or ".join(dict.fromkeys(choices[:4])) or "any"


def _part(around: Any, keyword: str) -> dict[str, Any]:
    found = around.get(keyword) if isinstance(around, dict) else None
    return found if isinstance(found, dict) else {}


def path_of(fault: ValidationError) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in fault.absolute_path]
    return "".join(steps).removeprefix(".") or "the arguments"


def _inside(field: str) -> str:
    return "" if field == "the arguments" else f"in {field}: "


def shown(value: Any) -> str:
    if isinstance(value, dict | list) and len(value) > 8:
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False, default=lambda _: "content")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."

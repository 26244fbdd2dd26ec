"""Closing: a form whose objects have the fields that their schemas name, and no others. Pure.

What a schema leaves open, a small model fills: with a parameter that the tool does not have, or one that was taken out of the
form. An object that is described in several places (`allOf`, or `anyOf` beside `properties`) stays as it is: each of the places
would refuse the others' fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentflow.schema import IN_PLACE, parts, rebased, resolve, steps

_OPEN_OTHERWISE = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "dependentSchemas"})


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of a JSON schema in which every object with `properties` that says nothing of others has none."""
    copy: dict[str, Any] = rebased(schema, "#")
    found: dict[tuple[int, bool], dict[str, Any]] = {}
    pending: list[tuple[dict[str, Any], bool]] = [(copy, False)]
    while pending:
        node, partial = pending.pop()
        if (id(node), partial) not in found:
            found[id(node), partial] = node
            pending += _inner(copy, node, partial=partial)
    for (place, partial), node in found.items():
        if not partial and (place, True) not in found and _is_whole(node):
            node["additionalProperties"] = False
    return copy


def without_others(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of an object's schema, some of whose fields were taken out: they are not let in again, nor counted on.

    It stays open where the schema describes other fields, or requires one that it does not describe.
    """
    copy = {key: value for key, value in schema.items() if key != "minProperties"}
    others = copy.get("additionalProperties", True)
    if isinstance(others, bool) and copy["properties"].keys() >= set(copy["required"]):
        copy["additionalProperties"] = False
    return copy


def referred_fields(schema: dict[str, Any]) -> set[str]:
    """The fields of an object to which, or into which, references of its schema lead: taken out, they would lead nowhere."""
    found: set[str] = set()
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/"):
                keyword, *names = steps(reference)
                found.update(names[:1] if keyword == "properties" else ())
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return found


def _inner(root: dict[str, Any], node: dict[str, Any], *, partial: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """The schemas directly inside of one, and the one that it refers to; each with whether it is one of several of its object."""
    beside = partial or "properties" in node
    for keyword, _, part in parts(node):
        if isinstance(part, dict):
            alternative = keyword in ("anyOf", "oneOf") or (keyword == "allOf" and len(node["allOf"]) == 1)
            yield part, keyword in IN_PLACE and (beside or not alternative)
    if (target := referred(root, node)) is not None:
        yield target, beside


def referred(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any] | None:
    """The schema within `root` that a schema refers to, if it does."""
    reference = node.get("$ref")
    try:
        target = resolve(root, reference) if isinstance(reference, str) else None
    except LookupError:
        return None
    return target if isinstance(target, dict) else None


def _is_whole(node: dict[str, Any]) -> bool:
    """Whether a schema says all that there is to say of an object's fields, but not that there are no others."""
    fields = node.get("properties")
    if not isinstance(fields, dict) or node.keys() & (_OPEN_OTHERWISE | IN_PLACE | {"$ref"}):
        return False
    return fields.keys() >= set(node.get("required", ()))

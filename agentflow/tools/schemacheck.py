"""Arguments against a tool's JSON schema: what is wrong, in words that a small model can act on, and what is meant all the same.

Pure. A schema is checked and compiled once. Nothing is ever fetched: a `$ref` leads to a place within the schema, or the tool
is refused. The draft is the one that `$schema` names, else 2020-12. `format` is not checked. A `pattern` is checked only where it
can be in linear time or nearly so (no quantifier within another one, none of Python's unknown marks, short texts): the others are
left to the tool.

**Content** (what a handle stood for) passes every keyword, at any depth.

What a check may cost is bounded by the keywords that it looks at: a schema whose alternatives multiply, or a list of thousands,
would hold the event loop up.

**Coercion** (coercion.py). Only where the arguments fail as they are, and pass afterwards.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentflow import regex, schema
from agentflow.tools.coercion import mend
from agentflow.tools.errors import InvalidArguments, InvalidTool, ToolFailed
from agentflow.tools.faults import expected, told
from agentflow.tools.tool import Content

_TOLD: Final = 3
_FIELDS_TOLD: Final = 12
_MENDED: Final = 64
"""Values that are coerced in one round; arguments with more faults are not worth it."""
_ROUNDS: Final = 4
_MOST_LOOKS: Final = 5_000
"""Keywords that one validation may look at; some 50 ms."""
_SORTED: Final = 100
"""Items that are compared each with each for uniqueItems; more are compared as texts."""
_FIELDS_LENGTH: Final = 600
_PATTERN_TEXT: Final = 1000
"""Characters of a text that a pattern is held against; a pattern can take time that grows with their square, or cube."""


_looks: ContextVar[list[int]] = ContextVar("looks")
"""How many keywords the validation at hand has looked at: validators have no place for it."""


class ArgumentCheck:
    """For one tool, by its name. Raises InvalidTool where `parameters` is no schema of an object."""

    def __init__(self, name: str, parameters: dict[str, Any]) -> None:
        self._name = name
        self._parameters = parameters
        try:
            self._validator = _compiled(parameters)
            self._faults({})  # finds what leads nowhere, or round in a circle
        except _NoSchema as error:
            raise InvalidTool(f"The schema of the tool {name} {error}.") from error
        except (Unresolvable, RecursionError, _TooManyLooks) as error:
            raise InvalidTool(
                f"The schema of the tool {name} has a $ref that leads nowhere, or in a circle."
            ) from error

    def check(self, values: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The arguments, and what was read otherwise than it was written. Raises InvalidArguments, ToolFailed."""
        try:
            faults = self._faults(values)
            if not faults:
                return values, ()
            if (coerced := self._coerced(values, faults)) is not None:
                return coerced
        except _TooManyLooks as error:
            raise InvalidArguments(f"The arguments have too many values to be checked. {self.fields()}") from error
        except (Unresolvable, RecursionError) as error:
            raise ToolFailed(f"The schema of the tool {self._name} cannot be followed for these arguments.") from error
        problems = list(dict.fromkeys(map(told, faults)))
        more = f"; and {len(problems) - _TOLD} more" if len(problems) > _TOLD else ""
        raise InvalidArguments(f"Wrong arguments: {'; '.join(problems[:_TOLD])}{more}. {self.fields()}")

    def fields(self) -> str:
        """What the arguments are: `Fields: city (string, required), days (integer).`"""
        properties = self._parameters.get("properties") or {}
        required = self._parameters.get("required", ())
        told = [
            f"{name[:64]} ({self._expected(part)}{', required' if name in required else ''})"
            for name, part in islice(properties.items(), _FIELDS_TOLD)
        ]
        more = ", ..." if len(properties) > _FIELDS_TOLD else ""
        text = f"Fields: {', '.join(told)}{more}." if told else "It takes no arguments: give {}."
        return text if len(text) <= _FIELDS_LENGTH else f"{text[:_FIELDS_LENGTH]}..."

    def _expected(self, part: Any) -> str:
        reference = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(reference, str):
            with suppress(LookupError):
                part = schema.resolve(self._parameters, reference)
        return expected(part)

    def _faults(self, values: Any) -> list[jsonschema.ValidationError]:
        token = _looks.set([0])
        try:
            return list(islice(self._validator.iter_errors(values), _MENDED + 1))
        finally:
            _looks.reset(token)

    def _coerced(
        self, values: dict[str, Any], faults: list[jsonschema.ValidationError]
    ) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        notes: list[str] = []
        values = copy.deepcopy(values)
        for _ in range(_ROUNDS):
            if len(faults) > _MENDED:
                return None
            changes = [mend(values, fault) for fault in faults]
            notes += filter(None, changes)
            if not any(changes):
                return None
            if not (faults := self._faults(values)):
                return values, tuple(notes)
        return None


# The schema


class _NoSchema(Exception):
    """Reads on from the schema's name."""


class _TooManyLooks(Exception):
    """A check costs more than it may."""


def _compiled(parameters: dict[str, Any]) -> Validator:
    if parameters.get("type", "object") != "object":
        raise _NoSchema("is none of an object (type: object)")
    kind = jsonschema.validators.validator_for(parameters, default=jsonschema.Draft202012Validator)
    if kind is jsonschema.Draft202012Validator:
        if (flaw := schema.flaw(parameters)) is not None:
            raise _NoSchema(f"is none: {flaw}")
    else:
        try:
            kind.check_schema(parameters)
        except jsonschema.SchemaError as error:
            raise _NoSchema(f"is none: {error.json_path}: {error.message[:200]}") from error
    _check_references(parameters)
    compiled: Validator = _lenient(kind)(parameters, registry=Registry())
    return compiled


def _check_references(root: dict[str, Any]) -> None:
    """That each leads to a place within, and that no name is a pattern which could take for ever."""
    pending: list[Any] = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = node.get(keyword)
            if reference is None:
                continue
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise _NoSchema(f"refers to {str(reference)[:100]!r} outside of itself, which is not fetched")
            if reference == "#" or reference.startswith("#/"):
                pending.append(_resolved(root, reference))
        for pattern in node.get("patternProperties") or {}:
            if not _is_usable(pattern):
                raise _NoSchema(f"has the pattern {pattern[:100]!r} in patternProperties, which could take too long")
        pending += [part for _, _, part in schema.parts(node)]


def _resolved(root: dict[str, Any], reference: str) -> Any:
    try:
        return schema.resolve(root, reference)
    except LookupError as error:
        raise _NoSchema(f"refers to {reference[:100]!r}, which it does not have") from error


@cache
def _lenient(kind: Any) -> Any:
    """A draft whose every keyword lets Content pass."""
    extend: Any = jsonschema.validators.extend  # untyped in its stubs
    keywords = kind.VALIDATORS | {"pattern": _pattern, "uniqueItems": _unique(kind.VALIDATORS["uniqueItems"])}
    return extend(kind, {name: _bounded(check) for name, check in keywords.items()})


def _bounded(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(validator: Any, value: Any, instance: Any, around: Any) -> Any:
        if isinstance(instance, Content):
            return None
        looks = _looks.get()
        looks[0] += 1
        if looks[0] > _MOST_LOOKS:
            raise _TooManyLooks
        return check(validator, value, instance, around)

    return checked


def _unique(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(validator: Any, value: Any, instance: Any, around: Any) -> Any:
        if not value or not isinstance(instance, list) or len(instance) <= _SORTED:
            return check(validator, value, instance, around)
        texts = {json.dumps(item, sort_keys=True, default=str) for item in instance}
        return None if len(texts) == len(instance) else [jsonschema.ValidationError("not unique")]

    return checked


def _pattern(_validator: Any, pattern: str, instance: Any, _around: Any) -> Iterator[jsonschema.ValidationError]:
    if (
        isinstance(instance, str)
        and len(instance) <= _PATTERN_TEXT
        and _is_usable(pattern)
        and not re.search(pattern, instance)
    ):
        yield jsonschema.ValidationError("no match")


@lru_cache(1024)
def _is_usable(pattern: str) -> bool:
    try:
        nested = regex.measure(pattern, 32).nested_quantifiers
        re.compile(pattern)
    except (regex.RegexError, re.error, OverflowError, RecursionError):
        return False
    return nested < 2

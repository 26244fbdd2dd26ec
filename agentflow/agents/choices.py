"""Choices: whether what the user said has a value for a parameter that takes few of them, or a number. Pure.

    has_value({"enum": ["EUR", "USD"]}, "currency", {}, ["What does a gasket cost?"])  ->  False

A small model that may leave such a parameter out seldom does: it takes the first value. So a form has it only where there is
something to take. Of a flag (`gift_wrap`) people say the name, and hardly ever "true". A value is found whole, in any case and
script, singular or plural; other words for it are what its schema calls it: `{"const": "EUR", "title": "euro"}`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from agentflow.agents.closing import referred
from agentflow.routing.terms import excerpt, spoken, terms, units

_FLAG = ("true", "false", "yes", "no")
_NUMBER = re.compile(
    r"(?<![^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])\d"  # and not web01
    r"|\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|millions?|billions?|dozens?|half|couple|pair"
    r"|once|twice|double)\b"
    r"|[二三四五六七八九十百千万两半双零]|一(?![下些样起直般定边共切])",
    re.IGNORECASE,
)
_NUMBERS = frozenset({"integer", "number"})
_CLOSED = frozenset({"boolean", "null"}) | _NUMBERS  # types
_DEPTH = 8  # references and alternatives within each other


def has_value(field: dict[str, Any], name: str, root: dict[str, Any], said: Sequence[str]) -> bool:
    """Whether texts have a value of the parameter `name`, which `field` describes within the schema `root`.

    True for a parameter that takes any text, a list of such, or an object.
    """
    kinds = list(_kinds(field, root))
    if not all({"enum", "const"} & kind.keys() or _type_of(kind) in _CLOSED for kind in kinds):
        return True
    values = [value for kind in kinds for value in _values(kind)]
    words = [value for value in values if isinstance(value, str)]
    types = {_type_of(kind) for kind in kinds}
    names: set[str] = set()
    if "boolean" in types or any(isinstance(value, bool) for value in values):
        words += _FLAG
        called = [spoken(each) for each in (name, *_titles(field))]
        names = names.union(*map(terms, called))
        words += [each for each in called if not terms(each)]  # of words that are in every message: `all`, `now`
    counted = types & _NUMBERS or any(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    return any(
        names & terms(text)
        or any(_says(text, word) for word in words)
        or (counted and _NUMBER.search(excerpt(text)) is not None)
        for text in said
    )


def _kinds(field: Any, root: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """What a schema is made of, if it is alternatives, a reference, or a list: those, what is referred to, and the items."""
    if not isinstance(field, dict) or depth > _DEPTH:
        yield {}
        return
    inner = [each for key in ("anyOf", "oneOf", "allOf") for each in field.get(key, ())]
    if (target := referred(root, field)) is not None:
        inner.append(target)
    if field.get("type") == "array" and "items" in field:
        inner.append(field["items"])
    if isinstance(field.get("type"), list) and not field.keys() & {"enum", "const"}:
        inner += [{**field, "type": each} for each in field["type"]]
    if not inner:
        yield field
    for each in inner:
        yield from _kinds(each, root, depth + 1)


def _values(kind: dict[str, Any]) -> Iterator[Any]:
    """The values of a closed choice, and what they are called."""
    yield from kind.get("enum", ())
    if "const" in kind:
        yield from (kind["const"], *_titles(kind))


def _titles(kind: dict[str, Any]) -> tuple[str, ...]:
    return (title,) if isinstance(title := kind.get("title"), str) else ()


def _type_of(kind: dict[str, Any]) -> str:
    return said if isinstance(said := kind.get("type"), str) else ""


def _says(text: str, value: str) -> bool:
    """Whether a text has a value, whole; in a script that may have no spaces, also within a longer word."""
    wanted, found = units(spoken(value)), units(text)
    if wanted and any(found[at : at + len(wanted)] == wanted for at in range(len(found))):
        return True
    folded = _folded(value).strip()
    return bool(folded) and not folded.isascii() and folded in _folded(excerpt(text))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()

"""Static bounds on the schemas, regular expressions and grammars that come with requests. Pure.

An engine compiles them into automata, so a small text can be a lot of work. What can be told from the text alone is
refused here, before an engine sees it; the time of compiling is bounded where it is compiled. Every walk is iterative
and stops at the first bound that is passed: a hostile value costs no more than the largest that is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from agentflow.config import SchedulerConfig
from agentflow.errors import InvalidGrammar
from agentflow.messages import Structured
from agentflow.regex import RegexError, RegexSize, measure
from agentflow.schema import BY_NAME, IN_PLACE, flaw, parts, resolve

_COUNTED = ("Length", "Items", "Properties", "Contains")
_ENDLESS = 10**9
_NOT_LOCAL = ("$dynamicRef", "$recursiveRef")
# Possessive throughout: what one part has taken is never tried again by the next, so that time stays linear.
_REPETITION = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?+\}|~\s*+(\d++)(?:\s*+\.\.\s*+(\d++))?+")
_OPENER = re.compile(r"//|[\"'\[#/]")
_CLOSERS = {'"': '"', "'": "'", "[": "]", "/": "/"}
_INSIDE = {  # what may stand between an opener and its closer, both left out
    '"': re.compile(r'(?:[^"\\\n]|\\.)*+'),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*+"),
    "[": re.compile(r"(?:[^\]\\\n]|\\.)*+"),  # a set
    "/": re.compile(r"(?:[^/\\\n]|\\.)*+"),  # one of Lark's expressions
}
_COMMENT = re.compile(r"[^\n]*+")


class GrammarLimits(Struct, frozen=True):
    """What a request may ask for. `max_bytes` counts UTF-8, everything else counts what its name says.

    `max_depth` bounds schemas in schemas, groups in expressions and brackets in grammars. `max_entries` bounds the
    values of all `enum`s together, and of a choice. `max_expansion` bounds the characters of an expression once each
    repetition `{n}` is written out n times, and the repetitions of a grammar.
    """

    max_bytes: int = 65_536
    max_depth: int = 32
    max_nodes: int = 10_000
    max_properties: int = 1_000
    max_entries: int = 2_000
    max_alternatives: int = 1_000
    max_count: int = 1_000_000
    max_expansion: int = 20_000
    max_nested_quantifiers: int = 4

    @classmethod
    def of(cls, config: SchedulerConfig) -> GrammarLimits:
        """The limits that a configuration sets; the others stay as they are."""
        return cls(max_bytes=config.grammar_max_bytes, max_depth=config.grammar_max_depth)


def check(structured: Structured, limits: GrammarLimits) -> None:
    """Raise InvalidGrammar, naming the bound and the value, unless an engine can be asked to compile `structured`."""
    try:
        match structured.kind:
            case "json":
                _check_schema(structured.value, limits)
            case "regex":
                _check_regex("the regular expression", _text(structured.value, limits), limits)
            case "grammar":
                _check_grammar(_text(structured.value, limits), limits)
            case "choice":
                _check_choice(structured.value, limits)
            case "json_object":
                pass
    except _Wrong as wrong:
        raise InvalidGrammar(f"`{structured.param}`: {wrong}", param=structured.param) from wrong


class _Wrong(Exception):
    """What is the matter, without the name of the request's field."""


def _bound(what: str, value: int, most: int) -> None:
    if value > most:
        raise _Wrong(f"{what}: {value}, and at most {most} are allowed")


def _text(value: object, limits: GrammarLimits) -> str:
    if not isinstance(value, str) or not value:
        raise _Wrong("must be a text that is not empty")
    _bound("bytes", _bytes(value), limits.max_bytes)
    return value


def _bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise _Wrong(f"is not valid Unicode (character {error.start})") from error


def _check_choice(value: object, limits: GrammarLimits) -> None:
    if not isinstance(value, list | tuple) or not value:
        raise _Wrong("a choice must be a list of texts that is not empty")
    _bound("choices", len(value), limits.max_entries)
    for place, text in enumerate(value):
        if not isinstance(text, str) or not text:
            raise _Wrong(f"choice {place} must be a text that is not empty")
    _bound("bytes", sum(map(_bytes, value)), limits.max_bytes)


def _check_regex(where: str, pattern: str, limits: GrammarLimits) -> RegexSize:
    try:
        size = measure(pattern, limits.max_depth)
    except RegexError as error:
        raise _Wrong(f"{where} {error}") from error
    _bound(f"{where}: characters with every repetition written out", size.expansion, limits.max_expansion)
    _bound(f"{where}: alternatives", size.alternatives, limits.max_alternatives)
    _bound(f"{where}: quantifiers within each other", size.nested_quantifiers, limits.max_nested_quantifiers)
    return size


def _check_grammar(text: str, limits: GrammarLimits) -> None:
    """Bounds for EBNF and for Lark alike. Their syntax is the engine's matter, so quoted parts are only skipped."""
    bare = _unquoted(text)
    _bound("alternatives", bare.count("|"), limits.max_alternatives)
    depth = deepest = 0
    for character in re.findall(r"[()\[\]]", bare):
        depth += 1 if character in "([" else -1
        deepest = max(deepest, depth)
    _bound("nesting of brackets", deepest, limits.max_depth)
    _bound("repetitions, multiplied", sum(map(_repetitions, bare.splitlines())), limits.max_expansion)


def _unquoted(text: str) -> str:
    """`text` without its comments and what is quoted in it; what is never closed is not quoted.

    Each kind of quotation reads a character once at most: if one is not closed by the end of its line, then none of its
    kind is that opens on the way there, and they are not tried.
    """
    pieces: list[str] = []
    hopeless = dict.fromkeys(_INSIDE, 0)  # up to where none of the kind is closed
    kept = position = 0  # up to where `text` is in `pieces`, and up to where it is read
    while (found := _OPENER.search(text, position)) is not None:
        opener, start, position = found[0], found.start(), found.end()
        if opener in _INSIDE:
            if start < hopeless[opener]:
                continue
            end = _end(_INSIDE[opener], text, position)
            if text[end : end + 1] != _CLOSERS[opener]:
                hopeless[opener] = end
                continue
            position = end + 1
        else:
            position = _end(_COMMENT, text, position)
        pieces += (text[kept:start], " ")
        kept = position
    return "".join((*pieces, text[kept:]))


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Where a pattern that always matches ends."""
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _repetitions(line: str) -> int:
    """The product of the repetitions in a line: they may stand within each other. 0 where there are none.

    At most a billion, which is over any bound: a product of thousands of digits has no printed form.
    """
    product = 0
    for match in _REPETITION.finditer(line):
        counts = [int(digits) if len(digits) < 10 else _ENDLESS for digits in match.groups() if digits]
        product = min(max(product, 1) * max([1, *counts]), _ENDLESS)
    return product


def _check_schema(schema: object, limits: GrammarLimits) -> None:
    if not isinstance(schema, dict):
        raise _Wrong(f"a JSON schema must be an object, not {_kind(schema)}")
    _check_nesting(schema, limits)
    _bound("bytes", _bytes(json.dumps(schema, ensure_ascii=False)), limits.max_bytes)
    if (wrong := flaw(schema)) is not None:
        raise _Wrong(f"is no valid JSON schema: {wrong[:300]}")
    _check_keywords(schema, limits)
    _check_references(schema, limits)


def _check_nesting(root: Any, limits: GrammarLimits) -> None:
    """Nodes and nesting, first of the JSON value and then of its schemas, before anything that recurses touches it."""
    most = limits.max_depth * 4  # a schema in a schema costs two or three levels of JSON
    nodes = 0
    for depth, level in enumerate(_levels(root, _json_children)):
        nodes += len(level)
        _bound("nodes", nodes, limits.max_nodes)
        _bound("nesting of JSON", depth, most)
    for depth, _ in enumerate(_levels(root, _schema_children)):
        _bound("nesting of schemas", depth, limits.max_depth)


def _levels(root: Any, children: Callable[[Any], Iterable[Any]]) -> Iterator[list[Any]]:
    level = [root]
    while level:
        yield level
        level = [child for node in level for child in children(node)]


def _json_children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list | tuple):
        yield from node


def _schema_children(schema: Any) -> Iterator[Any]:
    return (part for _, _, part in parts(schema))


def _check_keywords(root: dict[str, Any], limits: GrammarLimits) -> None:
    """The bounds of each schema by itself, and of all together."""
    properties = entries = alternatives = expansion = 0
    for schema in _all_schemas(root):
        properties += sum(len(schema.get(keyword, ())) for keyword in BY_NAME)
        entries += len(schema.get("enum", ()))
        alternatives += sum(len(schema.get(keyword, ())) for keyword in ("anyOf", "oneOf"))
        _check_counts(schema, limits)
        for pattern in _patterns(schema):
            expansion += _check_regex(f"pattern {pattern[:60]!r}", pattern, limits).expansion
    _bound("properties and definitions", properties, limits.max_properties)
    _bound("enum entries", entries, limits.max_entries)
    _bound("alternatives (anyOf, oneOf)", alternatives, limits.max_alternatives)
    _bound("characters of all patterns, with every repetition written out", expansion, limits.max_expansion)


def _check_counts(schema: dict[str, Any], limits: GrammarLimits) -> None:
    for what in _COUNTED:
        least = schema.get(f"min{what}", 0)
        most = schema.get(f"max{what}", least)
        _bound(f"min{what}", least, limits.max_count)
        _bound(f"max{what}", most, limits.max_count)
        if least > most:
            raise _Wrong(f"min{what} is {least}, and max{what} only {most}")


def _patterns(schema: dict[str, Any]) -> Iterator[str]:
    if "pattern" in schema:
        yield schema["pattern"]
    yield from schema.get("patternProperties", ())


def _check_references(root: dict[str, Any], limits: GrammarLimits) -> None:
    """References must be local and lead to a schema; none may lead back to itself without a value in between.

    A schema is what stands under a keyword that holds schemas, and has passed the checks of each. Any other place may
    hold anything, and an engine that went there would read what nobody has looked at.

    Schemas that speak of the same value (references, `allOf`, `anyOf` ...) are followed depth first; what they add up
    to, written out, is bounded too: twenty definitions can double each other to a million.
    """
    schemas = {id(schema): schema for schema in _all_schemas(root)}
    _check_bases(root, schemas.values())
    sizes: dict[int, int] = {}  # of schemas that are done, by identity
    open_schemas: set[int] = set()
    stack: list[tuple[Any, bool]] = [(schema, False) for schema in schemas.values()]
    while stack:
        schema, leaving = stack.pop()
        if id(schema) in sizes:
            continue
        same_value = [part for keyword, _, part in parts(schema) if keyword in IN_PLACE]
        same_value += _referenced(root, schema, schemas)
        if leaving:
            open_schemas.discard(id(schema))
            sizes[id(schema)] = 1 + sum(sizes.get(id(part), 1) for part in same_value)
            _bound("size with references written out", sizes[id(schema)], limits.max_nodes)
            continue
        open_schemas.add(id(schema))
        stack.append((schema, True))
        for part in same_value:
            if id(part) in open_schemas:
                raise _Wrong(f"the reference {schema.get('$ref', '#')!r} leads back to itself")
            if isinstance(part, dict):
                stack.append((part, False))


def _check_bases(root: dict[str, Any], schemas: Iterable[dict[str, Any]]) -> None:
    """No schema but the whole one may have an address of its own: references in it would mean other places."""
    oldest = any("draft-04" in schema.get("$schema", "") for schema in schemas)
    for schema in schemas:
        if schema is not root and ("$id" in schema or (oldest and "id" in schema)):
            raise _Wrong("an $id (or draft 4's id) within the schema is not supported")


def _all_schemas(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every schema in a schema but `true` and `false`, the whole one first."""
    for level in _levels(root, _schema_children):
        yield from (schema for schema in level if isinstance(schema, dict))


def _referenced(root: Any, schema: dict[str, Any], schemas: dict[int, Any]) -> list[Any]:
    """The schema that `schema` refers to, one of `schemas` (by identity), or none."""
    for keyword in _NOT_LOCAL:
        if keyword in schema:
            raise _Wrong(f"{keyword} is not supported")
    reference = schema.get("$ref")
    if reference is None:
        return []
    try:
        target = resolve(root, reference)
    except LookupError as error:
        reason = "leads nowhere" if reference.startswith("#") else "is not local (#/...)"
        raise _Wrong(f"the reference {reference[:100]!r} {reason}") from error
    if not isinstance(target, dict | bool):
        raise _Wrong(f"the reference {reference[:100]!r} leads to {_kind(target)}, not to a schema")
    if isinstance(target, dict) and id(target) not in schemas:
        raise _Wrong(f"the reference {reference[:100]!r} leads to a place for no schema; put it into $defs")
    return [target]


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")

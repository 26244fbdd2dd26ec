"""Regular expressions as trees: what they would cost an engine, and the shortest text that they match. Pure.

Python's own parser reads them; they are never run. It recurses, so nesting is measured first; and it warns of `[` and
of doubled marks within a set, which are honest there, so these get the backslash that it misses.
"""

from __future__ import annotations

import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from functools import cache
from typing import Any

from msgspec import Struct

_MAX_CHARACTERS = 100_000
_CHOSEN_FROM = 0x2000  # the characters from which one is chosen that a negated set leaves
_PREFERRED = ((0x61, 0x7A), (0x20, 0x60), (0x7B, 0x7E), (0xA1, _CHOSEN_FROM - 1))
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_DOUBLED = ("--", "&&", "~~", "||")
_TOKEN = re.compile(r"\\.|--|&&|~~|\|\||.", re.DOTALL)
_UNSUPPORTED = {
    sre.ASSERT: "looks around, which no engine can do",
    sre.ASSERT_NOT: "looks around, which no engine can do",
    sre.GROUPREF: "refers back to a group, which no engine can do",
    sre.GROUPREF_EXISTS: "refers back to a group, which no engine can do",
}


class RegexError(Exception):
    """The expression is wrong or cannot be used. Reads on from the expression's name: "... is wrong at 3: ..."."""


class RegexSize(Struct, frozen=True):
    """`expansion`: characters once every repetition `{n}` is written out; `alternatives` of all `|`;
    `nested_quantifiers`: how many repetitions stand within each other."""

    expansion: int
    alternatives: int
    nested_quantifiers: int


def measure(pattern: str, max_depth: int) -> RegexSize:
    """The size of an expression whose groups nest at most `max_depth` deep. Raises RegexError."""
    return _size(_parsed(pattern, max_depth))


def shortest_match(pattern: str, max_depth: int = 100) -> str:
    """A text that the expression matches as a whole: each repetition as short, each choice as early as can be.

    Raises RegexError, also when the text would be longer than 100,000 characters.
    """
    return _text(_parsed(pattern, max_depth))


def _parsed(pattern: str, max_depth: int) -> Any:
    escaped, added = _escaped(pattern, max_depth)
    try:
        return sre_parser.parse(escaped)
    except re.error as error:
        position = (error.pos or 0) - sum(place < (error.pos or 0) for place in added)
        raise RegexError(f"is wrong at {position}: {error.msg}") from error
    except ValueError as error:  # flags that contradict each other, and a count of thousands of digits
        raise RegexError(f"cannot be used: {error}") from error
    except (RecursionError, OverflowError) as error:
        raise RegexError("is nested too deeply or repeats too often") from error


def _escaped(pattern: str, max_depth: int) -> tuple[str, list[int]]:
    """The expression with sets that raise no warning, and where backslashes were added (places in the result)."""
    pieces: list[str] = []
    added: list[int] = []
    length = depth = 0
    set_begins = -1  # where the set's first item would stand, or -1 outside of a set
    for match in _TOKEN.finditer(pattern):
        piece = match[0]
        if set_begins < 0:
            depth += piece.startswith("(") - (piece == ")")
            if depth > max_depth:
                raise RegexError(f"nests groups more than {max_depth} deep (at {match.start()})")
            if piece == "[":
                set_begins = match.end() + pattern.startswith("^", match.end())
        elif piece == "]" and match.start() > set_begins:
            set_begins = -1
        elif piece == "[" or piece in _DOUBLED:
            added += range(length, length + 2 * len(piece), 2)
            piece = "".join(f"\\{character}" for character in piece)
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), added


def _size(parsed: Any) -> RegexSize:
    """Sizes add up along a sequence and over alternatives; a repetition multiplies what it repeats.

    Recursion is as deep as the groups nest, which `_escaped` has bounded.
    """
    expansion = alternatives = nested = 0
    for op, value in parsed:
        if op in _UNSUPPORTED:
            raise RegexError(_UNSUPPORTED[op])
        times, bodies = _inside(op, value)
        sizes = [_size(body) for body in bodies]
        inner = max((size.nested_quantifiers for size in sizes), default=0)
        nested = max(nested, inner + (op in _REPEATS))
        alternatives += sum(size.alternatives for size in sizes) + (len(bodies) if op is sre.BRANCH else 0)
        expansion += times * max(1, sum(size.expansion for size in sizes))
    return RegexSize(expansion, alternatives, nested)


def _inside(op: Any, value: Any) -> tuple[int, list[Any]]:
    """How often an element is written out, and the sequences in it."""
    if op in _REPEATS:
        least, most, body = value
        return max(1, least, 0 if most is sre.MAXREPEAT else most), [body]
    if op is sre.BRANCH:
        return 1, value[1]
    if op is sre.SUBPATTERN:
        return 1, [value[3]]
    return 1, [value] if op is sre.ATOMIC_GROUP else []


def _text(parsed: Any) -> str:
    pieces: list[str] = []
    size = 0
    for op, value in parsed:
        pieces.append(_part(op, value))
        size += len(pieces[-1])
        if size > _MAX_CHARACTERS:
            raise RegexError(f"matches nothing shorter than {_MAX_CHARACTERS} characters")
    return "".join(pieces)


def _part(op: Any, value: Any) -> str:
    if op in _UNSUPPORTED:
        raise RegexError(_UNSUPPORTED[op])
    if op in _REPEATS:
        least, _, body = value
        text: str = _text(body) if least else ""
        if len(text) * least > _MAX_CHARACTERS:
            raise RegexError(f"matches nothing shorter than {_MAX_CHARACTERS} characters")
        return text * int(least)
    if op is sre.IN:
        return _from_set(value)
    if op is sre.LITERAL:
        return _character(value)
    if op is sre.NOT_LITERAL:
        return _other_than(_mask(value, value))
    if op is sre.ANY:
        return "a"
    _, bodies = _inside(op, value)
    return _text(bodies[0]) if bodies else ""  # an anchor has none


def _from_set(items: Any) -> str:
    """A character of a set such as `[a-z_]`, or one that a negated set leaves.

    The characters of a set are the bits of a number: what an item costs does not grow with what it stands for.
    """
    if items[0][0] is sre.NEGATE:
        excluded = 0
        for op, value in items[1:]:
            if op is sre.LITERAL:
                excluded |= _mask(value, value)
            elif op is sre.RANGE:
                excluded |= _mask(*value)
            else:
                excluded |= _category_mask(value)
        return _other_than(excluded)
    op, value = items[0]
    if op is sre.CATEGORY:
        samples = {
            sre.CATEGORY_DIGIT: "0",
            sre.CATEGORY_WORD: "a",
            sre.CATEGORY_SPACE: " ",
            sre.CATEGORY_NOT_SPACE: "a",
        }
        return samples.get(value, "~")
    return _character(value if op is sre.LITERAL else value[0])


def _character(code: int) -> str:
    if 0xD800 <= code < 0xE000:
        raise RegexError(f"has half a surrogate (\\u{code:04x}), which is no character")
    return chr(code)


def _mask(first: int, last: int) -> int:
    """A bit for each character from `first` to `last`, of those that are chosen from."""
    last = min(last, _CHOSEN_FROM - 1)
    return ((1 << (last - first + 1)) - 1) << first if first <= last else 0


@cache  # there are six
def _category_mask(category: Any) -> int:
    return sum(1 << code for code in range(_CHOSEN_FROM) if _in_category(category, chr(code)))


def _in_category(category: Any, character: str) -> bool:
    tests = {
        sre.CATEGORY_DIGIT: character.isdecimal(),
        sre.CATEGORY_NOT_DIGIT: not character.isdecimal(),
        sre.CATEGORY_SPACE: character.isspace(),
        sre.CATEGORY_NOT_SPACE: not character.isspace(),
        sre.CATEGORY_WORD: character.isalnum() or character == "_",
        sre.CATEGORY_NOT_WORD: not (character.isalnum() or character == "_"),
    }
    return tests[category]


def _other_than(excluded: int) -> str:
    for span in _PREFERRED:
        if left := _mask(*span) & ~excluded:
            return chr((left & -left).bit_length() - 1)
    raise RegexError("has a set that leaves no character")

"""Python's literals to JSON text, without evaluating anything. Pure.

What `ast.literal_eval` takes is taken, with what JSON can say of it:

    str             string, adjacent ones joined; all prefixes but f and b
    int, float      number; what is no finite number in JSON is refused (1e999, 2j), and so is an int of over 4,300 digits
    True, None ...  true, null; JSON's own spelling of them is taken too, because models mix the two
    list, tuple     array
    dict            object; a key must be a string, and the last of equal ones counts, as everywhere in JSON
    set, bytes      refused, as are names, operators (but for a sign before a number), calls and comments

It goes through the tokens once with a stack of its own: neither depth nor length makes it recurse.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\f\r\n]+)
  | (?P<string>(?P<prefix>[rRuU]?)(?:
        '''(?P<a>(?:[^\\]|\\.)*?)''' | \"""(?P<b>(?:[^\\]|\\.)*?)\"""
      | '(?!'')(?P<c>(?:[^'\\\r\n]|\\.)*)' | "(?!"")(?P<d>(?:[^"\\\r\n]|\\.)*)"
    ))
  | (?P<based>0[xX](?:_?[0-9a-fA-F])+ | 0[oO](?:_?[0-7])+ | 0[bB](?:_?[01])+)(?![\w.])
  | (?P<float>(?:(?:[0-9](?:_?[0-9])*)?\.[0-9](?:_?[0-9])*|[0-9](?:_?[0-9])*\.)(?:[eE][-+]?[0-9](?:_?[0-9])*)?(?![\w.])
      | [0-9](?:_?[0-9])*[eE][-+]?[0-9](?:_?[0-9])*(?![\w.]))
  | (?P<int>[1-9](?:_?[0-9])*|0(?:_?0)*)(?![\w.])
  | (?P<name>[^\W\d]\w*)
  | (?P<mark>[()\[\]{},:=+-])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})"
    r"|N\{(?P<name>[^{}]+)\}|(?P<one>.))",
    re.DOTALL,
)
_ESCAPED = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_MOST_DIGITS = 4_300

_Token = tuple[str, str]
"""string (as JSON) | number (as JSON) | name | mark, and its text."""


class InvalidLiteral(ValueError):
    """The text is no literal, or one that JSON has no word for."""


def arguments_json(text: str) -> str:
    """The JSON object that the arguments `a=1, b=[None]` come to. Raises InvalidLiteral.

    All arguments have names, none twice; a name may also be one of Python's keywords, such as `from`.
    """
    return _Reader(text).arguments()


class _Reader:
    """Goes through the tokens of a call's arguments."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._token: _Token = ("end", "")
        self._out: list[str] = []
        self._advance()

    def arguments(self) -> str:
        """As `arguments_json`."""
        names: set[str] = set()
        while self._token[0] == "name":
            name = self._take("name")
            if name in names:
                raise InvalidLiteral(f"the argument {name} comes twice")
            self._out += (", " if names else "", json.dumps(name, ensure_ascii=False), ": ")
            names.add(name)
            self._take("mark", "=")
            self._value()
            if self._token[0] != "end":
                self._take("mark", ",")
        self._take("end")
        return "{" + "".join(self._out) + "}"

    def _advance(self) -> None:
        self._token = next(self._tokens, ("end", ""))

    def _take(self, kind: str, text: str | None = None) -> str:
        found, is_text = self._token
        if found != kind or (text is not None and is_text != text):
            raise InvalidLiteral(f"{is_text[:40]!r} is out of place")
        self._advance()
        return is_text

    def _value(self) -> None:
        """One literal, with all that it holds."""
        containers: list[_Container] = []
        while True:
            opened = self._begin(containers)
            while containers and (not opened or self._token == ("mark", containers[-1].closer)):
                # A value is over, or the container that was just opened is empty.
                if self._end_item(containers[-1], empty=opened):
                    break
                containers.pop()
                opened = False
            if not containers:
                return

    def _begin(self, containers: list[_Container]) -> bool:
        """Read a scalar, or open a container (True). In a dict, the key comes first."""
        if containers and containers[-1].closer == "}":
            self._out += (self._take("string"), ": ")
            self._take("mark", ":")
        kind, text = self._token
        if kind == "mark" and text in "([{":
            self._advance()
            containers.append(_Container(text, len(self._out)))
            self._out.append({"(": "", "[": "[", "{": "{"}[text])
            return True
        self._out.append(self._scalar())
        return False

    def _end_item(self, container: _Container, *, empty: bool) -> bool:
        """After an item: whether another one follows. If not, the container is closed."""
        if not empty and self._token == ("mark", ","):
            self._advance()
            container.commas += 1
            if self._token != ("mark", container.closer):
                self._out.append(", ")
                return True
        self._take("mark", container.closer)
        is_tuple = container.closer == ")" and (empty or container.commas > 0)
        if is_tuple:
            self._out[container.at] = "["
        self._out.append("]" if is_tuple else container.closer.replace(")", ""))
        return False

    def _scalar(self) -> str:
        kind, text = self._token
        if kind == "mark" and text in "+-":
            self._advance()
            number = self._take("number")
            return number if text == "+" else f"-{number}"
        self._advance()
        if kind == "name" and text in _WORDS:
            return _WORDS[text]
        if kind not in ("string", "number"):
            raise InvalidLiteral(f"{text[:40]!r} is no literal")
        return text


class _Container:
    """A bracket that is open, and where it stands in the output."""

    __slots__ = ("at", "closer", "commas")

    def __init__(self, bracket: str, at: int) -> None:
        self.closer = {"(": ")", "[": "]", "{": "}"}[bracket]
        self.at = at
        self.commas = 0


def _tokens(text: str) -> Iterator[_Token]:
    """The tokens, adjacent strings joined, scalars as JSON."""
    strings: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or not (match["name"] is None or match["name"].isidentifier()):
            raise InvalidLiteral(f"{text[position : position + 40]!r} is no literal")
        position = match.end()
        kind = match.lastgroup if match["string"] is None else "string"
        if kind == "space":
            continue
        if kind == "string":
            strings.append(_string(match))
            continue
        if strings:
            yield "string", _json_string("".join(strings))
            strings = []
        yield (kind, match[0]) if kind in ("name", "mark") else ("number", _number(str(kind), match[0]))
    if strings:
        yield "string", _json_string("".join(strings))


def _number(kind: str, text: str) -> str:
    digits = text.replace("_", "")
    if kind == "int":
        if len(digits) > _MOST_DIGITS:
            raise InvalidLiteral("the number has too many digits")
        return digits.lstrip("0") or "0"
    if kind == "based":
        value = int(digits, 0)
        if value.bit_length() > 3 * _MOST_DIGITS:
            raise InvalidLiteral("the number has too many digits")
        return str(value)
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidLiteral(f"{text[:40]} is too large for a number")
    return repr(number)


def _string(match: re.Match[str]) -> str:
    body = next(body for body in match.group("a", "b", "c", "d") if body is not None)
    body = body.replace("\r\n", "\n").replace("\r", "\n")
    return body if match["prefix"] in ("r", "R") else _ESCAPE.sub(_escaped, body)


def _escaped(match: re.Match[str]) -> str:
    """What an escape stands for. As in Python, one that it does not know stands for itself."""
    if match["octal"] is not None:
        return chr(int(match["octal"], 8))
    if (code := match["x"] or match["u"] or match["U"]) is not None:
        if int(code, 16) > 0x10FFFF:
            raise InvalidLiteral(f"there is no character {match[0]}")
        return chr(int(code, 16))
    if match["name"] is not None:
        try:
            return unicodedata.lookup(match["name"])
        except KeyError as error:
            raise InvalidLiteral(f"there is no character {match[0][:40]}") from error
    if match["one"] in "xuUN":
        raise InvalidLiteral(f"{match[0]} does not say which character")
    return _ESCAPED.get(match["one"], match[0])


def _json_string(text: str) -> str:
    """Half a character, such as "\\ud800", cannot be encoded: a string that holds one is spelt in ASCII."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)

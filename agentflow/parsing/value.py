"""The end of a JSON value, found while it is being written. Pure.

`ValueScanner` takes pieces of any cut, looks at each character once, and does not recurse, however deep the value is. What
it calls complete is a value by RFC 8259, to the last comma; only that no key comes twice is not looked at.
"""

from __future__ import annotations

import re

SPACE = " \t\r\n"
PIECE = 1024
"""Characters that parsers take at once of a longer text: what is left of it is copied with each call that is found."""
BLANKS = re.compile(r"[ \t\r\n]*")

# Where a value, or a part of one, stands. Numbers have states of their own, by what came last.
_VALUE, _FIRST_ITEM, _KEY, _FIRST_KEY, _COLON, _NEXT, _STRING, _ESCAPE, _HEX, _WORD, _DONE = range(11)
_MINUS, _ZERO, _WHOLE, _POINT, _FRACTION, _E, _SIGN, _EXPONENT = range(11, 19)

_DIGITS = "0123456789"
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_NUMBER_STARTS = {"-": _MINUS, "0": _ZERO, **dict.fromkeys("123456789", _WHOLE)}
_EXPONENTS = {"e": _E, "E": _E}
_NUMBER = {
    _MINUS: {"0": _ZERO, **dict.fromkeys("123456789", _WHOLE)},
    _ZERO: {".": _POINT, **_EXPONENTS},
    _WHOLE: {**dict.fromkeys(_DIGITS, _WHOLE), ".": _POINT, **_EXPONENTS},
    _POINT: dict.fromkeys(_DIGITS, _FRACTION),
    _FRACTION: {**dict.fromkeys(_DIGITS, _FRACTION), **_EXPONENTS},
    _E: {"+": _SIGN, "-": _SIGN, **dict.fromkeys(_DIGITS, _EXPONENT)},
    _SIGN: dict.fromkeys(_DIGITS, _EXPONENT),
    _EXPONENT: dict.fromkeys(_DIGITS, _EXPONENT),
}
_WHOLE_NUMBERS = frozenset({_ZERO, _WHOLE, _FRACTION, _EXPONENT})
_STRING_BODY = re.compile(r'[^"\\\x00-\x1f]*')
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class ValueScanner:
    """Finds the end of one JSON value."""

    def __init__(self) -> None:
        self.begun = self.failed = False
        self._state = _VALUE
        self._open: list[str] = []  # closing brackets to come, innermost last
        self._in_key = False
        self._word = ""  # what is left of true, false or null
        self._hex = 0  # how many digits of an escape are to come

    @property
    def complete(self) -> bool:
        """Whether all of the value was seen."""
        return self._state == _DONE

    def scan(self, text: str, position: int) -> int:
        """Go on from `position`, no white space at first; returns the end of what belongs to the value."""
        self.begun = True
        while position < len(text) and self._state != _DONE and not self.failed:
            position = self._step(text, position)
        return position

    def ends_here(self) -> bool:
        """Whether the value is whole if no more text comes: a number's end shows in no other way."""
        return self.complete or (not self.failed and not self._open and self._state in _WHOLE_NUMBERS)

    def _step(self, text: str, position: int) -> int:
        if self._state in _NUMBER:
            return self._number(text, position)
        if self._state == _STRING:
            return self._string(text, position)
        if self._state in (_ESCAPE, _HEX, _WORD):
            return self._within(text[position], position)
        position = match_end(BLANKS, text, position)
        return position if position == len(text) else self._structure(text[position], position)

    def _structure(self, character: str, position: int) -> int:
        """The character with which a part of the value begins or ends."""
        state = self._state
        if (
            character in "}]"
            and self._open
            and self._open[-1] == character
            and state in (_NEXT, _FIRST_ITEM, _FIRST_KEY)
        ):
            self._open.pop()
            self._end_part()
        elif state in (_VALUE, _FIRST_ITEM):
            self._begin_part(character)
        elif state in (_KEY, _FIRST_KEY) and character == '"':
            self._in_key = True
            self._state = _STRING
        elif state == _COLON and character == ":":
            self._state = _VALUE
        elif state == _NEXT and character == ",":
            self._state = _KEY if self._open[-1] == "}" else _VALUE
        else:
            self.failed = True
        return position if self.failed else position + 1

    def _begin_part(self, character: str) -> None:
        if character in "{[":
            self._open.append("}" if character == "{" else "]")
            self._state = _FIRST_KEY if character == "{" else _FIRST_ITEM
        elif character == '"':
            self._state = _STRING
        elif character in _WORDS:
            self._word, self._state = _WORDS[character], _WORD
        elif character in _NUMBER_STARTS:
            self._state = _NUMBER_STARTS[character]
        else:
            self.failed = True

    def _end_part(self) -> None:
        self._state = _NEXT if self._open else _DONE

    def _number(self, text: str, position: int) -> int:
        while position < len(text):
            following = _NUMBER[self._state].get(text[position])
            if following is None:
                self.failed = self._state not in _WHOLE_NUMBERS
                if not self.failed:
                    self._end_part()
                return position
            self._state = following
            position += 1
        return position

    def _string(self, text: str, position: int) -> int:
        position = match_end(_STRING_BODY, text, position)
        if position == len(text):
            return position
        if text[position] == "\\":
            self._state = _ESCAPE
        elif text[position] != '"':
            self.failed = True
            return position
        elif self._in_key:
            self._in_key, self._state = False, _COLON
        else:
            self._end_part()
        return position + 1

    def _within(self, character: str, position: int) -> int:
        """A character after a backslash, or within a word."""
        if self._state == _WORD:
            self.failed = character != self._word[0]
            self._word = self._word[1:]
            if not self._word and not self.failed:
                self._end_part()
        elif self._state == _HEX:
            self.failed = character not in _HEX_DIGITS
            self._hex -= 1
            self._state = _HEX if self._hex else _STRING
        elif character == "u":
            self._hex, self._state = 4, _HEX
        else:
            self.failed = character not in '"\\/bfnrt'
            self._state = _STRING
        return position if self.failed else position + 1


def match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Where a pattern that always matches ends."""
    match = pattern.match(text, position)
    return position if match is None else match.end()

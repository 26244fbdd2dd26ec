"""A call that is a bare JSON object, in whichever way a model without a form of its own writes one. Pure.

    {"tool": "weather", "location": "shanghai"}
    {"name": "weather", "arguments": {"location": "shanghai"}}
    {"action": "weather", "action_input": {"location": "shanghai"}}

**Name.** `tool` names the function; where it is missing, `function`; where both are, whichever of `name` and `action` names
one that exists, `name` first.

**Arguments.** They are what `arguments` or `parameters` hold, or an object in `args`, `input` or `action_input`, byte for
byte; without any of these, an object of all keys but the name's, each with its value byte for byte.

An object of any other form, or with a key twice, is the answer's text. Whether it is one shows at its end, so that nothing
of it is passed on before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from msgspec import Struct

from agentflow.parsing.events import CallArguments, CallClosed, CallEvent, CallOpened
from agentflow.parsing.value import BLANKS, SPACE, ValueScanner, match_end

_NAME_KEYS = (("tool",), ("function",), ("name", "action"))
_ARGUMENT_KEYS = ("arguments", "parameters")
_ARGUMENT_KEYS_OF_OBJECTS = ("args", "input", "action_input")
_LANGUAGE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class _Member(Struct, frozen=True):
    """A key of the object, its value's JSON text, and both as they were written."""

    key: str
    value: str
    raw: str

    @property
    def text(self) -> str | None:
        """The value, if it is a string."""
        return str(json.loads(self.value)) if self.value.startswith('"') else None


class BareCall:
    """One object, before which the language of a Markdown fence may stand. It is a call of one of `names`, or none."""

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        self.calls = 0
        self.done = self.failed = self.opened = self.certain = False
        self._index = index
        self._names = names or ()
        self._in_language = True
        self._value = ValueScanner()
        self._raw: list[str] = []
        self._events: list[CallEvent] = []

    def feed(self, text: str) -> int:
        """As CallReader.feed."""
        position = 0 if self._value.begun else self._before(text)
        if position == len(text) or self.failed:
            return position
        end = self._value.scan(text, position)
        self._raw.append(text[position:end])
        self.failed = self._value.failed
        if self._value.complete:
            self._read("".join(self._raw))
        return end

    def take_events(self) -> list[CallEvent]:
        """As CallReader.take_events."""
        events, self._events = self._events, []
        return events

    def _before(self, text: str) -> int:
        """Go to the object's beginning."""
        for position, character in enumerate(text):
            if character == "{":
                return position
            self._in_language = self._in_language and character in _LANGUAGE
            if not self._in_language and character not in SPACE:
                self.failed = True
                return position
        return len(text)

    def _read(self, text: str) -> None:
        found = list(_members(text))
        members = {member.key: member for member in found}
        name_key = self._name_key(members)
        if name_key is None or len(members) < len(found):
            self.failed = True
            return
        name = members.pop(name_key).text or ""
        self._events = [
            CallOpened(self._index, name),
            CallArguments(self._index, _arguments(members)),
            CallClosed(self._index),
        ]
        self.done, self.calls = True, 1

    def _name_key(self, members: dict[str, _Member]) -> str | None:
        keys = next((keys for keys in _NAME_KEYS if any(key in members for key in keys)), ())
        return next((key for key in keys if key in members and members[key].text in self._names), None)


def _arguments(members: dict[str, _Member]) -> str:
    for key in _ARGUMENT_KEYS:
        if key in members:
            return members[key].value
    for key in _ARGUMENT_KEYS_OF_OBJECTS:
        if key in members and members[key].value.startswith("{"):
            return members[key].value
    return "{" + ", ".join(member.raw for member in members.values()) + "}"


def _members(text: str) -> Iterator[_Member]:
    """The members of an object that is known to be whole."""
    end = 0
    while (start := _after_space(text, end + 1)) < len(text) - 1:
        key_end = ValueScanner().scan(text, start)
        value_start = _after_space(text, _after_space(text, key_end) + 1)
        value_end = ValueScanner().scan(text, value_start)
        yield _Member(json.loads(text[start:key_end]), text[value_start:value_end], text[start:value_end])
        end = _after_space(text, value_end)


def _after_space(text: str, position: int) -> int:
    return match_end(BLANKS, text, position)

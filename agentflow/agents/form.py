"""Form: a tool's arguments as something that a small model can fill in. Pure.

The model gets the tool's fields and the end of the conversation, and nothing else to do; a grammar holds it to the schema. Texts
and lists without a bound get one, since a small model may not find the end of either: a text is no longer than what the user
said, where that is more than a sentence.

A field of a tool's schema may say where its text comes from, by the keyword `x-from-user`, and the grammar then has nothing else:

    words      words that stand together in what the user said, as they are written there. None with a day in them, where another
               field asks for the day; none across words that only ask (几点, 怎么样), and none that begin or end with a function
               word, unless there are no others, or it is all that stands between such words (巴塞罗那几点了, 从化怎么样)
    name       the same, without the words by which the tool is found, its aliases, and without single characters, unless
               nothing else is left: for a tool whose aliases are no names that it takes
    day        words that name a day or a month, in English or Chinese: next Friday, 24 December, 明天. One in the last message
               is not left out; where there is none at all, the field is left out, or a text as any other if it is required
    message    the user's last message, whole: for a tool that reads it by itself
    free       whatever the model writes

A text that says nothing of itself, not even by a description, is taken from what the user said: words of it, or a message
whole. A small model finds a place in a text far more surely than it spells one. Where the user's messages are too long to list
their phrases, such a field is a text as any other. Fields within fields are not looked at.

A field that may be left out, and takes one of few values, a flag or a number, is in the form only where the last message, or
one that it follows up, has such a value (agents/choices.py), or where the schema says `free`. No object has a field that the
schema does not name (agents/closing.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agentflow.agents.choices import has_value
from agentflow.agents.closing import closed, referred_fields, without_others
from agentflow.agents.daywords import days, undated
from agentflow.agents.userwords import has_chinese, may_be, parted, stretches, whole
from agentflow.messages import Message, Sampling, Structured, Tool
from agentflow.parsing.forced import named_schema
from agentflow.routing.direct import follows_up

MAX_TOKENS = 512
MAX_TEXT = 400  # characters of one text
LEAST_TEXT = 120  # that a text may have, however little the user said: a sentence
MAX_ITEMS = 32
FROM_USER = "x-from-user"
PHRASE = 10  # length of a phrase: a word counts 2, a Chinese, Japanese or Korean character 1
MAX_PHRASES = 400  # that a grammar chooses from
PHRASED = 4000  # characters, which have more phrases than that, unless they are hardly words
TURNS = 4  # of the conversation that are read: what a follow-up leaves out stands in the turns before it
_HEAD = (
    "You fill in a form from what the user says. Answer with one JSON object that has the form's fields, and with nothing else. "
    "Use the user's own words and numbers. Leave out fields that the user says nothing about, unless they are required."
)

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_PIECE = re.compile(rf"[{_CJK}]|[^\W{_CJK}](?:[^\s{_CJK},;!?]*[^\W{_CJK}])?")
_JOINS = re.compile(r"[ \t'\u2019-]*")
_NUMBER_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_SAYS_NOTHING = frozenset({"type", "title", "default"})  # keywords of a text that may be anything


class _Spoken(NamedTuple):
    """What the user said, the latest last; `rest`: what of it has no day in it; `aliases`: words by which the tool is found."""

    said: Sequence[str]
    rest: Sequence[str]
    aliases: Sequence[str]

    def words(self) -> list[str]:
        """Phrases, of the latest text first."""
        readings = self._readings()
        for texts in readings:
            if found := [word for text in texts for word in _words_of(text)]:
                return found
        return [phrase for text in readings[-1] for phrase in phrases(text)]

    def names(self) -> list[str]:
        """Those of them that may be names; of Chinese, whole stretches. Single characters where there is nothing else."""
        found: list[str] = []
        for texts in self._readings():
            found = [name for text in texts for name in _names_of(text, self.aliases)]
            if longer := [name for name in found if len(name) > 1]:
                return longer
        return found

    def _readings(self) -> list[list[str]]:
        """The texts to look in, the latest first: the last alone where it asks for itself, and all where that has nothing.

        Left are those that are too long to be read for phrases.
        """
        short = [text for text in reversed(self.rest) if len(text) <= PHRASED]
        alone = short[:1] if len(self.rest[-1]) <= PHRASED and not follows_up(self.said[-1]) else []
        return [alone, short] if alone else [short]


def _words_of(text: str) -> list[str]:
    bare = parted(text, ())
    uncut = whole(bare)
    return [phrase for phrase in phrases(bare) if phrase in uncut or may_be(phrase, text)]


def _names_of(text: str, aliases: Sequence[str]) -> list[str]:
    bare = parted(text, aliases)
    short = [each for each in phrases(bare) if (len(each) == 1 or not has_chinese(each)) and may_be(each, text)]
    return [*stretches(bare), *short]


def messages(conversation: Sequence[Message], tool: Tool) -> list[Message]:
    """What the model reads: the form, and the end of the conversation without its instructions."""
    lines = [_HEAD, "", f"Form: {tool.name}", *(f"  {tool.description}".splitlines() if tool.description else ())]
    lines += list(_fields(named_schema(tool)))
    end = _end(conversation)
    return [Message("system", "\n".join(lines)), *(Message(turn.role, turn.content) for turn in end)]


def sampling(tool: Tool, conversation: Sequence[Message] = (), aliases: Sequence[str] = ()) -> Sampling:
    """The likeliest arguments, in the tool's schema. `aliases`: words by which the tool is found."""
    schema = named_schema(tool)
    said = [turn.content for turn in _end(conversation) if turn.role == "user" and turn.content]
    if said and isinstance(schema.get("properties"), dict):
        schema = _from_user(schema, said, aliases)
    schema = bounded(closed(schema), min(MAX_TEXT, max(LEAST_TEXT, *map(len, said))) if said else MAX_TEXT)
    return Sampling(temperature=0.0, max_tokens=MAX_TOKENS, structured=Structured("json", schema, "tools"))


def phrases(text: str) -> list[str]:
    """The words of a text that stand together, as they are written there; the short ones first. Figures alone are none.

    Nothing for a long text.
    """
    if len(text) > PHRASED:
        return []
    pieces = [
        (found.start(), found.end(), 1 if re.match(f"[{_CJK}]", found[0]) else 2) for found in _PIECE.finditer(text)
    ]
    found: list[str] = []
    for first, (start, _, _) in enumerate(pieces):
        length, before = 0, start
        for begin, end, cost in pieces[first:]:
            length += cost
            if length > PHRASE or not _JOINS.fullmatch(text, before, begin):
                break
            found.append(text[start:end])
            before = end
        if len(found) > MAX_PHRASES:
            return []
    return sorted(dict.fromkeys(phrase for phrase in found if re.search(r"[^\W\d]", phrase)), key=len)


def bounded(schema: Any, most: int = MAX_TEXT) -> Any:
    """A copy of a JSON schema in which every text and list has a largest length, a text `most` characters.

    Numbers have no bounds in it: a grammar would make 5 of the 50 that the user said. Arguments are checked against the tool's
    own schema, which tells.
    """
    if isinstance(schema, list):
        return [bounded(each, most) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {
        key: value if key in ("enum", "const", "default", "examples") else bounded(value, most)
        for key, value in schema.items()
    }
    if copy.get("type") in ("integer", "number"):
        return {key: value for key, value in copy.items() if key not in _NUMBER_BOUNDS}
    if copy.get("type") == "string" and not {"maxLength", "enum", "const", "format", "pattern"} & copy.keys():
        copy["maxLength"] = max(most, int(copy.get("minLength", 0)))
    if copy.get("type") == "array" and "maxItems" not in copy:
        copy["maxItems"] = max(MAX_ITEMS, int(copy.get("minItems", 0)))
    return copy


def _end(conversation: Sequence[Message]) -> list[Message]:
    """The last turns that are read, from a user's on."""
    said = [message for message in conversation if message.role in ("user", "assistant") and message.content]
    end = said[-TURNS:]
    while end and end[0].role != "user":
        end = end[1:]
    return end


def _from_user(schema: dict[str, Any], said: Sequence[str], aliases: Sequence[str]) -> dict[str, Any]:
    """The form with the texts that the user has said where it asks for those, and without what the user said no value of.

    A day in the last message is not left out.
    """
    fields: dict[str, Any] = schema["properties"]
    dated = {name for name, field in fields.items() if isinstance(field, dict) and field.get(FROM_USER) == "day"}
    rest = [undated(text) for text in said] if dated else said
    required = list(schema.get("required", ()))
    spoken = _Spoken(said, rest, aliases)
    taken = {name: _taken(field, spoken, required=name in required) for name, field in fields.items()}
    asked = rest if follows_up(said[-1]) else rest[-1:]
    needed = {*required, *referred_fields(schema)}
    kept = {
        name: fields[name] if field is None else field
        for name, field in taken.items()
        if name in needed or (field is not None and _may_have(name, schema, asked))
    }
    if days(said[-1]):
        required += [name for name in kept if name in dated and name not in required]
    left = {**schema, "properties": kept, "required": required}
    return without_others(left) if len(kept) < len(fields) else left


def _may_have(name: str, schema: dict[str, Any], asked: Sequence[str]) -> bool:
    """Whether what the user asks has something for a field that may be left out."""
    field = schema["properties"][name]
    if not isinstance(field, dict) or field.get(FROM_USER) is not None:
        return True
    return has_value(field, name, schema, asked)


def _taken(field: Any, spoken: _Spoken, *, required: bool) -> Any:
    """A field's schema, with the texts that the user has said where it asks for those.

    None where it asks for what the user did not say, and may be left out.
    """
    if not isinstance(field, dict) or field.get("type") != "string":
        return field
    source = field.get(FROM_USER, "anything" if field.keys() <= _SAYS_NOTHING else "free")
    choices: list[str] = []
    if source == "message":
        choices = [spoken.said[-1]]
    elif source == "day":
        choices = next((them for text in reversed(spoken.said) if (them := days(text))), [])
        if not choices and not required:
            return None
    elif source in ("words", "name", "anything"):
        choices = (spoken.names() if source == "name" else []) or spoken.words()
        if choices and source == "anything":
            choices += reversed(spoken.said)
    choices = list(dict.fromkeys(choice for choice in choices if len(choice) <= MAX_TEXT))
    return {"type": "string", "enum": choices} if 0 < len(choices) <= MAX_PHRASES else field


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    for name, field in properties.items() if isinstance(properties, dict) else ():
        kind, said = "", ""
        if isinstance(field, dict):
            kind = " or ".join(map(str, field["enum"])) if "enum" in field else str(field.get("type", ""))
            said = str(field.get("description", ""))
        need = "required" if name in required else "optional"
        yield f"- {name} ({', '.join(filter(None, (kind, need)))}){': ' if said else ''}{said}"

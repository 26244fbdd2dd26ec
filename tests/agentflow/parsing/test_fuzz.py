"""Answers that are cut and corrupted at random: nothing crashes, nothing is lost, and no call is closed that is not whole.

A call counts as whole only if Python's own readers find it in the text. Here are some thousands; for more, such as before
a release: `python -m tests.agentflow.parsing.test_fuzz 100000`.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import unicodedata
from collections import Counter

import pytest

from agentflow.parsing.events import CallArguments, CallClosed, CallOpened, Malformed, ParserEvent, Text, ToolParser
from tests.agentflow.parsing.cases import FORCED, MARKED, marked, parsed

FORMS = ("hermes", "llama3", "mistral", "pythonic", "bare", "list", "named")
SNIPPETS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "```",
        "```json\n",
        "```\n",
    ),
    *(
        "<|python_start|>",
        "<|python_end|>",
        '{"name": "f", "arguments": ',
        '{"tool": "f"',
        "f(",
        "[f(a=1)",
        '{"a": [1, ',
        "é",
    ),
    *(
        '"',
        "'",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ":",
        ";",
        "=",
        " ",
        "\n",
        "x",
        "0",
        "-",
        "null",
        "None",
        '\\"',
        "#",
    ),
]
LAYOUT = {
    "hermes": [r"\s", "<tool_call>", "</tool_call>", "<[/tool_cal]*$"],
    "llama3": [r"\s", ";", r"<\|python_tag\|>"],
    "mistral": [r"\s", r"\[TOOL_CALLS\]", r"[\[\],]"],
    "pythonic": [r"\s", r"<\|python_start\|>", r"<\|python_end\|>", "<[|python_ed>]*$", r"[\[\],]"],
    "bare": [r"\s", "```", r"```[A-Za-z0-9_-]+(?=\s*{)", "`+$"],
    "list": [r"\s", r"[\[\],]"],
    "named": [r"\s"],
}
"""What may stand around whole calls, and is dropped."""

_HEADING = re.compile(r'([^\s\[\]{},:"]+)\s*(\[CALL_ID\]\s*\S+?\s*)?(\[ARGS\])?\s*(?={)')
"""What stands before the arguments in Mistral's newer form."""


def fuzz(count: int, seed: int = 4) -> Counter[str]:
    """Try `count` texts; returns how many events of which kind there were."""
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(count):
        form = chance.choice(FORMS)
        text = corrupted(chance, chosen(chance, form))
        cuts = sorted(chance.randint(0, len(text)) for _ in range(chance.randint(0, 6)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        try:
            events = parsed(parser(form), pieces)
            assert events == parsed(parser(form), [text])
            check(form, text, events)
        except Exception as error:
            raise AssertionError(f"{form}, {pieces!r}") from error
        seen.update(type(event).__name__ for event in events)
    return seen


def parser(form: str) -> ToolParser:
    """A parser of the format, or one of answers that are calls alone."""
    if form in ("list", "named"):
        return next(make() for name, (make, _, _) in FORCED.items() if name.startswith(form))
    return marked(form)


def chosen(chance: random.Random, form: str) -> str:
    """One of the cases of this format, or two, or now and then of another."""
    forced = [text for name, (_, text, _) in FORCED.items() if name.startswith(form)]
    texts = forced or [text for of, (text, _) in MARKED.values() if of == form or chance.random() < 0.02]
    return "".join(chance.choice(texts) for _ in range(chance.choice((1, 1, 2))))


def corrupted(chance: random.Random, text: str) -> str:
    """The text with a few things done to it, or none, and perhaps without its end."""
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
        at = chance.randint(0, len(text))
        end = min(len(text), at + chance.randint(0, 5))
        middle = chance.choice((chance.choice(SNIPPETS), "", chr(chance.randrange(1, 0xD800)), text[at:end] * 2))
        text = text[:at] + middle + text[end:]
    return text[: chance.randint(0, len(text))] if chance.random() < 0.3 else text


def check(form: str, text: str, events: list[ParserEvent]) -> None:
    """Walk through the text with the events: each takes its part of it, and between them there is layout alone.

    What looks like layout may be text: all places are followed in which the walk may be.
    """
    places, opened, arguments = {0}, "", ""
    for event in events:
        match event:
            case CallOpened(name=name):
                opened, arguments = name, ""
            case CallArguments(text=more):
                arguments += more
            case CallClosed():
                value = json.loads(arguments, parse_constant=refuse)
                places = calls_ends(form, text, places, (opened, arguments, value))
            case Text(piece) | Malformed(piece):
                places = {at + len(piece) for at in after_layout(form, text, places) if text.startswith(piece, at)}
        assert places, f"lost before {event}"
    assert len(text) in after_layout(form, text, places), f"lost at the end, after one of {places}"


def after_layout(form: str, text: str, places: set[int]) -> set[int]:
    """Where one may be after layout, or none, or some of it."""
    found, new = set(places), set(places)
    while new:
        matches = [re.compile(layout).match(text, at) for at in new for layout in LAYOUT[form]]
        new = {match.end() for match in matches if match} - found
        found |= new
    return found


def calls_ends(form: str, text: str, places: set[int], call: tuple[str, str, object]) -> set[int]:
    """Where the call may end that stands next in the text."""
    return {end for at in after_layout(form, text, places) if (end := call_end(form, text, at, call))}


def call_end(form: str, text: str, position: int, call: tuple[str, str, object]) -> int | None:
    """Where the call ends, by Python's own readers; None if it does not stand here."""
    name, arguments, value = call
    if form == "named":
        return position + len(arguments) if text.startswith(arguments, position) else None
    if form == "pythonic":
        return python_call_end(text, position, name, value)
    if text.startswith("{", position):
        return object_end(text, position, name, arguments)
    heading = _HEADING.match(text, position)
    if form != "mistral" or heading is None or heading[1] != name or not text.startswith(arguments, heading.end()):
        return None
    return heading.end() + len(arguments)


def object_end(text: str, position: int, name: str, arguments: str) -> int | None:
    """Where an object ends that is this call."""
    try:
        found, end = json.JSONDecoder(strict=False).raw_decode(text, position)
    except ValueError:
        return None
    written = text[position:end]
    stands = arguments in written or arguments == "{}" or members_stand(arguments, written)
    return end if name in found.values() and stands else None


def members_stand(arguments: str, text: str) -> bool:
    """Whether the arguments stand in the object, or all of their members do."""
    return arguments in text or all(json.dumps(key)[1:-1] in text or key in text for key in json.loads(arguments))


def python_call_end(text: str, position: int, name: str, value: object) -> int | None:
    """Where a call in Python's syntax ends, if one stands here and means this."""
    if not re.compile(re.escape(name) + r"\s*\(").match(text, position):
        return None
    for closing in re.finditer(r"\)", text[position:]):
        call = "f" + text[position + len(name) : position + closing.end()]
        try:
            tree = ast.parse(call.replace("\f", " "), mode="eval").body
        except (SyntaxError, ValueError):
            continue
        assert isinstance(tree, ast.Call)
        words = {"true": True, "false": False, "null": None}
        found = {
            item.arg: words[item.value.id] if isinstance(item.value, ast.Name) else ast.literal_eval(item.value)
            for item in tree.keywords
        }
        assert isinstance(value, dict)
        assert json.loads(json.dumps(found)) == {
            unicodedata.normalize("NFKC", key): item for key, item in value.items()
        }
        return position + closing.end()
    return None


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@pytest.mark.filterwarnings("ignore")  # of escapes that Python does not know
def test_nothing_is_lost_and_no_call_is_closed_that_is_not_whole() -> None:
    seen = fuzz(3_000)
    assert min(seen[kind] for kind in ("Text", "CallOpened", "CallArguments", "CallClosed", "Malformed")) > 300


if __name__ == "__main__":
    print(fuzz(int(sys.argv[1]), *map(int, sys.argv[2:])))

"""Calls that a reader understands only once they are whole: where they begin and end, and what is lost never."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from agentflow.parsing.events import CallClosed, Malformed, ParserEvent, Text
from agentflow.parsing.wholecalls import ReadCall, Shape, WholeCallParser
from tests.agentflow.parsing.cases import NAMES, TRICKY, call, parsed

TAGS = Shape("<call>", "</call>", "tags", tags=(("<p>", "</p>"),))
LIST = Shape("<calls>", "</calls>", "call", bare="[")
HEADED = Shape("<c>", "</c>", "arguments", section=("<s>", "</s>"))
OPEN = Shape("<f>", None, "call")


def read_tags(text: str) -> Sequence[ReadCall]:
    """`<call>f<p>x</p></call>`: a name, and one value."""
    name, _, value = text.removeprefix("<call>").removesuffix("</call>").partition("<p>")
    arguments = {"p": value.removesuffix("</p>")} if value else {}
    return [ReadCall(name.strip(), json.dumps(arguments))] if name.strip() else []


def read_list(text: str) -> Sequence[ReadCall]:
    """A JSON list of calls, or one of them."""
    found = json.loads(text.removeprefix("<calls>").removesuffix("</calls>").removeprefix("<f>"))
    found = found if isinstance(found, list) else [found]
    calls = [ReadCall(each["name"], json.dumps(each["arguments"])) for each in found if isinstance(each, dict)]
    return [call._replace(arguments='{"a": 2}') if call.name == "changed" else call for call in calls]


def read_headed(text: str) -> Sequence[ReadCall]:
    """`<s><c>f {}</c></s>`, with these arguments and no others: the true ones are not shown."""
    assert text.startswith("<s><c>")
    assert text.endswith("{}</c></s>")
    return [ReadCall(text[len("<s><c>") : -len("{}</c></s>")].strip(), "{}")]


READERS = {id(TAGS): read_tags, id(LIST): read_list, id(HEADED): read_headed, id(OPEN): read_list}

CASES: list[tuple[Shape, tuple[str, list[ParserEvent] | None]]] = [
    (TAGS, ("Hello <call", [Text("Hello <call")])),
    (TAGS, (" \n", [Text(" \n")])),
    (TAGS, ("Hi <call>f</call>\n bye", [Text("Hi "), *call(0, "f", "{}"), Text("\n bye")])),
    (TAGS, ("\n<call>f<p>a</p></call>\n<call>f</call> ", [*call(0, "f", '{"p": "a"}'), *call(1, "f", "{}")])),
    (TAGS, ("<call>f<p>a </call> b</p></call>", call(0, "f", '{"p": "a </call> b"}'))),
    (TAGS, ("<call>f<p>zqqz </call></call> zqz</p></call>", call(0, "f", '{"p": "zqqz </call></call> zqz"}'))),
    (TAGS, ("<call>f<p>a<p>b</p></call>", None)),
    (TAGS, ("<call>f<p>a</p> <p>b</p></call>", None)),
    (TAGS, (" <call> </call> x", [Malformed(" <call> </call>"), Text(" x")])),
    (TAGS, ("<call>f<p>a</call> b", [Malformed("<call>f<p>a</call> b")])),
    (TAGS, ("<call>f<p>" + "</call>" * 17, [Malformed("<call>f<p>" + "</call>" * 16), Text("</call>")])),
    (TAGS, (f"<call>f<p>{'x' * 40_000}</p></call>", [Malformed(f"<call>f<p>{'x' * 40_000}</p></call>")])),
    (
        LIST,
        (
            '<calls>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"s": "]</calls>"}}]</calls>',
            [*call(0, "f", "{}"), *call(1, "g", '{"s": "]</calls>"}')],
        ),
    ),
    (LIST, (' [{"name": "f", "arguments": {}}] ok', [*call(0, "f", "{}"), Text(" ok")])),
    (LIST, ('[{"name": "unknown", "arguments": {}}]', [Text('[{"name": "unknown", "arguments": {}}]')])),
    (LIST, ("[1, 2] and <calls>[]</calls>", [Text("[1, 2] and "), Malformed("<calls>[]</calls>")])),
    (LIST, ("[1, 2", [Text("[1, 2")])),
    (LIST, ('<calls>[{"name": "f"]</calls> x', [Malformed('<calls>[{"name": "f"]</calls>'), Text(" x")])),
    (LIST, ('<calls>[{"name": "f", "arguments": [1]}]</calls>', None)),
    (LIST, ('<calls>[{"name": "", "arguments": {}}]</calls>', None)),
    (LIST, ("<calls>none</calls>", None)),
    (LIST, ('<calls>[{"name": "f", "arguments": {}}, 1]</calls>', None)),
    (LIST, ('<calls>[{"name": "changed", "arguments": {"a": 1}}]</calls>', None)),
    (HEADED, (f"<s> <c>f {TRICKY}</c>\n<c>g {{}}</c> </s>", [*call(0, "f", TRICKY), *call(1, "g", "{}")])),
    (HEADED, ("<c>f {}</c>", [Text("<c>f {}</c>")])),
    (HEADED, ("<s></s>!", [Malformed("<s></s>"), Text("!")])),
    (HEADED, ("<s> ", [Malformed("<s> ")])),
    (HEADED, ("<s><c>f {}</c><", call(0, "f", "{}"))),
    (HEADED, ("<s><c>f {}</c> x <", [*call(0, "f", "{}"), Text(" x <")])),
    (HEADED, ("<s>so <c>f {}</c></s>", [Text("<s>so "), *call(0, "f", "{}")])),
    (HEADED, ("<s>so</s>", [Text("<s>so"), Text("</s>")])),
    (OPEN, ('<f> {"name": "f", "arguments": {}} x', [*call(0, "f", "{}"), Text(" x")])),
    (OPEN, ("<f> no", [Malformed("<f> "), Text("no")])),
    (OPEN, ('<f>{"name" 1}', [Malformed('<f>{"name" '), Text("1}")])),
]


def fresh(shape: Shape) -> WholeCallParser:
    """A parser of this shape."""
    return WholeCallParser(shape, READERS[id(shape)], NAMES)


def joined(events: list[ParserEvent]) -> list[ParserEvent]:
    """With neighbouring texts as one."""
    found: list[ParserEvent] = []
    for event in events:
        if found and isinstance(event, Text) and isinstance(last := found[-1], Text):
            found[-1] = Text(last.text + event.text)
        else:
            found.append(event)
    return found


@pytest.mark.parametrize(("shape", "case"), CASES)
def test_texts_come_to_their_events_however_they_are_cut(
    shape: Shape, case: tuple[str, list[ParserEvent] | None]
) -> None:
    text, events = case
    expected = joined([Malformed(text)] if events is None else events)
    assert parsed(fresh(shape), [text]) == expected
    assert parsed(fresh(shape), text) == expected
    if len(text) < 1000:
        for at in range(len(text)):
            assert parsed(fresh(shape), [text[:at], text[at:]]) == expected, at


@pytest.mark.parametrize(("shape", "case"), [each for each in CASES if len(each[1][0]) < 1000])
def test_no_part_of_a_text_has_a_call_that_the_whole_has_not(
    shape: Shape, case: tuple[str, list[ParserEvent] | None]
) -> None:
    text, events = case
    for at in range(len(text)):
        found = [event for event in parsed(fresh(shape), [text[:at]]) if not isinstance(event, Text | Malformed)]
        assert found == [event for event in events or () if not isinstance(event, Text | Malformed)][: len(found)]
        assert not found or isinstance(found[-1], CallClosed)

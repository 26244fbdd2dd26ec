"""Every case is parsed whole, a character at a time, cut at each point, and cut anywhere by hypothesis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.messages import Tool
from agentflow.toolcall import CallArguments, CallClosed, CallOpened
from agentflow.toolparser import (
    FORMATS,
    ListParser,
    Malformed,
    MarkedParser,
    NamedParser,
    ParserEvent,
    Text,
    ToolParser,
    named_schema,
    required_schema,
)

NAMES = frozenset({"f", "get_weather"})


def hermes() -> ToolParser:
    return MarkedParser(FORMATS["hermes"], NAMES)


def llama3() -> ToolParser:
    return MarkedParser(FORMATS["llama3"], NAMES)


def named() -> ToolParser:
    return NamedParser("f")


def call(index: int, name: str, arguments: str) -> list[ParserEvent]:
    return [CallOpened(index, name), CallArguments(index, arguments), CallClosed(index)]


TRICKY = r'{"s": "br{ace} \"quoted\\\" [x] \u00e9\ud83e\udd86 </tool_call> ;", "n": [1, {"m": null}], "é": "日本"}'

CASES: dict[str, tuple[Callable[[], ToolParser], str, list[ParserEvent]]] = {
    "plain text": (hermes, "Hello, world.", [Text("Hello, world.")]),
    "no text": (hermes, "", []),
    "white space alone": (hermes, " \n", [Text(" \n")]),
    "one call": (
        hermes,
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        call(0, "f", '{"a": 1}'),
    ),
    "text, then a call": (
        hermes,
        'Let me look.\n<tool_call>{"name":"f","arguments":{}}</tool_call>',
        [Text("Let me look.\n"), *call(0, "f", "{}")],
    ),
    "white space, then a call": (hermes, '\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>', call(0, "f", "{}")),
    "two calls": (
        hermes,
        (
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_weather", "arguments": {"b": "x"}}\n</tool_call>\n'
        ),
        [*call(0, "f", '{"a": 1}'), *call(1, "get_weather", '{"b": "x"}')],
    ),
    "a call, then text": (
        hermes,
        '<tool_call>{"name":"f","arguments":{}}</tool_call>\n Done.',
        [*call(0, "f", "{}"), Text("\n Done.")],
    ),
    "arguments before the name": (
        hermes,
        f'<tool_call>{{"arguments": {TRICKY}, "name": "f"}}</tool_call>',
        call(0, "f", TRICKY),
    ),
    "braces, escapes and markers in strings": (
        hermes,
        f'<tool_call>{{"name": "f", "arguments": {TRICKY}}}</tool_call>',
        call(0, "f", TRICKY),
    ),
    "spacing is kept byte for byte": (
        hermes,
        '<tool_call>{ "name" :\t"f" , "arguments" : { "a" :\n1 ,"b":[ ] } }</tool_call>',
        call(0, "f", '{ "a" :\n1 ,"b":[ ] }'),
    ),
    "keys of no interest": (
        hermes,
        '<tool_call>{"type": "function", "id": 12, "x": {"name": "g"}, "name": "f", "arguments": {}}</tool_call>',
        call(0, "f", "{}"),
    ),
    "an escaped name": (hermes, r'<tool_call>{"n\u0061me": "\u0066", "arguments": {}}</tool_call>', call(0, "f", "{}")),
    "no arguments": (hermes, '<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    "arguments that are a number": (
        hermes,
        '<tool_call>{"name": "f", "arguments": -1.5e3}</tool_call>',
        call(0, "f", "-1.5e3"),
    ),
    "arguments that are a string": (
        hermes,
        r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>',
        call(0, "f", r'"{\"a\": 1}"'),
    ),
    "parameters for arguments": (
        hermes,
        '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>',
        call(0, "f", '{"a": 1}'),
    ),
    "no closer at the end": (hermes, '<tool_call>{"name": "f", "arguments": {}}\n</tool_', call(0, "f", "{}")),
    "no closer before text": (
        hermes,
        '<tool_call>{"name": "f", "arguments": {}} and',
        [*call(0, "f", "{}"), Text(" and")],
    ),
    "what only begins like a marker": (hermes, "a <tool_cal> b <tool_", [Text("a <tool_cal> b <tool_")]),
    "a marker after its own beginning": (
        hermes,
        '<tool_<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        [Text("<tool_"), *call(0, "f", "{}")],
    ),
    "a closer alone": (hermes, "</tool_call>", [Text("</tool_call>")]),
    "unfinished before the name": (hermes, 'x<tool_call>{"na', [Text("x"), Malformed('<tool_call>{"na')]),
    "unfinished in the arguments": (
        hermes,
        '<tool_call>{"name": "f", "arguments": {"a": "b',
        [
            CallOpened(0, "f"),
            CallArguments(0, '{"a": "b'),
            Malformed('<tool_call>{"name": "f", "arguments": {"a": "b', 0),
        ],
    ),
    "unfinished after the arguments": (
        hermes,
        '<tool_call>{"name": "f", "arguments": {}',
        [CallOpened(0, "f"), CallArguments(0, "{}"), Malformed('<tool_call>{"name": "f", "arguments": {}', 0)],
    ),
    "an opener alone": (hermes, "<tool_call>", [Malformed("<tool_call>")]),
    "no JSON, then a good call": (
        hermes,
        '<tool_call>f(1)</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>',
        [Malformed("<tool_call>f(1)</tool_call>"), *call(0, "f", "{}")],
    ),
    "no name": (
        hermes,
        '<tool_call>{"arguments": {}}</tool_call>!',
        [Malformed('<tool_call>{"arguments": {}}</tool_call>'), Text("!")],
    ),
    "a name that is a number": (
        hermes,
        '<tool_call>{"name": 5}</tool_call>',
        [Malformed('<tool_call>{"name": 5}</tool_call>')],
    ),
    "a name that is half a character": (
        hermes,
        r'<tool_call>{"name": "\ud800"}</tool_call>',
        [Malformed(r'<tool_call>{"name": "\ud800"}</tool_call>')],
    ),
    "brackets that do not match": (
        hermes,
        '<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>',
        [
            CallOpened(0, "f"),
            CallArguments(0, '{"a": '),
            Malformed('<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>', 0),
        ],
    ),
    "arguments twice": (
        hermes,
        '<tool_call>{"name": "f", "arguments": {}, "arguments": {}}</tool_call>',
        [
            CallOpened(0, "f"),
            CallArguments(0, "{}"),
            Malformed('<tool_call>{"name": "f", "arguments": {}, "arguments": {}}</tool_call>', 0),
        ],
    ),
    "a failed call keeps its number": (
        hermes,
        '<tool_call>{"name": "f", "arguments": [}</tool_call><tool_call>{"name": "f"}</tool_call>',
        [
            CallOpened(0, "f"),
            CallArguments(0, "["),
            Malformed('<tool_call>{"name": "f", "arguments": [}</tool_call>', 0),
            *call(1, "f", "{}"),
        ],
    ),
    "llama3: a bare call": (llama3, '{"name": "f", "parameters": {"a": 1}}', call(0, "f", '{"a": 1}')),
    "llama3: after the tag": (llama3, '<|python_tag|>{"name": "g", "parameters": {}}', call(0, "g", "{}")),
    "llama3: two calls": (
        llama3,
        '{"name": "f", "parameters": {"a": ";"}}; {"parameters": {}, "name": "get_weather"}',
        [*call(0, "f", '{"a": ";"}'), *call(1, "get_weather", "{}")],
    ),
    "llama3: another function": (
        llama3,
        '{"name": "Bob", "parameters": {}}',
        [Text('{"name": "Bob", "parameters": {}}')],
    ),
    "llama3: an object that is no call": (llama3, ' {"name": "f", "age": 3} ok', [Text(' {"name": "f", "age": 3} ok')]),
    "llama3: an object in text": (
        llama3,
        'So: {"name": "f", "parameters": {}}',
        [Text('So: {"name": "f", "parameters": {}}')],
    ),
    "llama3: an unfinished object": (llama3, '{"name": "f", "par', [Text('{"name": "f", "par')]),
    "llama3: text after a call": (llama3, '{"name": "f", "parameters": {}} ; so', [*call(0, "f", "{}"), Text(" ; so")]),
    "llama3: code after the tag": (llama3, "<|python_tag|>print(1)", [Malformed("<|python_tag|>print(1)")]),
    "llama3: a failed call": (
        llama3,
        '{"name": "f", "parameters": {]} x',
        [CallOpened(0, "f"), CallArguments(0, "{"), Malformed('{"name": "f", "parameters": {]} x', 0)],
    ),
    "list: two calls": (
        ListParser,
        f' [ {{"name": "f", "arguments": {TRICKY}}} ,\n{{"arguments": {{}}, "name": "g"}} ] ',
        [*call(0, "f", TRICKY), *call(1, "g", "{}")],
    ),
    "list: one object": (ListParser, '{"name": "f", "arguments": {"a": []}}\n', call(0, "f", '{"a": []}')),
    "list: no text": (ListParser, "", [Malformed("")]),
    "list: cut between calls": (ListParser, '[{"name": "f"}, ', [*call(0, "f", "{}"), Malformed(", ")]),
    "list: cut in the second call": (
        ListParser,
        '[{"name": "f"}, {"name": "g", "arguments": {"a',
        [
            *call(0, "f", "{}"),
            CallOpened(1, "g"),
            CallArguments(1, '{"a'),
            Malformed(', {"name": "g", "arguments": {"a', 1),
        ],
    ),
    "list: text": (ListParser, "Sorry.", [Malformed("Sorry.")]),
    "list: an object after the object": (ListParser, '{"name": "f"}]', [*call(0, "f", "{}"), Malformed("]")]),
    "list: no call within": (ListParser, '[{"a": 1}]', [Malformed('[{"a": 1}]')]),
    "named: arguments": (named, TRICKY, call(0, "f", TRICKY)),
    "named: white space around": (named, f"\n {TRICKY} \n", call(0, "f", TRICKY)),
    "named: a number": (named, "12", call(0, "f", "12")),
    "named: no text": (named, " ", [Malformed(" ")]),
    "named: unfinished": (
        named,
        '{"a": "b\\',
        [CallOpened(0, "f"), CallArguments(0, '{"a": "b\\'), Malformed('{"a": "b\\', 0)],
    ),
    "named: more after the arguments": (named, "{} {}", [*call(0, "f", "{}"), Malformed("{}")]),
    "named: text": (named, "Sorry.", [CallOpened(0, "f"), Malformed("Sorry.", 0)]),
}


def parsed(parser: ToolParser, pieces: Iterable[str]) -> list[ParserEvent]:
    """The events, with neighbouring pieces of text, or of one call's arguments, joined."""
    events: list[ParserEvent] = []
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish():
        last = events[-1] if events else None
        if isinstance(event, Text) and isinstance(last, Text):
            events[-1] = Text(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and event.index == last.index:
            events[-1] = CallArguments(event.index, last.text + event.text)
        else:
            events.append(event)
    return events


@pytest.mark.parametrize("case", CASES)
def test_the_text_is_understood_whole_and_character_by_character(case: str) -> None:
    make, text, expected = CASES[case]
    assert parsed(make(), [text]) == expected
    assert parsed(make(), text) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_cut_at_any_point_changes_nothing(case: str) -> None:
    make, text, expected = CASES[case]
    for cut in range(len(text) + 1):
        assert parsed(make(), [text[:cut], text[cut:]]) == expected, f"cut at {cut}"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_number_of_cuts_changes_nothing(data: st.DataObject) -> None:
    make, text, expected = CASES[data.draw(st.sampled_from(sorted(CASES)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(make(), pieces) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.text(min_size=1, max_size=9), JSON, st.booleans(), st.booleans()), min_size=1, max_size=3
    ),
    size=st.integers(1, 9),
)
def test_whatever_is_called_comes_out_as_it_was_written(calls: list[tuple[str, object, bool, bool]], size: int) -> None:
    expected: list[ParserEvent] = []
    written: list[str] = []
    for index, (name, value, name_first, ascii_only) in enumerate(calls):
        arguments = json.dumps(value, ensure_ascii=ascii_only)
        parts = [f'"name": {json.dumps(name, ensure_ascii=ascii_only)}', f'"arguments": {arguments}']
        written.append("{" + ", ".join(parts if name_first else reversed(parts)) + "}")
        expected += call(index, name, arguments)
    marked = "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in written)
    listed = "[" + ", ".join(written) + "]"
    for parser, text in ((hermes(), marked), (ListParser(), listed)):
        assert parsed(parser, [text[at : at + size] for at in range(0, len(text), size)]) == expected


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": ', "{}", "}", "<tool", " ", "x", ";", "["]
        ),
        max_size=12,
    ),
    make=st.sampled_from([hermes, llama3, ListParser, named]),
)
def test_garbage_is_never_lost_nor_seen_differently_by_its_cut(
    pieces: list[str], make: Callable[[], ToolParser]
) -> None:
    text = "".join(pieces)
    events = parsed(make(), [text])
    assert parsed(make(), text) == events
    if not any(isinstance(event, CallOpened) for event in events):
        given_back = "".join(event.text for event in events if isinstance(event, Text | Malformed))
        assert "".join(given_back.split()) == "".join(text.split())


def test_a_value_nested_a_hundred_thousand_deep_is_passed_on() -> None:
    arguments = "[" * 100_000 + "]" * 100_000
    assert parsed(named(), [arguments]) == call(0, "f", arguments)


def test_text_is_passed_on_at_once_when_it_cannot_be_a_marker() -> None:
    parser = hermes()
    assert parser.feed("Hello <b") == [Text("Hello <b")]
    assert parser.feed("<tool") == []
    assert parser.feed("s>") == [Text("<tools>")]


def test_arguments_are_passed_on_while_they_are_written() -> None:
    parser = hermes()
    parser.feed('<tool_call>{"name": "f", "arguments": ')
    assert parser.feed('{"a": "he') == [CallArguments(0, '{"a": "he')]
    assert parser.feed("llo") == [CallArguments(0, "llo")]


TREE = Tool(
    "plant",
    parameters={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "tree": {"$ref": "#/$defs/Tree"},
            "again": {"$ref": "#"},
            "$ref": {"type": "string"},
            "default": {"$ref": "#/$defs/Leaf"},
        },
        "required": ["tree"],
        "additionalProperties": False,
        "default": {"$ref": "#/data, not a reference"},
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {"left": {"$ref": "#/$defs/Tree"}, "leaf": {"$ref": "#/$defs/Leaf"}},
                "additionalProperties": False,
            },
            "Leaf": {"type": "integer"},
        },
    },
)
PLAIN = Tool("plain")


@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        ([{"name": "plant", "arguments": {"tree": {"left": {"leaf": 1}}}}], True),
        ([{"name": "plant", "arguments": {"tree": {"left": {"leaf": "x"}}}}], False),
        ([{"name": "plant", "arguments": {"tree": {}, "again": {"tree": {}}, "$ref": "x", "default": 2}}], True),
        ([{"name": "plant", "arguments": {"tree": {}, "again": {}}}], False),
        ([{"name": "plain", "arguments": {}}, {"name": "plain", "arguments": {}}], True),
        ([{"name": "plain", "arguments": {"x": 1}}], False),
        ([{"name": "other", "arguments": {}}], False),
        ([], False),
    ],
)
def test_the_schema_of_required_calls_keeps_each_tools_own_references(answer: list[object], valid: bool) -> None:
    schema = required_schema([TREE, PLAIN], parallel=True)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(answer) is valid


def test_a_single_call_is_an_object() -> None:
    schema = required_schema([TREE, PLAIN], parallel=False)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"name": "plant", "arguments": {"tree": {}}})
    assert not validator.is_valid([{"name": "plain", "arguments": {}}])


def test_building_a_schema_leaves_the_tool_as_it_was() -> None:
    before = json.dumps(TREE.parameters)
    required_schema([TREE], parallel=True)
    assert json.dumps(TREE.parameters) == before


def test_a_tool_without_parameters_takes_none() -> None:
    validator = jsonschema.Draft202012Validator(named_schema(PLAIN))
    assert validator.is_valid({})
    assert not validator.is_valid({"a": 1})

"""Every case is parsed whole, a character at a time, cut at each point, and cut anywhere by hypothesis."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.parsing.events import CallArguments, CallOpened, Malformed, ParserEvent, Text
from tests.agentflow.parsing.cases import MARKED, call, marked, parsed


@pytest.mark.parametrize("case", MARKED)
def test_the_text_is_understood_whole_and_character_by_character(case: str) -> None:
    form, (text, expected) = MARKED[case]
    assert parsed(marked(form), [text]) == expected
    assert parsed(marked(form), text) == expected


@pytest.mark.parametrize("case", MARKED)
def test_a_cut_at_any_point_changes_nothing(case: str) -> None:
    form, (text, expected) = MARKED[case]
    for cut in range(len(text) + 1):
        assert parsed(marked(form), [text[:cut], text[cut:]]) == expected, f"cut at {cut}"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_number_of_cuts_changes_nothing(data: st.DataObject) -> None:
    form, (text, expected) = MARKED[data.draw(st.sampled_from(sorted(MARKED)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(marked(form), pieces) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["f", "get_weather"]),
            st.dictionaries(st.sampled_from(["a", "bc", "from"]), JSON, max_size=3),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    size=st.integers(1, 9),
)
def test_whatever_is_called_comes_out_as_it_was_written(
    calls: list[tuple[str, dict[str, object], bool, bool]], size: int
) -> None:
    expected: list[ParserEvent] = []
    objects: list[str] = []
    marks: list[str] = []
    python: list[str] = []
    for index, (name, value, name_first, ascii_only) in enumerate(calls):
        arguments = json.dumps(value, ensure_ascii=ascii_only)
        parts = [f'"name": {json.dumps(name)}', f'"arguments": {arguments}']
        objects.append("{" + ", ".join(parts if name_first else reversed(parts)) + "}")
        marks.append(f"[TOOL_CALLS]{name}{'[ARGS]' if name_first else ''}{arguments}")
        python.append(f"{name}({', '.join(f'{key}={item!r}' for key, item in value.items())})")
        expected += call(index, name, arguments)
    texts = {
        "hermes": "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects),
        "llama3": "; ".join(objects),
        "mistral": "".join(marks),
        "bare": "\n".join(objects),
        "pythonic": "[" + ", ".join(python) + "]",
    }
    for form, text in texts.items():
        events = parsed(marked(form), [text[at : at + size] for at in range(0, len(text), size)])
        if form == "pythonic":
            assert [comparable(event) for event in events] == [comparable(event) for event in expected]
        else:
            assert events == expected
    assert parsed(marked("mistral"), [f"[TOOL_CALLS][{', '.join(objects)}]"]) == expected


def comparable(event: ParserEvent) -> object:
    """Arguments by what they mean."""
    return ("arguments", json.loads(event.text)) if isinstance(event, CallArguments) else event


PIECES = ['{"name": "f"', ', "arguments": ', "{}", "}", " ", "x", ";", "[", "]", ",", "f(", ")", "a=1", '"tool": "f"']
MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<tool",
    "[TOOL_CALLS]",
    "[TOOL",
    "[ARGS]",
    "```",
    "`",
    "<|python_start|>",
    "<|",
]


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.sampled_from([*PIECES, *MARKS]), max_size=12),
    form=st.sampled_from(["hermes", "llama3", "mistral", "pythonic", "bare"]),
)
def test_garbage_is_never_lost_nor_seen_differently_by_its_cut(pieces: list[str], form: str) -> None:
    text = "".join(pieces)
    events = parsed(marked(form), [text])
    assert parsed(marked(form), text) == events
    if not any(isinstance(event, CallOpened) for event in events):
        given_back = "".join(event.text for event in events if isinstance(event, Text | Malformed))
        assert "".join(given_back.split()) == "".join(text.split())


def test_text_is_passed_on_at_once_when_it_cannot_be_a_marker() -> None:
    parser = marked("hermes")
    assert parser.feed("Hello <b") == [Text("Hello <b")]
    assert parser.feed("<tool") == []
    assert parser.feed("s>") == [Text("<tools>")]


@pytest.mark.parametrize(
    ("form", "beginning"), [("hermes", '<tool_call>{"name": "f", "arguments": '), ("mistral", "[TOOL_CALLS]f")]
)
def test_arguments_are_passed_on_while_they_are_written(form: str, beginning: str) -> None:
    parser = marked(form)
    parser.feed(beginning)
    assert parser.feed('{"a": "he')[-1] == CallArguments(0, '{"a": "he')
    assert parser.feed("llo") == [CallArguments(0, "llo")]


def test_calls_in_pythons_syntax_are_opened_at_once_and_their_arguments_come_at_the_end() -> None:
    parser = marked("pythonic")
    assert parser.feed("[f(a=[1") == [CallOpened(0, "f")]
    assert parser.feed("]") == []
    assert parser.feed(")") == call(0, "f", '{"a": [1]}')[1:]


DEEP = 100_000


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": ARGS}', "[" * DEEP + "]" * DEEP),
        ("mistral", "[TOOL_CALLS]fARGS", '{"a": ' * DEEP + "0" + "}" * DEEP),
        ("bare", '{"tool": "f", "arguments": ARGS}', "[" * DEEP + "0" + "]" * DEEP),
    ],
)
def test_arguments_a_hundred_thousand_deep_are_passed_on(form: str, text: str, arguments: str) -> None:
    assert parsed(marked(form), [text.replace("ARGS", arguments)]) == call(0, "f", arguments)


@pytest.mark.parametrize(
    ("opening", "closing", "json_opening", "json_closing"),
    [("[", "]", "[", "]"), ("(1, ", ")", "[1, ", "]"), ("{'k': ", "}", '{"k": ', "}")],
)
def test_literals_a_hundred_thousand_deep_are_passed_on(
    opening: str, closing: str, json_opening: str, json_closing: str
) -> None:
    text = f"[f(a={opening * DEEP}0{closing * DEEP})]"
    arguments = f'{{"a": {json_opening * DEEP}0{json_closing * DEEP}}}'
    assert parsed(marked("pythonic"), [text]) == call(0, "f", arguments)


@pytest.mark.parametrize("bracket", ["[", "{", "[f(", '{"a":', "<tool_call>", "[TOOL_CALLS]"])
@pytest.mark.parametrize("form", ["hermes", "llama3", "mistral", "pythonic", "bare"])
def test_a_flood_of_brackets_is_given_back(form: str, bracket: str) -> None:
    text = bracket * (DEEP // len(bracket))
    events = parsed(marked(form), [text])
    assert "".join(event.text for event in events if isinstance(event, Text | Malformed)) == text

"""What is whole is what Python's own reader takes, wherever the text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.parsing.value import ValueScanner

ALPHABET = [*'{}[],:"\\-+.eE0123u4 \t\n\x01tn', "true", "false", "null", '"a"', '"k":', "1.5", "\\u00e9", "é"]


def refuse(constant: str) -> None:
    raise ValueError(constant)


def is_value(text: str) -> bool:
    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def end_of_value(text: str, size: int) -> int | None:
    """Where the value ends; None if it is none, or is not whole."""
    scanner, done = ValueScanner(), 0
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        taken = scanner.scan(piece, 0)
        done += taken
        if scanner.failed:
            return None
        if scanner.complete:
            return done
        assert taken == len(piece)
    return done if scanner.ends_here() else None


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=9).map("".join), st.integers(1, 3))
def test_a_value_is_whole_exactly_when_json_says_so(text: str, size: int) -> None:
    text = text.lstrip()
    if not text:
        return
    end = end_of_value(text, size)
    assert end == end_of_value(text, len(text))
    assert (end is not None and not text[end:].strip(" \t\n")) == is_value(text)
    assert end is None or is_value(text[:end])


@pytest.mark.parametrize(
    ("text", "end"),
    [
        *[(text, len(text)) for text in ('{"a":[1,-0.5e+3,null],"b":{}}', "[]", "-0", "1E5", r'"\u00e9\n"', "true")],
        *[("12,", 2), ("0x", 1), ("truex", 4), ("{}}", 2), ('""a', 2)],
        *[(text, None) for text in ("-", "1.", "1e", "+1", ".5", "tru", '"\\x"', '"\n"', "[1,]", '{"a"}', "{,}")],
        *[
            (text, None)
            for text in ('{"a":1,}', "{1:2}", "[1 2]", "[}", "NaN", '"\\u00g0"', "nul1", '{"a":}', "[", "-a")
        ],
    ],
)
def test_the_end_of_a_value_is_found(text: str, end: int | None) -> None:
    assert end_of_value(text, 1) == end
    assert end_of_value(text, len(text)) == end

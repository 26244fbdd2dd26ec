"""Literals are read as Python reads them, as far as JSON has a word for them."""

from __future__ import annotations

import ast
import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.parsing.literal import InvalidLiteral, arguments_json

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b_2", "from", "naïve"]), VALUES))
def test_what_python_writes_is_read_again(values: dict[str, object]) -> None:
    text = ", ".join(f"{name}={value!r}" for name, value in values.items())
    assert json.loads(arguments_json(text)) == json.loads(json.dumps(values))


@pytest.mark.parametrize(
    "literal",
    [
        *(
            "0",
            "-1",
            "+1",
            "- 1",
            "1_000",
            "00",
            "0x_fF",
            "0o17",
            "0b101",
            "1.",
            ".5",
            "-1.5e-3",
            "1e5",
            "1_0.0_1E+0_2",
        ),
        *(
            "'a' \"b\"\n'c'",
            "('a' 'b')",
            "r'\\n'",
            "R'\\''",
            "u'é'",
            "'''a\n'b''c'''",
            '"""a"b"""',
            "''",
            '""',
            "''''''",
        ),
        *(r"'\x41\101\u00e9\U0001f986\N{BULLET}\\\'\"\a\b\f\n\r\t\v'", r"'\d\8'", "'a\\\nb'", r"'\0\400'", "'🦆'"),
        *(
            "[]",
            "[1,]",
            "()",
            "(1)",
            "(1,)",
            "((1))",
            "(1, 2,)",
            "{}",
            "{'a': 1,}",
            "{'a' 'b': [({})]}",
            "[[], [()], {}]",
        ),
        *("[\n1 ,\t2\f]", "True", "None", "[False]", "'''\r\n'''"),
    ],
)
def test_a_literal_means_what_it_means_to_python(literal: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python does not know
        expected = ast.literal_eval(f"({literal})")
    assert json.loads(arguments_json(f"a={literal}")) == {"a": json.loads(json.dumps(expected))}


@pytest.mark.parametrize(
    "literal",
    [
        *(
            "x",
            "f()",
            "1 + 2",
            "--1",
            "not 1",
            "a.b",
            "a[0]",
            "lambda: 1",
            "...",
            "*a",
            "-True",
            "-'a'",
            "1 if 1 else 2",
        ),
        *("b'a'", "rb'a'", "f'a'", "f'{1}'", "{1, 2}", "{1}", "set()", "1j", "1e999", "-1e999", "nan", "inf", "NaN"),
        *("{1: 2}", "{None: 2}", "{[]: 1}", "{**a}", "{'a'}", "{'a': }", "{'a' 1}", "{,}"),
        *(
            "[,]",
            "(,)",
            "[1,,]",
            "[1 2]",
            "[1",
            "1]",
            "[1)",
            "",
            " ",
            "# 1",
            "1 # one",
            "012",
            "1__0",
            "0x",
            "1_",
            "1.e",
            "1a",
        ),
        *(
            "'a",
            "'''a''",
            "'a\nb'",
            r"'\x4'",
            r"'\u12'",
            r"'\U00110000'",
            r"'\N{no such}'",
            r"'\N'",
            "'\\",
            "1;2",
            "`1`",
        ),
        *("0x" + "f" * 5_000, "1" * 5_000, "\uff11", "\x00"),
    ],
)
def test_anything_else_is_refused(literal: str) -> None:
    with pytest.raises(InvalidLiteral):
        arguments_json(f"a={literal}")


@pytest.mark.parametrize(
    "text", ["1", "a", "a=", "a=1 b=2", "a=1,,", ",", "a=1, a=2", "a:1", "1=2", "'a'=1", "**{}", "a==1", "\u2463=1"]
)
def test_arguments_have_names(text: str) -> None:
    with pytest.raises(InvalidLiteral):
        arguments_json(text)


def test_arguments_keep_their_order_and_jsons_own_words_are_taken() -> None:
    assert arguments_json(" b = true, a=null, class=[false] ,") == '{"b": true, "a": null, "class": [false]}'
    assert arguments_json(" ") == "{}"


def test_half_a_character_is_spelt_in_ascii() -> None:
    arguments = arguments_json(r"a='\ud800é', b='é'")
    assert arguments == r'{"a": "\ud800\u00e9", "b": "é"}'
    assert json.loads(arguments)["a"] == "\ud800é"

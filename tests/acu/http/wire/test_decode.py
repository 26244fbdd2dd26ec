"""What a malformed body is told."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from acu.http.errors import BadRequest
from acu.http.wire.decode import BodyDecoder, clean_json, clean_text


class Inner(Struct, forbid_unknown_fields=True):
    colour: str


class Body(Struct, forbid_unknown_fields=True):
    items: list[Inner]
    count: Annotated[int, Meta(ge=1, le=9)] | None = None
    functions: None = None


DECODER = BodyDecoder(Body)


def refused(body: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        DECODER.decode(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        (b"", "invalid_json", None, "no body"),
        (b'{"items":', "invalid_json", None, "truncated"),
        (b'{"items":[]} 1', "invalid_json", None, "trailing"),
        (b'{"items":[{"colour":"\xff"}]}', "invalid_json", None, "UTF-8"),
        (rb'{"items":[{"colour":"\ud83d"}]}', "invalid_json", None, "surrogate"),
        (rb'{"items":[{"colour":"\ude00\ud83d"}]}', "invalid_json", None, "surrogate"),
        (b"[1]", "invalid_type", None, "expected an object, but got an array"),
        (b"{}", "missing_required_parameter", "items", "'items'"),
        (b'{"items":[{}]}', "missing_required_parameter", "items[0].colour", "'items[0].colour'"),
        (b'{"items":[{"colour":1}]}', "invalid_type", "items[0].colour", "expected a string, but got an integer"),
        (b'{"items":[],"count":0}', "invalid_value", "count", ">= 1"),
        (b'{"items":[],"count":"1"}', "invalid_type", "count", "expected an integer, but got a string"),
        (b'{"items":[],"cuont":1}', "unknown_parameter", "cuont", "Did you mean 'count'?"),
        (b'{"items":[{"color":"x"}]}', "unknown_parameter", "items[0].color", "Did you mean 'colour'?"),
        (b'{"items":[],"zzzzzz":1}', "unknown_parameter", "zzzzzz", "Unknown parameter: 'zzzzzz'."),
        (b'{"items":[],"functions":[]}', "unsupported_parameter", "functions", "Use `tools`."),
        (b'{"items":[],"guided_json":{}}', "unsupported_parameter", "guided_json", "structured_outputs"),
    ],
)
def test_the_refusal_names_what_is_wrong_and_where(body: bytes, code: str, param: str | None, message: str) -> None:
    error = refused(body)
    assert (error.status, error.code, error.param) == (400, code, param)
    assert message in str(error)


def test_a_null_for_an_unsupported_parameter_passes() -> None:
    assert DECODER.decode(b'{"items":[],"functions":null}').functions is None


def test_a_surrogate_pair_is_a_character() -> None:
    assert DECODER.decode(rb'{"items":[{"colour":"\ud83d\ude00"}]}').items[0].colour == "\U0001f600"


def test_a_long_name_is_not_repeated_whole() -> None:
    assert len(str(refused(b'{"items":[],"%b":1}' % (b"x" * 100_000)))) < 300


def test_a_name_as_long_as_a_body_may_be_is_refused_in_one_look() -> None:
    error = refused(b'{"items":[{"colour":"x","%b":1}]}' % (b"x" * 5_000_000))
    assert error.code == "unknown_parameter"
    assert (error.param or "").startswith("items[0].xxx")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused_with_400(body: bytes) -> None:
    try:
        DECODER.decode(body)
    except BadRequest as error:
        assert error.code in {
            "invalid_json",
            "invalid_type",
            "invalid_value",
            "unknown_parameter",
            "missing_required_parameter",
        }


def test_text_with_a_nul_character_is_refused() -> None:
    assert clean_text("fine \u2603", "p") == "fine \u2603"
    with pytest.raises(BadRequest, match="NUL"):
        clean_text("a\0b", "p")


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (nested(130), "nested deeper"),
        ([2**64], "64 bits"),
        ({"a": {"b": "x\0"}}, "NUL"),
        ({"a\0": 1}, "NUL"),
        ([0] * 30_000, "more than"),
    ],
)
def test_json_that_nobody_should_walk_is_refused(value: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        clean_json(value, "p")


def test_ordinary_json_passes() -> None:
    clean_json({"type": "object", "properties": {"a": {"enum": [1, None, 2.5, True]}}, "x": nested(50)}, "p")

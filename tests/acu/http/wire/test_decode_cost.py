"""What a body would cost to decode, told from its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acu.http.errors import HttpError
from acu.http.wire import decode_cost
from acu.http.wire.decode_cost import CHEAP_BYTES, check_cost, is_costly


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 200_000,
        [[[[0]]]] * 60_000,
        [1] * 1_000_000,
        ["word"] * 500_000,
        [{"role": "user", "content": "x"}] * 100_000,
        {f"p{i}": {"type": "string"} for i in range(250_000)},
        [int("7" * 4000)] * 2000,
        [int("7" * 100)] * 90_000,
    ],
    ids=[
        "empty lists",
        "nested lists",
        "numbers",
        "texts",
        "messages",
        "properties",
        "numbers of 4000 digits",
        "numbers of 100 digits",
    ],
)
def test_many_values_are_costly(value: Any) -> None:
    assert is_costly(encoded(value))


@pytest.mark.parametrize(
    "value",
    [
        "[{,:" * 1_000_000,
        '"[],"' * 500_000,
        "\\" * 1_000_001,
        '\\"[' * 500_000,
        "[]" * 500_000 + "\\",
        "7" * 10_000_000,
        [0.1234567890123456] * 300_000,
        [{"role": "user", "content": "[1, 2], {}" * 100}] * 4096,
    ],
    ids=[
        "marks",
        "quotes",
        "backslashes",
        "escapes",
        "a last backslash",
        "digits",
        "numbers of 17 digits",
        "4096 messages",
    ],
)
def test_long_texts_are_cheap_whatever_stands_in_them(value: Any) -> None:
    assert not is_costly(encoded(value))


@pytest.mark.parametrize("value", [[5000] * 600_000, [[7] * 500] * 1000], ids=["one list", "a thousand lists"])
def test_as_many_token_ids_as_may_be_sent_are_cheap(value: Any) -> None:
    assert not is_costly(encoded(value))


@settings(deadline=None)
@given(
    st.recursive(
        st.integers() | st.integers(10**18, 10**40) | st.text(alphabet='\\"[]{},: a7'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_the_count_is_the_same_however_the_body_is_cut(value: Any) -> None:
    body = encoded(value)
    exact = _price(value)
    for piece_bytes in (1, 2, 3, 7, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_cost, "PIECE_BYTES", piece_bytes)
            patch.setattr(decode_cost, "MOST_NS", exact)
            assert not is_costly(body)
            patch.setattr(decode_cost, "MOST_NS", exact - 1)
            assert is_costly(body)


def _price(value: Any) -> int:
    """What it is to come to, by walking it."""
    if isinstance(value, str):
        return decode_cost._TEXT_NS
    if isinstance(value, int):
        digits = len(str(abs(value)))
        return 150 + 4 * digits + digits**2 // 100 if digits >= 20 else 0
    commas = max(0, len(value) - 1) * decode_cost._VALUE_NS
    if isinstance(value, list):
        return decode_cost._CONTAINER_NS + commas + sum(map(_price, value))
    members = len(value) * (decode_cost._MEMBER_NS + decode_cost._TEXT_NS)
    return decode_cost._CONTAINER_NS + commas + members + sum(map(_price, value.values()))


async def test_a_costly_body_is_refused_and_a_short_one_is_not_even_counted() -> None:
    with pytest.raises(HttpError, match="too many values") as caught:
        await check_cost(encoded([[]] * 200_000))
    assert (caught.value.status, caught.value.code) == (413, "too_many_values")
    await check_cost(b"[" * CHEAP_BYTES)

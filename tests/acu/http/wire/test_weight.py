"""What a body would cost to decode, told from its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acu.http.errors import HttpError
from acu.http.wire import weight
from acu.http.wire.weight import LIGHT_BYTES, check_weight, is_heavy


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
    ],
    ids=["empty lists", "nested lists", "numbers", "texts", "messages", "properties"],
)
def test_many_values_are_heavy(value: Any) -> None:
    assert is_heavy(encoded(value))


@pytest.mark.parametrize(
    "value",
    [
        "[{,:" * 1_000_000,
        '"[],"' * 500_000,
        "\\" * 1_000_001,
        '\\"[' * 500_000,
        "[]" * 500_000 + "\\",
        [5000] * 600_000,
        [{"role": "user", "content": "[1, 2], {}" * 100}] * 4096,
        [[7] * 500] * 1000,
    ],
    ids=[
        "marks",
        "quotes",
        "backslashes",
        "escapes",
        "a last backslash",
        "half a million ids",
        "4096 messages",
        "id lists",
    ],
)
def test_long_texts_are_light_whatever_stands_in_them(value: Any) -> None:
    assert not is_heavy(encoded(value))


@settings(deadline=None)
@given(
    st.recursive(
        st.integers() | st.text(alphabet='\\"[]{},: a'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_the_count_is_the_same_however_the_body_is_cut(value: Any) -> None:
    body = encoded(value)
    exact = _price(value)
    for piece_bytes in (1, 2, 3, 7, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weight, "PIECE_BYTES", piece_bytes)
            patch.setattr(weight, "MOST_NS", exact)
            assert not is_heavy(body)
            patch.setattr(weight, "MOST_NS", exact - 1)
            assert is_heavy(body)


def _price(value: Any) -> int:
    """What it is to come to, by walking it."""
    if isinstance(value, str):
        return weight._TEXT_NS
    if isinstance(value, int):
        return 0
    commas = max(0, len(value) - 1) * weight._VALUE_NS
    if isinstance(value, list):
        return weight._CONTAINER_NS + commas + sum(map(_price, value))
    members = len(value) * (weight._MEMBER_NS + weight._TEXT_NS)
    return weight._CONTAINER_NS + commas + members + sum(map(_price, value.values()))


async def test_a_heavy_body_is_refused_and_a_short_one_is_not_even_counted() -> None:
    with pytest.raises(HttpError, match="too many values") as caught:
        await check_weight(encoded([[]] * 200_000))
    assert (caught.value.status, caught.value.code) == (413, "too_many_values")
    await check_weight(b"[" * LIGHT_BYTES)

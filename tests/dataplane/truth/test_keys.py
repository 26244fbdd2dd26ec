"""Keys: no tenant's prefix begins another's, and keys sort as what they are made of does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.errors import InvalidInput
from dataplane.truth import keys

TENANTS = (
    st.text(min_size=1, max_size=60)
    .filter(lambda text: len(text.encode("utf-8", "replace")) <= 256)
    .filter(lambda text: not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text))
)
NUMBERS = st.integers(min_value=0, max_value=(1 << 64) - 1)


@given(TENANTS, TENANTS, st.binary(max_size=20))
def test_no_key_of_a_tenant_begins_with_another_tenants_prefix(one: str, other: str, rest: bytes) -> None:
    key = keys.tenant_prefix(one) + rest

    assert key.startswith(keys.tenant_prefix(other)) == (one == other)


@given(TENANTS, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.binary(max_size=20))
def test_no_key_of_a_collection_begins_with_another_collections_scope(
    tenant: str, one: int, other: int, rest: bytes
) -> None:
    assert (keys.scope(tenant, one) + rest).startswith(keys.scope(tenant, other)) == (one == other)


@given(TENANTS, TENANTS, st.binary(max_size=20))
def test_no_key_after_a_counted_name_begins_with_another_counted_name(one: str, other: str, rest: bytes) -> None:
    key = keys.counted_name(one, "kind") + rest

    assert key.startswith(keys.counted_name(other, "kind")) == (one == other)


@given(NUMBERS, NUMBERS)
def test_numbers_sort_as_integers_do(one: int, other: int) -> None:
    assert (keys.number(one) < keys.number(other)) == (one < other)
    assert len(keys.number(one)) == 8


@given(TENANTS, TENANTS)
def test_names_sort_as_text_does(one: str, other: str) -> None:
    assert (keys.name(one) < keys.name(other)) == (one < other)  # UTF-8 keeps the order of code points


EDGES = st.lists(st.sampled_from((0, 1, 0xFE, 0xFF)), min_size=1, max_size=3).map(bytes)
"""Short keys, of which many begin alike and some have nothing above them."""


@given(EDGES | st.binary(min_size=1, max_size=6), st.binary(max_size=8))
def test_the_key_after_a_prefix_is_above_every_key_with_it(prefix: bytes, rest: bytes) -> None:
    end = keys.after(prefix)

    if end is None:
        assert set(prefix) == {0xFF}
    else:
        assert prefix + rest < end
        assert prefix + b"\xff" * 20 < end
        assert not end.startswith(prefix)


@given(EDGES, EDGES)
def test_no_key_lies_between_a_prefix_and_the_key_after_it(prefix: bytes, key: bytes) -> None:
    end = keys.after(prefix)

    if key > prefix and (end is None or key < end):
        assert key.startswith(prefix)


@pytest.mark.parametrize("tenant", ["", "x" * 257, "é" * 129, "\ud800"])
def test_a_tenant_that_cannot_be_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        keys.tenant_prefix(tenant)
    assert caught.value.param == "tenant"


def test_the_longest_names_are_taken() -> None:
    assert keys.tenant_prefix("x" * 256) == b"\x01\x00" + b"x" * 256
    assert keys.name("é" * 256) == b"\xc3\xa9" * 256


@pytest.mark.parametrize("name", ["", "x" * 513, "a\udfff"])
def test_a_name_that_cannot_be_is_refused_with_the_callers_word_for_it(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        keys.name(name, "stream")
    assert caught.value.param == "stream"
    assert str(caught.value).startswith("stream ")

"""Records: what is encoded is decoded; anything else is named, never guessed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from dataplane.errors import Damaged, UnsupportedFormat
from dataplane.truth import records
from dataplane.truth.records import CollectionRecord, EventRecord, RowRecord, StateRecord, StreamRecord, decode, encode

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.integers(0, 1 << 50)
ATTRIBUTES = st.dictionaries(TEXT, TEXT | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False))
ROWS = st.builds(RowRecord, TEXT, TEXT | st.none(), ATTRIBUTES, TIMES, TIMES | st.none())


@given(ROWS)
def test_a_row_comes_back_as_it_was(row: RowRecord) -> None:
    back = decode(RowRecord, encode(row))

    assert back == row
    assert {key: type(value) for key, value in back.attributes.items()} == {
        key: type(value) for key, value in row.attributes.items()
    }


@pytest.mark.parametrize(
    "record",
    [
        CollectionRecord("notes", 7, 256, "cosine", 1, text=False),
        StateRecord(3, b"\x00\xff" * 100, 5, 6, 2),
        StreamRecord(9, 4),
        EventRecord("token", 1, b""),
    ],
)
def test_every_other_record_comes_back_as_it_was(record: Struct) -> None:
    assert decode(type(record), encode(record)) == record


@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_record_of_another_version_asks_for_the_release_that_wrote_it(version: int) -> None:
    stored = bytes([version]) + encode(EventRecord("a", 1, b""))[1:]

    with pytest.raises(UnsupportedFormat, match=f"format {version}, and this release reads 1: start the release"):
        decode(EventRecord, stored)


def test_an_empty_record_is_no_record() -> None:
    with pytest.raises(UnsupportedFormat, match="format none"):
        decode(EventRecord, b"")


@given(st.binary(max_size=60))
def test_garbage_is_damaged_or_a_record_and_nothing_else(garbage: bytes) -> None:
    try:
        row = decode(RowRecord, bytes([records.VERSION]) + garbage)
    except Damaged as error:
        assert "RowRecord" in str(error)
    else:
        assert isinstance(row, RowRecord)


def test_a_record_cut_at_any_byte_is_damaged() -> None:
    stored = encode(StateRecord(300, b"value", 1_700_000_000_000, None))

    for end in range(1, len(stored)):
        with pytest.raises(Damaged, match="StateRecord cannot be read"):
            decode(StateRecord, stored[:end])


def test_a_field_of_another_type_is_damaged() -> None:
    stored = bytes([records.VERSION]) + msgspec.msgpack.encode(["token", "yesterday", b""])

    with pytest.raises(Damaged, match="EventRecord"):
        decode(EventRecord, stored)


class _Newer(Struct, frozen=True, array_like=True):
    kind: str
    time_ms: int
    payload: bytes
    colour: str = "red"


def test_a_release_reads_records_of_an_older_and_of_a_newer_one_that_added_fields_at_the_end() -> None:
    old = EventRecord("token", 5, b"x")

    assert decode(EventRecord, encode(_Newer("token", 5, b"x", "blue"))) == old
    assert decode(_Newer, encode(old)) == _Newer("token", 5, b"x", "red")


def test_state_written_before_values_had_parts_is_read() -> None:
    stored = bytes([records.VERSION]) + msgspec.msgpack.encode([4, b"v", 10, None])

    assert decode(StateRecord, stored) == StateRecord(4, b"v", 10, None, 0)

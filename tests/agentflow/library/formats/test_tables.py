"""Records of a table as lines of text."""

from __future__ import annotations

import csv

import pytest

from agentflow.library.errors import FileTooLarge
from agentflow.library.formats.tables import read_table
from agentflow.library.transcript import Transcript


def read(text: str, limit: int = 10_000_000) -> str:
    out, before = Transcript(limit), csv.field_size_limit()
    try:
        read_table(text, out)
    finally:
        csv.field_size_limit(before)
    return out.text()


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_each_value_stands_beside_its_header(delimiter: str) -> None:
    rows = [["name", "colour"], ["ball", "red"], ["cube", ""]]
    text = "\r\n".join(delimiter.join(row) for row in rows)
    assert read(text) == "name: ball\ncolour: red\n\nname: cube"


def test_quotes_hold_delimiters_and_line_feeds() -> None:
    assert read('"a,b,c";d\n"x;y";"one\ntwo"\n') == "a,b,c: x;y\nd: one\ntwo"


def test_values_without_a_header_and_empty_lines_lose_nothing() -> None:
    assert read("\na,b\n1,2,3\n\n,,\n4\n") == "a: 1\nb: 2\n3\n\na: 4"


def test_a_single_line_is_given_as_it_is() -> None:
    assert read("one,two") == "one\ntwo"


def test_a_field_of_a_megabyte_is_read() -> None:
    assert read("a\n" + "x" * 1_000_000) == "a: " + "x" * 1_000_000


def test_a_quote_that_is_never_closed_takes_the_rest() -> None:
    assert read('a,b\n"1,2\n3,4') == "a: 1,2\n3,4"


def test_a_long_header_over_many_records_is_refused_at_the_bound() -> None:
    with pytest.raises(FileTooLarge, match="longer than 1,000,000 bytes"):
        read("h" * 10_000 + "\n" + "1\n" * 10_000, limit=1_000_000)

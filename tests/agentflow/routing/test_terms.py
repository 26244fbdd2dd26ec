"""Texts to units and terms."""

from __future__ import annotations

import pytest

from agentflow.routing.terms import HEAD_CHARS, TAIL_CHARS, excerpt, opening_of, script_of, spoken, terms, units


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Dollars AND inches", ["dollar", "and", "inch"]),
        ("cities, glasses, bus, basis", ["city", "glass", "bus", "basis"]),
        ("it's raining", ["it's", "rain"]),
        ("3 times 1,450.50", ["#", "times", "#"]),
        ("€5 + 10%", ["€", "#", "+", "#", "%"]),
        ("\u660e\u5929rain", ["\u660e", "\u5929", "rain"]),
        ("\uff32\uff21\uff29\uff2e", ["rain"]),
        ("don\u2019t", ["don't"]),
        ("\0\U0001f600", []),
    ],
)
def test_units_are_words_numbers_signs_and_characters(text: str, found: list[str]) -> None:
    assert units(text) == found


def test_terms_are_content_words_and_pairs_of_characters() -> None:
    assert terms("Will it be sunny in Nice?") == {"sunny", "nice"}
    assert terms("\u660e\u5929\u5929\u6c14") == {"\u660e\u5929", "\u5929\u5929", "\u5929\u6c14"}
    assert terms("\u5929") == set()


@pytest.mark.parametrize("text", ["3+4", "12 * (3)", "9876-1234", "7 \u00d7 8", "\u221a9"])
def test_figures_with_an_operator_are_a_sum(text: str) -> None:
    assert "#sum" in terms(text)


@pytest.mark.parametrize("text", ["2026-11-30", "room 12", "a + b"])
def test_dates_and_rooms_are_no_sums(text: str) -> None:
    assert "#sum" not in terms(text)


def test_a_request_opens_behind_courtesies() -> None:
    assert opening_of(units("Could you please convert it")) == 3
    assert opening_of(units("\u8bf7\u5e2e\u6211\u8bb0\u4f4f")) == 3
    assert opening_of(units("please")) == 0
    assert opening_of([]) == 0


def test_a_third_of_chinese_letters_makes_a_text_chinese() -> None:
    assert script_of("PDF\u91cc\u6709\u4ec0\u4e48") == "cjk"
    assert script_of("what does \u5929 mean") == "spaced"
    assert script_of("123") == "spaced"


def test_a_long_text_is_its_head_and_its_tail() -> None:
    text = "a" * HEAD_CHARS + "b" * 5000 + "c" * TAIL_CHARS
    assert excerpt(text) == "a" * HEAD_CHARS + " " + "c" * TAIL_CHARS
    assert excerpt(text[:100]) == text[:100]


def test_identifiers_are_spoken_as_words() -> None:
    assert spoken("convert_currency") == "convert currency"
    assert spoken("convertCurrency2Go") == "convert Currency2 Go"

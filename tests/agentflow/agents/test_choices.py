"""Whether what the user said has a value for a parameter that takes few of them, or a number."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.agents.choices import has_value

CURRENCY = {"type": "string", "enum": ["EUR", "USD"]}
TITLES = {"欧元": "EUR", "euro": "EUR", "dollar": "USD"}
NAMED = {"anyOf": [{"const": value, "title": title} for title, value in TITLES.items()]}


def has(field: dict[str, Any], *said: str, name: str = "it", root: dict[str, Any] | None = None) -> bool:
    return has_value(field, name, root or {}, said)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (CURRENCY, "What does a gasket cost in eur?"),
        (CURRENCY, "垫圈多少USD"),
        (CURRENCY, "in ＥＵＲ"),  # noqa: RUF001 - as a Chinese keyboard writes it
        (NAMED, "多少欧元"),
        (NAMED, "how many dollars is that"),
        (NAMED, "how many euros is that"),
        ({**NAMED, "enum": ["EUR", "USD"]}, "how many euros is that"),  # of a Literal in Python
        ({"oneOf": NAMED["anyOf"]}, "多少欧元"),
        ({"const": "urgent"}, "It is urgent!"),
        ({"enum": ["next_day", "secondClass"]}, "with next-day delivery"),
        ({"enum": ["next_day", "secondClass"]}, "Send it second class"),
        ({"enum": ["低", "高"]}, "优先级要高"),
        ({"enum": ["บาท"]}, "ราคาเป็นบาทเท่าไหร่"),
        ({"enum": ["высокий"]}, "Приоритет Высокий"),
        ({"enum": [1, 2, 3]}, "two of them"),
        ({"anyOf": [CURRENCY, {"type": "null"}], "default": None}, "USD please"),
        ({"type": ["string", "null"], "enum": ["EUR", None]}, "EUR please"),
        ({"type": "array", "items": CURRENCY}, "USD please"),
        ({"$ref": "#/$defs/Currency"}, "USD please"),
    ],
)
def test_a_value_or_what_it_is_called_is_found_in_any_case_and_script(field: dict[str, Any], text: str) -> None:
    root = {"$defs": {"Currency": CURRENCY}}
    assert has(field, text, root=root)
    assert not has(field, "What does a gasket cost? 垫圈多少钱", root=root)


@pytest.mark.parametrize("text", ["an amateur", "neurology", "a slower one", ""])
def test_a_value_within_a_word_is_none(text: str) -> None:
    assert not has({"enum": ["EUR", "low"]}, text)


@pytest.mark.parametrize(
    "text",
    [
        "for 3 nights",
        "三晚",
        "住一晚",
        "three nights",
        "a dozen",
        "-1.5 degrees",
        "第2页",
        "zero",
        "a couple of nights",
    ],
)
@pytest.mark.parametrize("field", [{"type": "integer"}, {"anyOf": [{"type": "number"}, {"type": "null"}]}])
def test_a_number_is_one_in_figures_or_in_words(field: dict[str, Any], text: str) -> None:
    assert has(field, text)


@pytest.mark.parametrize("text", ["a room with a view", "restart web01", "看一下", "一起去", "someone", ""])
def test_a_figure_in_a_name_and_a_word_with_a_number_in_it_are_none(text: str) -> None:
    for field in ({"type": "integer"}, {"type": ["number", "null"]}):
        assert not has(field, text)


def test_a_flag_is_said_by_its_name_or_title() -> None:
    flag = {"type": "boolean", "title": "加急", "default": False}
    for text in ("Ship it as a gift", "WRAP it", "请加急", "yes", "set it to false"):
        assert has(flag, text, name="giftWrap"), text
    assert not has(flag, "Ship it to Rome", name="giftWrap")
    assert not has({"enum": ["gift"]}, "wrap it", name="wrap")  # a choice's values say what it may be


def test_one_of_the_texts_is_enough() -> None:
    assert has(CURRENCY, "and a bolt?", "What does a gasket cost in USD?")
    assert not has(CURRENCY)


@pytest.mark.parametrize(
    "field",
    [
        {},
        {"type": "string"},
        {"type": "object", "properties": {}},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [CURRENCY, {"type": "string"}]},
        {"type": ["integer", "string"]},
        {"$ref": "#/$defs/gone"},
        {"$ref": "#"},
    ],
)
def test_what_takes_any_text_or_an_object_may_have_one_in_anything(field: dict[str, Any]) -> None:
    assert has(field, "hello", root={"$ref": "#"})


@pytest.mark.parametrize(
    ("name", "text", "other"),
    [
        ("all", "Show all orders", "Show the orders"),
        ("now", "do it now", "do it"),
        ("on", "turn it on", "turn it"),
    ],
)
def test_a_flag_whose_name_is_an_everyday_word_is_found_by_it(name: str, text: str, other: str) -> None:
    assert has({"type": "boolean"}, text, name=name)
    assert not has({"type": "boolean"}, other, name=name)

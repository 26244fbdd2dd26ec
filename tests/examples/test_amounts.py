"""Amounts as people say them to the travel desk: what is read of them, and what is refused in words and never guessed."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import pytest

from tests.examples.loading import module_of, tools_of

TOOLS = tools_of("travel")
FIGURES = module_of("travel", "figures")
MEASURES = module_of("travel", "measures")


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("十", 10),
        ("二十四", 24),
        ("一百零五", 105),
        ("一百五", 150),
        ("三万五千", 35_000),
        ("二〇二六", 2026),
        ("两亿", 2 * 10**8),
        ("万", 10_000),
        ("百万", 10**6),
        ("一点五万", 15_000),
        ("零点零五", 0.05),
        ("半", 0.5),
        ("两三", None),
        ("五六百", None),
        ("半万", None),
        ("点五", None),
    ],
)
def test_chinese_numbers_are_read(said: str, number: float | None) -> None:
    assert FIGURES.chinese_number(said) == number


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("two hundred and fifty", 250),
        ("a hundred and one", 101),
        ("two thousand and five", 2005),
        ("2 hundred million", 2 * 10**8),
        ("two million five hundred thousand", 2_500_000),
        ("half a million", 500_000),
        ("one and a half million", 1_500_000),
        ("two and a half", 2.5),
        ("two and half a", 2.5),
        ("one point five million", 1_500_000),
        ("zero point zero five", 0.05),
        ("point five", 0.5),
        ("half a dozen", 6),
        ("two dozen", 24),
        ("5 lakh", 500_000),
        ("3 trillion", 3 * 10**12),
        ("and 1,500", 1500),
        ("and a 26", 26),
        ("a", None),
        ("point", None),
    ],
)
def test_english_numbers_are_read(said: str, number: float | None) -> None:
    assert FIGURES.english_number(said) == number


@pytest.mark.parametrize(
    "said",
    [
        "one and two",
        "one fifty",
        "nineteen eighty",
        "twenty zero",
        "1 000",
        "1,5",
        "and a half",
        "two million and a half",
        "one point twenty",
        "thousand million",
        "hundreds",
        "millions",
        "one million two million",
        "one million thousand",
        "two hundred hundred",
        "20 5",
    ],
)
def test_what_is_not_one_english_number_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        FIGURES.english_number(said)


@pytest.mark.parametrize(
    ("said", "value", "source"),
    [
        ("half a million dollars in yen", 500_000, "dollars"),
        ("$5m in yen", 5 * 10**6, "$"),
        ("1.5k dollars in yen", 1500, "dollars"),
        ("how much are five dollars to the yen to 2 decimals", 5, "dollars"),
        ("3万5千日元是多少美元", 35_000, "日元"),
        ("一点五万美元是多少人民币", 15_000, "美元"),
        ("万日元是多少美元", 10_000, "日元"),
        ("100美元等于多少万日元", 100, "美元"),
        ("1美元能换几日元", 1, "美元"),
        ("一百美元一共是多少人民币", 100, "美元"),
        ("用300人民币换来多少美元", 300, "人民币"),
        ("多少人民币换来一百美元", 100, "美元"),
        ("100美元和人民币两种货币怎么换", 100, "美元"),
    ],
)
def test_an_amount_of_money_is_read(said: str, value: float, source: str) -> None:
    asked = MEASURES.read_request(said, MEASURES.currencies())
    assert (asked.value, asked.source) == (value, source)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("How much is 40 euros in yen?", "40 EUR is about 6,917.65 JPY"),
        ("300美元等于多少人民币？", "300 USD 约合 2,151.00 CNY"),
        ("How many Mexican pesos do I get for 20 dollars?", "20 USD is about 376.00 MXN"),
        ("$40 in yen", "40 USD is about 5,880.00 JPY"),
        ("the rate of the franc to the dollar", "1 CHF is about 1.25 USD"),
        ("五十欧元能换多少人民币", "50 EUR 约合 421.76 CNY"),
        ("300万日元是多少美元", "3,000,000 JPY 约合 20,408.16 USD"),
        ("三万五日元是多少美元", "35,000 JPY 约合 238.10 USD"),
        ("two hundred and fifty dollars in yen", "250 USD is about 36,750.00 JPY"),
        ("1.5 million dollars in yen", "1,500,000 USD is about 220,500,000.00 JPY"),
        ("5k dollars in yen", "5,000 USD is about 735,000.00 JPY"),
    ],
)
def test_money_is_converted_by_the_dated_table(said: str, told: str) -> None:
    rates = " (rounded rates of mid-2025)." if " is about " in told else "（2025年年中的大致汇率）。"
    assert TOOLS["convert_currency"](said) == told + rates


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("How many kilometres are 26 miles?", "26 mi is 41.8429 km."),
        ("Convert 98 Fahrenheit to Celsius", "98 °F is 36.6667 °C."),
        ("-40 °C in °F", "-40 °C is -40 °F."),
        ("把华氏90度换成摄氏度", "90 °F 等于 32.2222 °C。"),
        ("10英里等于多少公里？", "10 mi 等于 16.0934 km。"),
        ("5 in to cm", "5 in is 12.7 cm."),
        ("60 mph in km/h", "60 mph is 96.5606 km/h."),
        ("How many litres in a gallon?", "1 gal is 3.78541 l."),
        ("1,200 m in km", "1,200 m is 1.2 km."),
        ("华氏一百度是多少摄氏度", "100 °F 等于 37.7778 °C。"),
        ("一百二十磅是多少公斤", "120 lb 等于 54.4311 kg。"),
        ("twenty-six miles in kilometres", "26 mi is 41.8429 km."),
        ("300K in celsius", "300 K is 26.85 °C."),
        ("3 kg in miles", "kg is a unit of weight, and mi one of length."),
        ("half a mile in km", "0.5 mi is 0.804672 km."),
        ("And 5 miles in km?", "5 mi is 8.04672 km."),
        ("a 26-mile run in km", "26 mi is 41.8429 km."),
        ("minus forty celsius in fahrenheit", "-40 °C is -40 °F."),
        ("−40 °C in °F", "-40 °C is -40 °F."),
        ("零下四十摄氏度是多少华氏度", "-40 °C 等于 -40 °F。"),
        ("负40摄氏度是多少华氏度", "-40 °C 等于 -40 °F。"),
        ("半英里是多少公里", "0.5 mi 等于 0.804672 km。"),
        ("1点5公里是多少英里", "1.5 km 等于 0.932057 mi。"),
        ("5磅等于几千克", "5 lb 等于 2.26796 kg。"),
        ("how many ft2 in 5 m2", "5 m² is 53.8196 ft²."),
        ("5m2 in ft2", "5 m² is 53.8196 ft²."),
    ],
)
def test_units_are_converted_whichever_way_it_is_asked(said: str, told: str) -> None:
    assert TOOLS["convert_units"](said) == told


@pytest.mark.parametrize(
    ("tool", "said", "told"),
    [
        ("convert_units", "3 parsecs", "Name a number and two units that I know, such as 26 miles in kilometres."),
        ("convert_units", "", "Name a number and two units that I know, such as 26 miles in kilometres."),
        ("convert_currency", "100 kroner", "Name an amount and two currencies that I know, such as 40 euros in yen."),
        ("convert_currency", "一百块", "请说出金额和两种货币，例如：300美元等于多少人民币。"),
    ],
)
def test_who_names_no_two_units_is_asked_for_them(tool: str, said: str, told: str) -> None:
    assert TOOLS[tool](said) == told


UNREAD = {
    "convert_units": (
        "5 feet 3 inches in cm",
        "5 feet 10 in cm",
        "20-30 miles in km",
        "1/2 mile in km",
        "½ mile in km",
        "a mile and a half in km",
        "a few miles in km",
        "a quarter mile in km",
        "40 degrees celsius below zero in fahrenheit",
        "1.000.000 m in km",
        "1e6 m in km",
        "1,5 miles in km",
        "9" * 400 + " miles in km",
        "三米五是多少英尺",
        "两英里半是多少公里",
        "一个半英里是多少公里",
        "三分之一英里是多少公里",
        "零下摄氏40度是多少华氏度",
        "十几英里是多少公里",
        "十多公里是多少英里",
        "300多公里是多少英里",
        "两三公里是多少英里",
        "半万公里是多少英里",
        "3万5公里是多少英里",
        "5千3万公里是多少英里",
        "英里一百是多少公里",
        "亿" * 50 + "公里是多少英里",
    ),
    "convert_currency": (
        "a few dollars in yen",
        "hundreds of dollars in yen",
        "1,500k dollars in yen",
        "十几美元是多少人民币",
        "三块五是多少美元",
        "3万5日元是多少美元",
    ),
}


@pytest.mark.parametrize(("tool", "said"), [(tool, said) for tool, all_ in UNREAD.items() for said in all_])
def test_an_amount_that_is_not_read_is_refused_in_its_language_and_not_guessed(tool: str, said: str) -> None:
    told = f"I cannot read the amount in {said[:60]!r}. Write one number in figures, such as 1,500 or 2.5."
    chinese = f"我看不懂“{said[:60]}”里的数。请用数字写一个数，例如1500或2.5。"
    assert TOOLS[tool](said) == (told if said[-1].isascii() else chinese)

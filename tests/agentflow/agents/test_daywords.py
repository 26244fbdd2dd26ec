"""The words that name a day, in English and Chinese."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import pytest

from agentflow.agents.daywords import MAX_CHARS, MAX_DAYS, days, undated


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("When does the sun rise in Athens tomorrow?", ["tomorrow"]),
        ("Sunset in Reykjavik on 21 June", ["21 June"]),
        ("the 3rd of May, 2027; June 21st", ["the 3rd of May, 2027", "June 21st"]),
        ("the day after tomorrow", ["the day after tomorrow"]),
        ("How cold does Moscow get in January?", ["January"]),
        ("an umbrella in London this weekend?", ["this weekend"]),
        ("How warm is it RIGHT NOW, and next Friday?", ["RIGHT NOW", "next Friday"]),
        ("from 2026-12-24, in two weeks", ["2026-12-24", "in two weeks"]),
        ("Paris on 31 February", ["31 February"]),  # found, and not understood
        ("in May, and may it last; I know Mar del Plata and Sunday River", ["May", "Sunday"]),
        ("上海明天几点日出？", ["明天"]),
        ("巴黎12月24日几点天黑", ["12月24日"]),
        ("冬至那天北京白天有多长，大后天呢", ["冬至", "大后天"]),
        ("明天Shanghai，下周五", ["明天", "下周五"]),
        ("十二月二十四日罗马几点日落", ["十二月二十四日"]),
        ("明年三月或2027年1月5日晚上", ["明年三月", "2027年1月5日晚上"]),
        ("我下个月五号去，三天后回，两个星期以后呢", ["下个月五号", "三天后", "两个星期以后"]),
        ("明天早上，下下周三，这个周末", ["明天早上", "下下周三", "这个周末"]),
        ("国庆节和平安夜", ["国庆节", "平安夜"]),
        ("十号线在二号楼", []),
        ("Will it rain in Lisbon?", []),
        ("", []),
        ("\ud800 \x00", []),
    ],
)
def test_days_are_found_as_they_are_written(text: str, found: list[str]) -> None:
    assert days(text) == found


def test_a_text_is_cut_where_its_days_were() -> None:
    assert undated("I know Athens tomorrow, on 24 December?") == "I know Athens ;, on ;?"
    assert undated("巴黎12月24日几点天黑") == "巴黎;几点天黑"
    just, longer = "today".ljust(MAX_CHARS), "today".ljust(MAX_CHARS + 1)
    assert (undated(just), undated(longer)) == (";".ljust(MAX_CHARS - 4), longer)


def test_there_are_not_more_than_a_bound_and_none_in_a_long_text() -> None:
    assert len(days(" ".join(f"2026-12-{day:02}" for day in range(1, 31)))) == MAX_DAYS
    assert (days("today".ljust(MAX_CHARS)), days("today".ljust(MAX_CHARS + 1))) == (["today"], [])

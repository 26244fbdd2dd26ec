"""Days as people say them, in English and Chinese, from what a small model wrote down of it."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import re
from datetime import date, timedelta

MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
CHINESE_WEEKDAYS = "一二三四五六日"
NEAR_DAYS = {  # the longer ones first: 后天 is in 大后天
    "day after tomorrow": 2,
    "大后天": 3,
    "后天": 2,
    "tomorrow": 1,
    "明": 1,
    "tonight": 0,
    "today": 0,
    "right now": 0,
    "this morning": 0,
    "this afternoon": 0,
    "this evening": 0,
    "现在": 0,
    "今": 0,
    "yesterday": -1,
    "昨": -1,
}
FEASTS = {  # month and day, which are the same each year, or nearly so
    "christmas eve": (12, 24),
    "christmas": (12, 25),
    "圣诞": (12, 25),
    "summer solstice": (6, 21),
    "夏至": (6, 21),
    "winter solstice": (12, 21),
    "冬至": (12, 21),
}
UNREAD = "I cannot read the day {!r}. Say today, tomorrow, a day of the week, or a date such as 24 December."
UNREAD_CHINESE = "我看不懂“{}”是哪一天。请说今天、明天、星期五，或12月24日这样的日期。"


def day_of(text: str, today: date) -> date | None:
    """The day that a text means, seen from `today`; None where it means none. Months without a day are their 15th."""
    said = text.casefold()
    if said.strip() == "now":
        return today
    for word, days in NEAR_DAYS.items():
        if word in said:
            return today + timedelta(days)
    for word, (month, day) in FEASTS.items():
        if word in said:
            return _coming(today, month, day)
    return _by_figures(said, today) or _by_weekday(said, today)


def unread(text: str, *, chinese: bool) -> str:
    """What is answered where a day cannot be read: no day is guessed."""
    return (UNREAD_CHINESE if chinese else UNREAD).format(text[:60])


def _by_figures(said: str, today: date) -> date | None:
    """2026-12-24, 24 December, December 24th, 12月24日, in July, in 3 days; 七月 is not read."""
    try:
        if found := re.search(r"\bin (\d{1,3}) (day|week)s?\b", said):
            return today + timedelta(int(found[1]) * (7 if found[2] == "week" else 1))
        if found := re.search(r"(\d{4})[-/年](\d{1,2})[-/月](\d{1,2})", said):
            return date(*map(int, found.groups()))
        if found := re.search(r"(\d{1,2})月(?:(\d{1,2})[日号]?)?", said):
            return _coming(today, int(found[1]), int(found[2] or 15))
        for number, name in enumerate(MONTHS, 1):
            word = rf"\b{name[:3]}(?:{name[3:]})?\b" if name != "may" else r"\bmay\b"
            if re.search(word, said):
                day = re.search(r"\b(\d{1,2})(?:st|nd|rd|th)?\b", said)
                return _coming(today, number, int(day[1]) if day else 15)
    except ValueError:  # 31 February
        return None
    return None


def _coming(today: date, month: int, day: int) -> date:
    """That day of this year, or of the next where it is past."""
    found = date(today.year, month, day)
    return found if found >= today else date(today.year + 1, month, day)


def _by_weekday(said: str, today: date) -> date | None:
    wanted = None
    if "weekend" in said or "周末" in said:
        wanted = 5
    if found := re.search(r"(?:星期|周|礼拜)([一二三四五六日天])", said):
        wanted = CHINESE_WEEKDAYS.index(found[1].replace("天", "日"))
    for number, name in enumerate(WEEKDAYS):
        if re.search(rf"\b{name}\b", said):
            wanted = number
    return None if wanted is None else today + timedelta((wanted - today.weekday()) % 7)


def english_day(day: date) -> str:
    """Tuesday 1 December 2026."""
    return f"{day:%A} {day.day} {day:%B} {day.year}"


def chinese_day(day: date) -> str:
    """2026年12月1日星期二."""
    return f"{day.year}年{day.month}月{day.day}日星期{CHINESE_WEEKDAYS[day.weekday()]}"

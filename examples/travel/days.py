"""Days as people say them, in English and Chinese, from what a small model wrote down of it."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import re
from datetime import date, timedelta

from figures import CHINESE, WORDS, chinese_number, english_number

MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
CHINESE_WEEKDAYS = "一二三四五六日"
NEAR_DAYS = (  # the first that is found: 后天 is in 大后天
    (r"day after tomorrow|(?<!大)后天", 2),
    (r"大后天", 3),
    (r"day before yesterday|(?<!大)前天", -2),
    (r"tomorrow|明[天日早晚夜]", 1),
    (r"today|tonight|right now|this (?:morning|afternoon|evening)|现在|今[天日早晚夜]", 0),
    (r"yesterday|昨[天日晚夜]", -1),
)
FEASTS = (  # month and day, which are the same each year, or nearly so
    (r"christmas eve|平安夜|圣诞夜", 12, 24),
    (r"christmas|圣诞", 12, 25),
    (r"new year'?s eve", 12, 31),
    (r"new year|元旦", 1, 1),
    (r"劳动节", 5, 1),
    (r"国庆", 10, 1),
    (r"春分", 3, 20),
    (r"summer solstice|夏至", 6, 21),
    (r"秋分", 9, 23),
    (r"winter solstice|冬至", 12, 21),
)
YEARS = {"去": -1, "今": 0, "明": 1, "后": 2}
UNREAD = "I cannot read the day {!r}. Say today, tomorrow, a day of the week, or a date such as 24 December."
UNREAD_CHINESE = "我看不懂“{}”是哪一天。请说今天、明天、星期五，或12月24日这样的日期。"


def day_of(text: str, today: date) -> date | None:
    """The day that a text means, seen from `today`; None where it means none. Months without a day are their 15th."""
    said = _figured(text.casefold(), today)
    if said.strip() == "now":
        return today
    try:
        if (days := _distance(said)) is not None:
            return today + timedelta(days)
        for pattern, month, day in FEASTS:
            if re.search(pattern, said):
                year = re.search(r"\b(\d{4})(?:\b|年)", said)
                return date(int(year[1]), month, day) if year else _coming(today, month, day)
        return _by_figures(said, today) or _by_weekday(said, today)
    except (ValueError, OverflowError):  # 31 February
        return None


def unread(text: str, *, chinese: bool) -> str:
    """What is answered where a day cannot be read: no day is guessed."""
    return (UNREAD_CHINESE if chinese else UNREAD).format(text[:60])


def _figured(said: str, today: date) -> str:
    """The text with Chinese numbers of days, months and years in figures: 十二月二十四日, 三天后, 明年三月; not 周三."""
    said = re.sub("([去今明后])年", lambda found: f"{today.year + YEARS[found[1]]}年", said.replace("廿", "二十"))
    counted = rf"(?<![周期拜])({CHINESE}+)(?=[年月日号天周]|个(?:月|星期|礼拜)|星期|礼拜)"

    def in_figures(found: re.Match[str]) -> str:
        number = chinese_number(found[1])
        return found[1] if number is None else str(number)

    return re.sub(counted, in_figures, said)


def _distance(said: str) -> int | None:
    """How many days away a day is that is named by that."""
    if found := re.search(rf"\bin (\d{{1,3}}|a|{'|'.join(WORDS)}) (day|week)s?\b", said):
        number = english_number(found[1])
        return (1 if number is None else int(number)) * (7 if found[2] == "week" else 1)
    if found := re.search(r"(\d{1,3})(天|个?星期|周|个?礼拜)(?:之后|以后|后)", said):
        return int(found[1]) * (1 if found[2] == "天" else 7)
    return next((days for pattern, days in NEAR_DAYS if re.search(pattern, said)), None)


def _by_figures(said: str, today: date) -> date | None:
    """2026-12-24, 24 December, December 24th, 12月24日, 下个月5号, 5号, in July. Raises ValueError for a day that is none."""
    if found := re.search(r"(\d{4})[-/年](\d{1,2})(?:[-/月]份?(\d{1,2})?)", said):
        return date(int(found[1]), int(found[2]), int(found[3] or 15))
    if found := re.search(r"(\d{1,2})月份?(?:(\d{1,2})[日号]?)?", said):
        return _coming(today, int(found[1]), int(found[2] or 15))
    if found := re.search(r"([本这下上])个?月(?:(\d{1,2})[日号])?|\b(this|next|last) month\b", said):
        months = {"下": 1, "next": 1, "上": -1, "last": -1}.get(found[1] or found[3], 0)
        return _months_on(today, months, int(found[2] or 15))
    if found := re.search(r"(\d{1,2})号", said):
        day = int(found[1])
        return _months_on(today, 0 if day >= today.day else 1, day)
    for number, name in enumerate(MONTHS, 1):
        word = rf"\b{name[:3]}(?:{name[3:]})?\b" if name != "may" else r"\bmay\b"
        if re.search(word, said):
            day = re.search(r"\b(\d{1,2})(?:st|nd|rd|th)?\b", said)
            year = re.search(r"\b(\d{4})\b", said)
            wanted = number, int(day[1]) if day else 15
            return date(int(year[1]), *wanted) if year else _coming(today, *wanted)
    return None


def _months_on(today: date, months: int, day: int) -> date:
    years, month = divmod(today.month - 1 + months, 12)
    return date(today.year + years, month + 1, day)


def _coming(today: date, month: int, day: int) -> date:
    """That day of this year, or of the next where it is past."""
    found = date(today.year, month, day)
    return found if found >= today else date(today.year + 1, month, day)


def _by_weekday(said: str, today: date) -> date | None:
    """The coming one. In Chinese 下周三 is that of the next week, from Monday on, and 上周三 that of the last."""
    if found := re.search(r"(上{1,2}|下{1,2}|[本这])?个?(?:星期|周|礼拜)([一二三四五六日天末])", said):
        wanted = 5 if found[2] == "末" else CHINESE_WEEKDAYS.index(found[2].replace("天", "日"))
        if not found[1]:
            return today + timedelta((wanted - today.weekday()) % 7)
        weeks = found[1].count("下") - found[1].count("上")
        return today + timedelta(7 * weeks + wanted - today.weekday())
    if found := re.search(rf"\b(?:(next|last) )?({'|'.join(WEEKDAYS)}|weekend)\b", said):
        wanted = 5 if found[2] == "weekend" else WEEKDAYS.index(found[2])
        ahead = (wanted - today.weekday()) % 7
        if found[1] == "last":
            return today + timedelta(ahead - 7)
        return today + timedelta(ahead or (7 if found[1] == "next" else 0))
    return None


def english_day(day: date) -> str:
    """Tuesday 1 December 2026."""
    return f"{day:%A} {day.day} {day:%B} {day.year}"


def chinese_day(day: date) -> str:
    """2026年12月1日星期二."""
    return f"{day.year}年{day.month}月{day.day}日星期{CHINESE_WEEKDAYS[day.weekday()]}"

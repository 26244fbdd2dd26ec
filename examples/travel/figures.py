"""Numbers as people say them, English or Chinese, written in figures: two hundred, 一百二十, 300万, 1.5 million."""

# ruff: noqa: RUF001 - the Chinese zero
from __future__ import annotations

import re

DIGITS = {"零": 0, "〇": 0, "一": 1, "二": 2, "两": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9}
TENS = {"十": 10, "百": 100, "千": 1000}
MYRIADS = {"万": 10_000, "亿": 100_000_000}
_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
WORDS = {word: number for number, word in enumerate(_SMALL)} | {
    word: 10 * number
    for number, word in enumerate(("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), 2)
}
SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000, "billion": 1_000_000_000}
CHINESE = rf"[{''.join((*DIGITS, *TENS, *MYRIADS))}]"
_RUN = re.compile(rf"\b(?:(?:an?|and|{'|'.join((*WORDS, *SCALES))})\b[ -]?)+")
_SCALED = re.compile(rf"(\d[\d,]*(?:\.\d+)?)(?: ?({'|'.join(SCALES)})s?\b|([{''.join((*TENS, *MYRIADS))}]+))")


def chinese_number(text: str) -> int | None:
    """一百二十 is 120, 三万五 is 35,000, 二〇二六 is 2026; None for what is no number."""
    if not re.fullmatch(f"{CHINESE}+", text):
        return None
    if all(c in DIGITS for c in text):
        return int("".join(str(DIGITS[c]) for c in text))
    total = section = digit = 0
    last = 0  # what the unit before counts: in 三万五 the five is of a tenth of it
    for c in text:
        if c in DIGITS:
            digit, last = DIGITS[c], 0 if c in "零〇" else last
        elif c in TENS:
            section, digit, last = section + (digit or 1) * TENS[c], 0, TENS[c]
        else:
            total, section, digit, last = (total + section + digit) * MYRIADS[c], 0, 0, MYRIADS[c]
    return total + section + digit * (last // 10 if last > 10 else 1)


def english_number(words: str) -> int | None:
    """Two hundred and fifty is 250; None for what is no number, as `a` alone."""
    total = part = 0
    found = [word for word in re.split(r"[ -]+", words) if word not in ("", "a", "an", "and")]
    for word in found:
        if word in WORDS:
            part += WORDS[word]
        elif word == "hundred":
            part = (part or 1) * 100
        else:
            total, part = total + (part or 1) * SCALES[word], 0
    return total + part if found else None


def in_figures(text: str, *names: str) -> str:
    """A text in lower case with its numbers in figures; Chinese ones where one of the names stands behind them."""

    def scaled(found: re.Match[str]) -> str:
        factor = SCALES[found[2]] if found[2] else chinese_number(f"一{found[3]}")
        return f"{float(found[1].replace(',', '')) * (factor or 1):.12g}"

    def spoken(found: re.Match[str]) -> str:
        number = english_number(found[0])
        return found[0] if number is None else f"{number}{found[0][len(found[0].rstrip()) :]}"

    def counted(found: re.Match[str]) -> str:
        number = chinese_number(found[1])
        return found[0] if number is None else str(number)

    said = _RUN.sub(spoken, _SCALED.sub(scaled, text))
    if not names:
        return said
    behind = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"({CHINESE}+)(?=个?(?:{behind}))", counted, said)

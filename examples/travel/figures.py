"""Numbers as people say them, English or Chinese, written in figures: two hundred, half a million, 一点五万, 300万, 零下四十.

What is said with a number and is not read (十几, a few, a mile and a half) is refused by a ValueError: no amount is guessed.
"""

# ruff: noqa: RUF001 - the Chinese zero, the signs for minus
from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

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
SCALES = {"thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7, "billion": 10**9, "trillion": 10**12}
_PARTS = {"dozen": 12, "hundred": 100}
CHINESE = rf"[{''.join((*DIGITS, *TENS, *MYRIADS))}]"
_FIGURE = r"\d+(?:,\d+)*(?:\.\d+)?"
_SAID = rf"{_FIGURE}|an?|and|half|point|{'|'.join((*WORDS, *_PARTS, *SCALES))}"
_RUN = re.compile(rf"(?<![\w.,])(?:(?:{_SAID})s?(?!\w)[ -]?)+")
_MIXED = re.compile(rf"(?:{_FIGURE}[{''.join((*TENS, *MYRIADS))}]+)+\d*")
_ODD = re.compile(r"\d\.\d+\.\d|\de\d|\d['’]\d")
# What leaves a number that is not the whole amount.
_VAGUE = re.compile(
    r"\b(?:few|several|couple|(?:quarter|third|fifth|eighth|tenth)s?|twice|minus|negative|below)\b|零下|分之|\d[几半多余来]"
)


def chinese_number(text: str) -> float | None:
    """一百二十 is 120, 三万五 is 35,000, 一点五万 is 15,000, 半 a half, 二〇二六 is 2026.

    None for what is not one number: 三五.
    """
    if text == "半":
        return 0.5
    if found := re.fullmatch(rf"({CHINESE}+)点([{''.join(DIGITS)}]+)([{''.join(MYRIADS)}]*)", text):
        before = chinese_number(found[1])
        scale = chinese_number(f"一{found[3]}")
        behind = "".join(str(DIGITS[c]) for c in found[2])
        return None if before is None or scale is None else float(f"{before:.0f}.{behind}") * scale
    if not re.fullmatch(f"{CHINESE}+", text):
        return None
    if all(c in DIGITS for c in text):
        return int("".join(str(DIGITS[c]) for c in text)) if len(text) not in (2, 3) or text[-2] in "零〇" else None
    if re.search(f"[{''.join(DIGITS)}](?<![零〇])[{''.join(DIGITS)}](?<![零〇])", text):  # 五六百: five or six
        return None
    total = section = digit = 0
    last = 0  # what the unit before counts: in 三万五 the five is of a tenth of it
    for c in text:
        if c in DIGITS:
            digit, last = DIGITS[c], 0 if c in "零〇" else last
        elif c in TENS:
            section, digit, last = section + (digit or 1) * TENS[c], 0, TENS[c]
        else:
            total, section, digit, last = (total + section + digit or 1) * MYRIADS[c], 0, 0, MYRIADS[c]
    return total + section + digit * (last // 10 if last > 10 else 1)


def english_number(words: str) -> float | None:
    """Two hundred and fifty is 250, half a million 500,000, one point five 1.5; None for what has no number, as `a` alone.

    Raises ValueError for what has more than one, or one that is not read.
    """
    said = [word if word in WORDS else word.removesuffix("s") for word in re.split(r"[ -]+", words) if word]
    while said and said[-1] in ("a", "an", "and"):
        said.pop()
    if said[:1] == ["and"] and "half" not in said[1:3]:
        del said[0]
    if said[:1] in (["a"], ["an"]) and said[1] not in _PARTS and said[1] not in SCALES:
        del said[0]
    if not said or said == ["point"]:
        return None
    if re.match(r"[ -]*(?:hundreds|dozens|thousands|\w+ions)\b", words):
        raise ValueError(f"{words!r} are not counted.")
    if said[0] == "half":
        return _scaled([word for word in said[1:] if word not in ("a", "an")], 0.5)
    for half in (["and", "a", "half"], ["and", "half"]):
        at = next((at for at in range(1, len(said)) if said[at : at + len(half)] == half), 0)
        if at:
            return _scaled(said[at + len(half) :], _whole(said[:at], most=1000) + 0.5)
    if "point" in said:
        at = said.index("point")
        end = next((end for end in range(at + 1, len(said)) if not 0 <= WORDS.get(said[end], -1) < 10), len(said))
        if end == at + 1:
            raise ValueError(f"{words!r} is no number.")
        before = _whole(said[:at], most=1000) if at else 0
        return _scaled(said[end:], float(f"{before:.0f}." + "".join(str(WORDS[word]) for word in said[at + 1 : end])))
    return _whole(said)


def _scaled(scales: list[str], number: float) -> float:
    for scale in scales:
        if scale not in SCALES and scale not in _PARTS:
            raise ValueError(f"A number is followed by {scale!r}.")
        number *= SCALES.get(scale) or _PARTS[scale]
    return number


def _whole(said: list[str], most: float = float("inf")) -> float:
    """What words and figures are together, each of which counts less than the one before; below `most`."""
    total, part, room, scale = 0.0, None, float("inf"), float("inf")
    for at, word in enumerate(said):
        if word == "and":
            continue
        if word in ("a", "an"):
            if part is not None or total or said[at + 1] not in (*_PARTS, *SCALES):
                raise ValueError("More than one number is said.")
        elif word in SCALES and SCALES[word] < scale and (part is not None or not total):
            scale = room = SCALES[word]
            total, part = total + (1 if part is None else part) * scale, None
        elif word in _PARTS and (part is None or part < 100):
            part, room = (1 if part is None else part) * _PARTS[word], 100 * (word == "hundred")
        elif (number := _small(word)) is not None and number < room and (number or not at):
            part, room = (part or 0) + number, 10 if word in WORDS and number >= 20 else 0
        else:
            raise ValueError("More than one number is said, or one that is not read.")
    whole = total + (part or 0)
    if whole >= most:
        raise ValueError("It is not clear of what a part is said.")
    return whole


def _small(word: str) -> float | None:
    """What a word or a figure is; its commas part thousands."""
    if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?", word):
        return float(word.replace(",", ""))
    return WORDS.get(word)


def in_figures(text: str, *names: str) -> str:
    """A text in lower case with its numbers in figures; Chinese ones where one of the names stands behind them.

    Raises ValueError where an amount is said that is not read.
    """

    def spoken(found: re.Match[str]) -> str:
        number = english_number(found[0])
        return found[0] if number is None else _written(number) + found[0][len(found[0].rstrip(" ")) :]

    def counted(found: re.Match[str]) -> str:
        if any(found.string.startswith(name, found.start()) for name in names):  # 千克
            return found[0]
        number = chinese_number(found[1].lstrip("来"))
        if number is None and re.search(f"{CHINESE}|半", found[1]):
            raise ValueError(f"{found[1]!r} is not read.")
        return found[0] if number is None else _written(number)

    if _ODD.search(text) or any(unicodedata.numeric(c, 0) % 1 for c in text):
        raise ValueError("A number is said that is not read.")
    said = re.sub(r"(?<!\d)[−–](?=\d)", "-", text)
    said = re.sub(r"(\d)点(?=\d)", r"\1.", re.sub("多少[十百千]*[万亿]", "多少", said))
    said = re.sub(rf"(\d)(?=(?:{'|'.join((*_PARTS, *SCALES))})s?\b)", r"\1 ", said)
    said = _RUN.sub(spoken, _MIXED.sub(_mixed, said))
    if names:
        behind = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        said = re.sub(rf"(?<!{CHINESE})几(?=个?(?:{behind}))", "多少", said)
        run = f"[{CHINESE[1:-1]}几半点多余数来]"
        said = re.sub(rf"(?<!{run})((?:{CHINESE}+个)?{run}+)(?=个?(?:{behind}))", counted, said)
        if re.search(f"(?:{behind})(?:[二三四五六七八九十两半](?![种个])|一(?![共下起般定个些直]))", said):
            raise ValueError("An amount has a part behind its unit.")
    said = re.sub(r"(?:\b(?:minus|negative) |零下|负)(?=\d)", "-", said)
    if _VAGUE.search(said):
        raise ValueError("An amount is said that is not read.")
    return said


def _mixed(found: re.Match[str]) -> str:
    """300万 and 3万5千 in figures."""
    terms = re.findall(rf"({_FIGURE})([{''.join((*TENS, *MYRIADS))}]+)", found[0])
    parts = [(_small(figure) or 0) * (chinese_number(f"一{scale}") or 0) for figure, scale in terms]
    if found[0][-1].isdigit() or any(after >= before for before, after in pairwise(parts)):
        raise ValueError(f"{found[0]!r} is not read.")
    return _written(sum(parts))


def _written(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:.12g}"

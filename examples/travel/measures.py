"""Money and units: the tables currencies.csv and units.csv, and what is asked of them in a sentence, English or Chinese."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from figures import in_figures
from places import has_chinese, rows

RATES_OF = "mid-2025"
RATES_OF_CHINESE = "2025年年中"
# What is added to a temperature, and what the sum is multiplied by, for kelvin.
_SCALES = {"K": (0.0, 1.0), "°C": (273.15, 1.0), "°F": (459.67, 5 / 9)}
_NUMBER = re.compile(r"(?<!\bm)(?<!\dm)(?<!km)(?<!ft)-?\d+(?:,\d+)*(?:\.\d+)?")  # not the 2 of m2
_SHORT = {"k": 10**3, "m": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9}  # of money: 5k
UNREAD = "I cannot read the amount in {!r}. Write one number in figures, such as 1,500 or 2.5."
UNREAD_CHINESE = "我看不懂“{}”里的数。请用数字写一个数，例如1500或2.5。"
_ONE = re.compile(r"(?:\b(?:an?|one|per)\s+|一)$")


class Currency(NamedTuple):
    """A row of currencies.csv. `per_dollar`: how many of them a US dollar is."""

    code: str
    per_dollar: float


class Unit(NamedTuple):
    """A row of units.csv. `factor`: how many of the first unit of its kind it is."""

    symbol: str
    kind: str
    factor: float


class Asked(NamedTuple):
    """`value` in what `source` names is to be told in what `target` names: keys of the table."""

    value: float
    source: str
    target: str


class _Mention(NamedTuple):
    start: int
    end: int
    name: str


@functools.cache
def currencies() -> Mapping[str, Currency]:
    """Currencies by every name."""
    found = {}
    for row in rows("currencies.csv"):
        for name in (row["code"], *row["names"].split(";")):
            found[name.casefold()] = found[name.casefold().removesuffix("s")] = Currency(
                row["code"], float(row["per_dollar"])
            )
    return found


@functools.cache
def units() -> Mapping[str, Unit]:
    """Units by every name."""
    return {
        name.casefold(): Unit(row["unit"], row["kind"], float(row["factor"]))
        for row in rows("units.csv")
        for name in (row["unit"], *row["names"].split(";"))
    }


def converted(value: float, source: Unit, target: Unit) -> float:
    """A value in another unit of the same kind. Temperatures go over kelvin."""
    if source.kind != "temperature":
        return value * source.factor / target.factor
    offset, share = _SCALES[source.symbol]
    kelvin = (value + offset) * share
    offset, share = _SCALES[target.symbol]
    return kelvin / share - offset


def read_request(text: str, table: Mapping[str, Any]) -> Asked | None:
    """What a sentence asks for; None where it does not name two that the table has.

    The number is of what stands next to it. Without a number it is one: of what stands behind "a", else, where the sentence
    asks how many, of what is named last, else of what is named first. Raises ValueError where an amount is said that is not
    read, or more than one: 5 feet 3 inches.
    """
    said = in_figures(text.casefold(), *filter(has_chinese, table), "度")
    if "k" not in table:  # which is kelvin among the units
        said = re.sub(rf"(\d+(?:\.\d+)?)({'|'.join(_SHORT)})\b", _lengthened, said)
    numbers = list(_NUMBER.finditer(said))
    number = numbers[0] if numbers else None
    mentions = _mentions(said, table, number)
    if len({table[mention.name] for mention in mentions}) < 2:
        return None
    if any(_is_amount(said, other, mentions) for other in numbers[1:]):
        raise ValueError("More than one amount is said.")
    source = _source(said, mentions, number)
    target = next(mention for mention in mentions if table[mention.name] != table[source.name])
    return Asked(_value(number[0]) if number else 1.0, source.name, target.name)


def unread(text: str) -> str:
    """What is answered where an amount cannot be read: none is guessed."""
    return (UNREAD_CHINESE if has_chinese(text) else UNREAD).format(text[:60])


def _value(figure: str) -> float:
    """A figure whose commas part thousands; ValueError for 1,5."""
    if "," in figure and not re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", figure):
        raise ValueError(f"{figure} is not read.")
    return float(figure.replace(",", ""))


def _lengthened(found: re.Match[str]) -> str:
    return f"{float(found[1]) * _SHORT[found[2]]:.0f}"


def _is_amount(said: str, number: re.Match[str], mentions: list[_Mention]) -> bool:
    """Whether a number stands beside one of the names."""
    return any(
        not said[min(number.end(), mention.end) : max(number.start(), mention.start)].strip(" °")
        for mention in mentions
    )


def _source(said: str, mentions: list[_Mention], number: re.Match[str] | None) -> _Mention:
    if number is not None:
        return min(
            mentions, key=lambda m: m.start - number.end() if m.start >= number.end() else number.start() - m.end
        )
    one = [mention for mention in mentions if _ONE.search(said[: mention.start])]
    return one[0] if one else mentions[-1] if said.startswith(("how many", "how much")) else mentions[0]


def _mentions(said: str, table: Mapping[str, Any], number: re.Match[str] | None) -> list[_Mention]:
    """The names in a text, in their order; the longest where they overlap.

    "in" is a word more often than an inch: names of one or two letters are read behind the number and at the end alone.
    """
    found: list[_Mention] = []
    for name in sorted(table, key=len, reverse=True):
        edge = "" if has_chinese(name) or not name[0].isalnum() else r"(?<![a-z])"
        for match in re.finditer(
            edge + re.escape(name) + ("(?![a-z])" if name[-1].isascii() and name[-1].isalpha() else ""), said
        ):
            start, end = match.span()
            if name.isascii() and name.isalpha() and len(name) <= 2:
                behind = number is not None and not said[number.end() : start].strip(" °") and start >= number.end()
                if not behind and said[end:].strip(" ?.!"):
                    continue
            if all(end <= other.start or start >= other.end for other in found):
                found.append(_Mention(start, end, name))
    return sorted(found)

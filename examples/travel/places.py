"""Cities and their usual weather: the tables cities.csv and climate.csv, found by any of a city's names."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import csv
import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

HERE = Path(__file__).resolve().parent

NO_CITY = re.compile(
    r"(?:(?:the |current |local )?(?:weather|forecast|climate|temperature|rain\w*|snow\w*|umbrella|(?:rain)?coat|jacket|hot|cold|"
    r"warm|chilly|freezing|sunny|windy|humid|sun|sun ?(?:rise|set)s?|daylight|dusk|dawn|dark|time|hour|clock|day)\b ?)*|"
    r"(?:天气|气温|温度|下雨|下雪|多少度|[冷热]不?[冷热]?吗?|日出|日落|天黑|天亮|太阳|几点钟?|时间|星期几|怎么样|什么|的)*"
)
"""What a question is about, and no city: a small model points there where the user named none."""


class City(NamedTuple):
    """A row of cities.csv."""

    name: str
    chinese: str
    latitude: float
    longitude: float
    zone: ZoneInfo


class Normal(NamedTuple):
    """A month of climate.csv: degrees Celsius, millimetres."""

    high: int
    low: int
    rain: int


def rows(name: str) -> list[dict[str, str]]:
    """A table's rows. Lines that begin with # are for people."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def key(text: str) -> str:
    """A name as tables are searched for it: without case, accents, brackets and what a model puts around it."""
    bare = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(c for c in bare if not unicodedata.combining(c) and c not in "'’\"()[]")
    return " ".join(re.sub(r"[_,.。，市?？]", " ", bare).split())


def has_chinese(*texts: str) -> bool:
    """Whether one of them has a Chinese character."""
    return any("\u4e00" <= c <= "\u9fff" for text in texts for c in text)


def within(text: str, names: Iterable[str]) -> str | None:
    """The longest of the names that the text is or has, as whole words where it is written with spaces."""
    found = [
        name
        for name in names
        if (name in text if has_chinese(name) or not name.isalnum() else re.search(rf"\b{re.escape(name)}\b", text))
    ]
    return max(found, key=len, default=None)


@functools.cache
def cities() -> Mapping[str, City]:
    """Cities by every name."""
    found = {}
    for row in rows("cities.csv"):
        place = (float(row["latitude"]), float(row["longitude"]))
        city = City(row["name"], row["chinese"], *place, ZoneInfo(row["zone"]))
        for name in (city.name, city.chinese, *filter(None, row["spellings"].split(";"))):
            found[key(name)] = city
    return found


@functools.cache
def normals() -> Mapping[str, tuple[Normal, ...]]:
    """Twelve months by city."""
    return {
        row["city"]: tuple(Normal(*map(int, row[str(month)].split("/"))) for month in range(1, 13))
        for row in rows("climate.csv")
    }


def city_of(text: str) -> City | None:
    """The city that a text names, alone or, unless the name is very short, among other words."""
    said = key(text)
    name = said if said in cities() else within(said, (name for name in cities() if has_chinese(name) or len(name) > 3))
    return None if name is None else cities()[name]


def unknown_city(text: str) -> str:
    """The answer where no city is found. It asks for the whole question again, since a city alone finds no tool."""
    count = len(normals())
    asks = NO_CITY.fullmatch(key(text)) is not None
    if has_chinese(text):
        head = "请带上城市名再问一次。" if asks else f"{text[:40]}：没有资料。"
        return f"{head}有资料的是{count}个城市，例如上海、东京、伦敦和纽约。"
    head = "Name a city, and ask again." if asks else f"{text[:40]}: no data."
    return f"{head} There are data of {count} cities, such as Shanghai, Tokyo, London and New York."


def today_in(city: City) -> date:
    """The date in the city."""
    return datetime.now(city.zone).date()

"""The travel desk: its tables, its sun, what it reads out of people's words, and one question in a daemon."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from acu.config import load
from agentflow.agents import form
from agentflow.messages import Message, Tool
from agentflow.router import Router, Turn
from agentflow.routing.cards import ToolCard
from agentflow.tools.toolmodule import load_functions
from tests.acu.running import DaemonFactory, acu
from tests.examples.loading import EXAMPLES, module_of, served, tools_of

TOOLS = tools_of("travel")
DAYS = module_of("travel", "days")
PLACES = module_of("travel", "places")
SUNLIGHT = module_of("travel", "sunlight")
TODAY = date(2026, 11, 30)  # a Monday


@pytest.mark.parametrize(
    ("tool", "questions"),
    [
        (
            "city_time",
            "北京现在几点|现在北京几点|北京几点了|北京时间|上海现在几点|伦敦今天星期几|Time in Paris now, o'clock?",
        ),
        ("sun_times", "北京几点日出|今天上海什么时候天黑|巴黎12月24日几点天黑|北京太阳几点下山|冬至那天广州白天有多长"),
        ("weather", "北京天气怎么样|北京现在多少度|现在北京下雨吗|北京明天冷吗|Is it cold in Beijing now?"),
        ("convert_currency", "100美元等于多少人民币|把500元换成日元"),
        ("convert_units", "10英里等于多少公里|把华氏100度换成摄氏度"),
        (None, "你好|北京是谁建的|介绍一下北京|法国的首都是哪里|Who is the mayor of Beijing?"),
    ],
)
def test_a_question_finds_its_tool_by_words_alone(tool: str | None, questions: str) -> None:
    functions = load_functions(str(EXAMPLES / "travel" / "tools.py"))
    router = Router([ToolCard.of(function.spec) for function in functions.values()])
    for question in questions.split("|"):
        decision = router.decide(Turn(text=question))
        assert (decision.route, decision.tool) == (("extract", tool) if tool else ("answer", None)), question


@pytest.mark.parametrize(
    ("city", "day", "rise", "down"),
    [
        ("London", date(2024, 6, 21), "04:43", "21:21"),  # as almanacs have them
        ("New York", date(2024, 12, 21), "07:17", "16:32"),
        ("Sydney", date(2024, 12, 21), "05:41", "20:05"),
    ],
)
def test_the_sun_rises_and_sets_within_two_minutes_of_what_almanacs_say(
    city: str, day: date, rise: str, down: str
) -> None:
    place = PLACES.city_of(city)
    for computed, said in zip(SUNLIGHT.sun(place.latitude, place.longitude, day), (rise, down), strict=True):
        published = datetime.fromisoformat(f"{day} {said}").replace(tzinfo=place.zone)
        assert abs(computed - published) <= timedelta(minutes=2)


def test_where_the_sun_does_not_set_there_are_no_times() -> None:
    assert SUNLIGHT.sun(78.2, 15.6, date(2024, 6, 21)) is None
    assert SUNLIGHT.sun(78.2, 15.6, date(2024, 12, 21)) is None


def test_a_city_is_found_by_all_its_names_alone_and_among_other_words() -> None:
    for said in ("Shanghai", "shanghai, China", " SHANGHAI ", "上海", "上海市", "上海明天", "in Shanghai"):
        assert PLACES.city_of(said).name == "Shanghai", said
    assert PLACES.city_of("東京").name == "Tokyo"
    assert PLACES.city_of("NYC").zone == ZoneInfo("America/New_York")
    assert PLACES.city_of("xi'an").name == PLACES.city_of("Xian").name == "Xi'an"
    assert PLACES.city_of("LA").name == "Los Angeles"
    for said in ("La Paz", "Atlantis", "", "?", "\ud800"):
        assert PLACES.city_of(said) is None, said


def test_every_city_has_twelve_months_that_can_be() -> None:
    assert {city.name for city in PLACES.cities().values()} == set(PLACES.normals())
    for city, months in PLACES.normals().items():
        assert len(months) == 12, city
        assert all(-40 < month.low < month.high < 50 and 0 <= month.rain < 1000 for month in months), city


SAID = {
    date(2026, 11, 27): ("上周五", "last Friday"),
    date(2026, 11, 28): ("前天",),
    TODAY: ("today", "今晚", "30号", "in zero days", "星期一", "right now"),
    date(2026, 12, 1): ("tomorrow", "明天", "明天早上"),
    date(2026, 12, 2): ("the day after tomorrow", "后天", "周三", "这周三"),
    date(2026, 12, 3): ("大后天", "三天后", "in 3 days"),
    date(2026, 12, 4): ("Friday", "周五"),
    date(2026, 12, 5): ("this weekend", "下个月五号", "5号"),
    date(2026, 12, 7): ("in a week", "next Monday"),
    date(2026, 12, 9): ("in nine days", "下周三"),
    date(2026, 12, 12): ("下周末",),
    date(2026, 12, 14): ("两周后", "in two weeks"),
    date(2026, 12, 20): ("下下周日",),
    date(2026, 12, 21): ("冬至",),
    date(2026, 12, 24): ("24 December", "12月24日", "十二月二十四日", "平安夜"),
    date(2027, 1, 5): ("2027年1月5日",),
    date(2027, 1, 15): ("in January",),
    date(2027, 2, 3): ("2027-02-03",),
    date(2027, 3, 15): ("明年三月",),
    date(2027, 6, 21): ("June 21st",),
    date(2027, 10, 1): ("国庆节",),
    date(2028, 12, 24): ("24 December 2028",),
}


@pytest.mark.parametrize(("said", "day"), [(said, day) for day, all_ in SAID.items() for said in all_])
def test_days_are_read_as_people_say_them(said: str, day: date) -> None:
    assert DAYS.day_of(said, TODAY) == day


@pytest.mark.parametrize(
    "said", ["Athens", "31 February", "2026-02-30", "whenever", "Easter", "春节", "两三天后", "", "\ud800"]
)
def test_a_day_that_cannot_be_read_is_refused_and_not_taken_for_today(said: str) -> None:
    assert DAYS.day_of(said, TODAY) is None
    told = f"I cannot read the day {said!r}. Say today, tomorrow, a day of the week, or a date such as 24 December."
    assert TOOLS["sun_times"]("Athens", said) == TOOLS["weather"]("Athens", said) == told
    assert TOOLS["weather"]("上海", "春节") == "我看不懂“春节”是哪一天。请说今天、明天、星期五，或12月24日这样的日期。"


def test_without_a_day_it_is_today() -> None:
    assert TOOLS["sun_times"]("Athens") == TOOLS["sun_times"]("Athens", "today")
    assert TOOLS["weather"]("上海") == TOOLS["weather"]("上海", "今天")


def test_the_day_of_every_example_is_among_the_words_that_the_small_model_may_take() -> None:
    functions = load_functions(str(EXAMPLES / "travel" / "tools.py"))
    for name in ("weather", "sun_times"):
        spec = functions[name].spec
        tool = Tool(spec.name, spec.description, spec.parameters)
        for text in spec.examples:
            sampling = form.sampling(tool, [Message("user", text)])
            assert sampling.structured is not None
            day = sampling.structured.value["properties"].get("day")
            for said in day["enum"] if day else ():
                assert DAYS.day_of(said, TODAY) is not None, (text, said)
            assert (day is None) == (text == "去哈尔滨要穿羽绒服吗？"), text


def test_the_weather_is_the_months_and_says_that_it_is_no_forecast() -> None:
    assert TOOLS["weather"]("Shanghai", "2027-01-15") == (
        "Shanghai, Friday 15 January 2027: usually 9 °C by day and 3 °C at night, about 68 mm of rain in January. "
        "This is the usual climate, not a forecast."
    )
    assert TOOLS["weather"]("上海", "2027-01-15") == (
        "上海2027年1月15日星期五：通常白天9℃，夜间3℃，1月降水约68毫米。这是气候平均值，不是预报。"
    )
    for said in ("weather", "the weather", "rain", "sunset", "time"):
        assert TOOLS["weather"](said, "Friday").startswith(
            "Name a city, and ask again. There are data of 47 cities, such as Shanghai"
        ), said
    for said in ("天气", "天气怎么样", "几点", "冷吗"):
        assert TOOLS["weather"](said, "周五").startswith("请带上城市名再问一次。有资料的是47个城市"), said
    assert TOOLS["weather"]("Timeless", "today").startswith("Timeless: no data.")
    assert TOOLS["weather"]("Atlantis", "today").startswith("Atlantis: no data.")
    assert TOOLS["weather"]("亚特兰蒂斯", "今天").startswith("亚特兰蒂斯：没有资料。")


def test_sun_and_time_are_told_in_the_citys_own_time() -> None:
    assert TOOLS["sun_times"]("London", "2027-06-21").endswith("sets at 21:21 local time; the day is 16 h 39 min long.")
    assert "日出" in TOOLS["sun_times"]("北京", "今天")
    assert TOOLS["city_time"]("Tokyo").endswith("(UTC+0900).")


def test_its_configuration_is_valid(clean_environ: dict[str, str]) -> None:
    loaded = load(clean_environ, file=EXAMPLES / "travel" / "acu.yaml", gpu_present=False)
    assert set(loaded.config.agents["travel"].tools) == set(TOOLS)


def test_a_question_is_answered_in_a_daemon_and_the_chat_shows_what_the_tool_did(
    daemon: DaemonFactory, tmp_path: Path
) -> None:
    script = {
        "rules": [
            {"match": "^weather in Rome on 15 May", "answer": '{"city": "Rome", "day": "15 May"}'},
        ]
    }
    running = daemon(served("travel", tmp_path / "data"), script=script)
    words = ("--socket", str(running.socket), "--agent", "travel", "--once", "weather in Rome on 15 May")
    done = acu("chat", *words, environ=running.environ)
    assert (done.returncode, done.stderr) == (0, '-> weather {"city": "Rome", "day": "15 May"}\n')
    assert done.stdout.startswith("Rome, ")
    assert "usually 24 °C by day and 13 °C at night" in done.stdout

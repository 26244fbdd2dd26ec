"""Where in a text names may stand."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import pytest

from agentflow.agents.userwords import may_be, parted, stretches


@pytest.mark.parametrize(
    ("text", "aliases", "left"),
    [
        ("巴黎几点天黑", (), "巴黎;天黑"),
        ("巴黎几点天黑", ("天黑",), "巴黎;;"),
        ("北京热不热", (), "北京;"),
        ("旧金山现在是几点", (), "旧金山;是;"),
        ("首尔冷吗？", ("冷吗",), "首尔;？"),
        ("巴塞罗那天气", (), "巴塞罗那天气"),
        ("巴黎那天热", (), "巴黎;热"),
        ("吗啡是什么", (), "吗啡是;"),
        ("Release of THE search Service", ("release", "the search"), "; of ; Service"),
        ("unreleased releases", ("release",), "unreleased releases"),
        ("a+b?", ("a+b", " "), ";?"),
        ("the sun set in Rome", ("sun", "sun set"), "the ; in Rome"),
    ],
)
def test_what_asks_and_what_found_the_tool_part_a_text(text: str, aliases: tuple[str, ...], left: str) -> None:
    assert parted(text, aliases) == left


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("我要去莫斯科", ["我要去莫斯科", "要去莫斯科", "莫斯科"]),
        ("从化", ["从化"]),
        ("那不勒斯", ["那不勒斯", "不勒斯"]),
        ("政和今天", ["政和今天", "政和", "今天"]),
        ("巴塞罗那;了", ["巴塞罗那"]),
        ("我要;你的", []),
        ("悉尼的;和平饭店", ["悉尼", "和平饭店", "平饭店"]),
        ("巴;T恤 Rome", ["T恤"]),
        ("", []),
    ],
)
def test_chinese_is_taken_in_stretches(text: str, found: list[str]) -> None:
    assert stretches(text) == found


@pytest.mark.parametrize(
    ("phrase", "text", "kept"),
    [
        ("Rome", "Is it warm in Rome", True),
        ("in Rome", "Is it warm in Rome", False),
        ("Rome in", "Rome in May", False),
        ("Bank of China", "the Bank of China", True),
        ("The Hague", "sunny in The Hague", True),
        ("IT", "who leads IT", True),
        ("Can", "Can I wear shorts", False),
        ("Can I wear", "Can I wear shorts", False),
        ("Will Smith", "Will Smith's address", True),
        ("的太阳", "悉尼的太阳", False),
        ("台北要", "台北要带伞", False),
        ("巴塞罗那", "巴塞罗那几点了", True),
        ("I", "shall I go", False),
        ("don\u2019t", "Rome, don\u2019t", False),
        ("Meet Will", "Meet Will tomorrow", True),
        ("Phone lovely IT", "Phone lovely IT now", True),
        ("__", "a __", True),
    ],
)
def test_a_phrase_neither_begins_nor_ends_with_a_function_word(phrase: str, text: str, kept: bool) -> None:
    assert may_be(phrase, text) is kept

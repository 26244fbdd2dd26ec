"""Which cards a text's words speak for."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import pytest

from agentflow.routing.cards import ToolCard
from agentflow.routing.lexical import LexicalIndex, Match

CARDS = [
    ToolCard(
        name="weather",
        description="Weather at a place",
        parameters={"properties": {"location": {"description": "town"}, "odd": True}},
        examples=("Is it wet in Paris?", "Is it wet in Rome?"),
        aliases=("forecast", "\u5929\u6c14"),
    ),
    ToolCard(name="convert_money", aliases=("exchange rate", "pounds sterling", "rate")),
    ToolCard(name="convert_units", aliases=("pounds",)),
    ToolCard(name="", aliases=("poem",), openers=("why", "how do")),
]


@pytest.fixture(scope="module")
def index() -> LexicalIndex:
    return LexicalIndex(CARDS)


@pytest.mark.parametrize(
    "text", ["the forecast", "\u660e\u5929\u5929\u6c14", "weather", "wet", "which location", "a town"]
)
def test_names_aliases_descriptions_parameters_and_what_examples_share_speak_for_a_card(
    index: LexicalIndex, text: str
) -> None:
    assert set(index.match(text)) == {0}


def test_what_one_example_says_speaks_for_nothing(index: LexicalIndex) -> None:
    assert index.match("Paris or Rome") == {}


def test_an_alias_says_more_than_an_example_and_repeating_it_says_no_more(index: LexicalIndex) -> None:
    alias = index.match("the box, a forecast")[0].evidence
    assert alias > index.match("the box, a wet one")[0].evidence
    assert index.match("the box, a forecast forecast forecast")[0].evidence == alias


def test_what_many_cards_have_says_less(index: LexicalIndex) -> None:
    shared = index.match("box of convert")
    assert set(shared) == {1, 2}
    assert shared[1].evidence < index.match("box of forecast")[0].evidence


def test_an_alias_of_two_words_takes_what_is_within_it(index: LexicalIndex) -> None:
    assert index.match("box, pounds sterling") == {1: Match(3 / 4.2, ("pound sterl",))}
    assert set(index.match("box, pounds")) == {2}
    assert index.match("box, exchange rate")[1].terms == ("exchange rate",)


@pytest.mark.parametrize("text", ["wether", "weahter", "weathr", "weaather", "wezther"])
def test_one_slip_is_forgiven(index: LexicalIndex, text: str) -> None:
    found = index.match(f"box {text}")[0]
    assert found.terms == ("weather",)
    assert found.evidence == pytest.approx(0.8 * index.match("box weather")[0].evidence)


@pytest.mark.parametrize("text", ["feather", "wthr", "poet", "weatherx"])
def test_other_words_are_not_taken_for_slips(index: LexicalIndex, text: str) -> None:
    assert index.match(f"box {text}") == {}


def test_what_opens_a_turn_counts_more(index: LexicalIndex) -> None:
    assert index.match("please, the forecast")[0].evidence == pytest.approx(
        1.5 * index.match("box forecast")[0].evidence
    )


def test_openers_speak_only_where_a_turn_begins(index: LexicalIndex) -> None:
    assert set(index.match("so, how do clouds form")) == {3}
    assert set(index.match("well, why")) == {3}
    assert index.match("clouds and how do they form") == {}


def test_openers_and_aliases_of_what_is_asked_speak_for_a_card_whose_examples_have_them() -> None:
    direct = ToolCard(name="", aliases=("是谁",), openers=("who is", "why"))
    asked = ToolCard(name="owner", examples=("Please, who is the owner of it?", "负责人是谁？"))
    other = ToolCard(name="deploy", examples=("so it is known who is here",))
    found = LexicalIndex([asked, other, direct])
    assert set(found.match("who is he")) == {0, 2}
    assert set(found.match("他是谁")) == {0, 2}
    assert set(found.match("why")) == {2}
    alone = LexicalIndex([other, direct]).match("who is he")[1].evidence
    assert found.match("who is he")[2].evidence < alone


def test_a_way_of_asking_is_the_tools_where_the_turn_has_more_of_it() -> None:
    direct = ToolCard(name="", aliases=("是谁",), openers=("who is", "谁"))
    owner = ToolCard(name="owner", examples=("Who is the keeper of it?", "负责人是谁？"), aliases=("负责", "keeper"))
    deploy = ToolCard(name="deploy", aliases=("release",))
    found = LexicalIndex([owner, deploy, direct])
    assert set(found.match("ledger 是谁负责的")) == {0}
    assert set(found.match("who is the keeper of ledger")) == {0}
    assert set(found.match("法国总统是谁")) == set(found.match("who is she")) == {0, 2}
    assert set(found.match("who is on the release")) == {0, 1, 2}  # of the other tool's examples none asks so
    assert set(found.match("谁负责 ledger")) == {0, 2}  # and of this tool's none with this opener


@pytest.mark.parametrize(
    ("example", "text", "frame"),
    [
        ("billing 是谁负责的？", "ledger 是谁负责的?", "... 是谁负责的"),
        ("Who is on call for search?", "who is on call for ledger", "who is on call for ..."),
        ("谁是搜索的负责人？", "谁是 ledger 的负责人", "谁是 ... 的负责人"),
        ("Who is away?", "Who is away?", "who is away ..."),
    ],
)
def test_one_example_with_another_name_counts_as_an_alias_and_takes_the_way_of_asking(
    example: str, text: str, frame: str
) -> None:
    direct = ToolCard(name="", aliases=("是谁",), openers=("who is", "谁"))
    found = LexicalIndex([ToolCard(name="owner", examples=(example,)), ToolCard(name="deploy"), direct]).match(text)
    assert set(found) == {0}
    assert found[0].terms[0] == frame
    assert found[0].evidence > 3 / 4.2


def test_of_a_cards_frames_the_longest_alone_counts() -> None:
    direct = ToolCard(name="", openers=("who is",))
    owner = ToolCard(name="owner", examples=("Who is on call for search now?", "Who is on call for search today?"))
    found = LexicalIndex([owner, direct]).match("who is on call for ledger today")[0]
    assert [term for term in found.terms if term.startswith("who is on call")] == ["who is on call for ... today"]


@pytest.mark.parametrize(
    ("example", "text"),
    [
        ("Who is the owner of search?", "who is the president of France"),
        ("Who is the owner?", "who is the president"),  # nothing but a way of asking
        ("billing 是谁？", "ledger 是谁"),
        ("Who is the pilot of search?", "Who is the author of search?"),
    ],
)
def test_a_way_of_asking_alone_makes_no_frame(example: str, text: str) -> None:
    direct = ToolCard(name="", aliases=("是谁",), openers=("who is", "谁"))
    owner = ToolCard(name="owner", description="Pilots", examples=(example,))
    assert 1 in LexicalIndex([owner, direct]).match(text)


def test_a_place_in_the_examples_of_many_cards_says_less_though_only_one_has_it_twice() -> None:
    sun = ToolCard(name="sun", examples=("北京何时天黑", "冬至北京白天多长"), aliases=("天黑",))
    others = [ToolCard(name=name, examples=(f"{name}北京",)) for name in ("时间", "天气")]
    alone = LexicalIndex([sun, *(ToolCard(name=card.name) for card in others)]).match("去北京")[0].evidence
    shared = LexicalIndex([sun, *others]).match("去北京")
    assert shared[0].terms == ("北京",)
    assert shared[0].evidence < 0.5 * alone


def test_what_only_examples_say_counts_no_more_where_it_opens_a_turn() -> None:
    found = LexicalIndex(CARDS)
    assert found.match("wet box")[0].evidence == found.match("box wet")[0].evidence
    assert found.match("forecast box")[0].evidence > found.match("box forecast")[0].evidence


def test_what_a_card_is_called_counts_as_that_and_what_one_example_says_twice_once() -> None:
    direct = ToolCard(name="", aliases=("是谁",), openers=("who is",))
    called = ToolCard(name="owner", aliases=("是谁",), examples=("负责人是谁？",))
    found = LexicalIndex([called, direct]).match("他是谁")
    assert found[0].evidence == found[1].evidence
    once, twice = (ToolCard(name="owner", examples=(text,)) for text in ("是谁？", "是谁？是谁？"))
    assert LexicalIndex([once, direct]).match("他是谁") == LexicalIndex([twice, direct]).match("他是谁")


def test_cards_with_odd_schemas_and_no_cards_at_all_are_taken() -> None:
    odd = [ToolCard(name="x", parameters={"properties": []}), ToolCard(name="y", aliases=("", "?!"))]
    assert LexicalIndex(odd).match("anything") == {}
    assert LexicalIndex([]).match("anything") == {}

"""Which cards a text's words speak for."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import pytest
from msgspec import structs

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


REBOOT = ToolCard(
    name="reboot", examples=("Reboot host beta", "Please restart host beta", "请重启 beta 主机", "重启主机 beta")
)


@pytest.mark.parametrize(
    ("example", "text", "frame"),
    [
        ("How is host alpha doing?", "How is host beta doing?", "how is host ... doing"),
        ("主机 alpha 还好吗？", "主机 beta 还好吗", "主机 ... 还好吗"),
        ("Is alpha host well?", "Is beta host well?", "is ... host well"),
    ],
)
@pytest.mark.parametrize("description", ["", "Host. 主机"])
def test_the_frame_of_an_example_counts_and_the_name_in_its_place_speaks_for_no_other_tool(
    example: str, text: str, frame: str, description: str
) -> None:
    reboot = structs.replace(REBOOT, examples=(*REBOOT.examples, "Reboot beta host", "Restart beta host"))
    cards = [reboot, ToolCard(name="state", description=description, examples=(example,))]
    found = LexicalIndex(cards).match(text)
    assert found[1].framed
    assert found[1].terms[0] == frame
    assert found[1].evidence >= 3 / 4.2
    assert not found[0].framed
    assert "beta" not in found[0].terms
    assert "beta" in LexicalIndex([reboot, ToolCard(name="state")]).match(text)[0].terms


@pytest.mark.parametrize(
    ("text", "description", "counts"),
    [
        ("Is it safe in sunny Paris?", "", False),
        ("Is it so in sunny Paris?", "", False),  # "it so" says nothing: it may be followed by anything
        ("Is it safe in sunny Paris?", "Of Paris", True),
        ("Is it safe in sunny Paris?", "Wet, of Paris", False),  # what the example is about is no name
        ("Is it wet in sunny Rome?", "", False),
        ("Is it wet in rainy Rome?", "", True),  # as in "rainy Rome"
        ("Is it wet in sunny Rome?", "Of the sun", False),
    ],
)
def test_a_frame_counts_where_its_card_is_called_so_or_an_example_has_the_name_in_such_a_place(
    text: str, description: str, counts: bool
) -> None:
    examples = ("Is it wet in sunny Paris?", "Is it wet in rainy Pisa?")
    weather = ToolCard(name="weather", description=description, examples=examples)
    other = ToolCard(name="other", examples=("to rainy Rome by train", "is it so?"))
    assert any(match.framed for match in LexicalIndex([weather, other]).match(text).values()) == counts


def test_what_leaves_the_name_out_and_what_is_asked_of_anything_is_framed_by_no_name() -> None:
    state = ToolCard(name="state", examples=("Is it on host alpha?", "to host"))
    general = ToolCard(name="", examples=("Is it on host beta now?",), openers=("is it",))
    found = LexicalIndex([state, general])
    assert not any(match.framed for match in LexicalIndex([state]).match("Is it on host?").values())
    assert {number for number, match in found.match("is it on host beta").items() if match.framed} == {0}


def test_a_word_in_the_place_of_a_name_by_which_a_tool_is_called_speaks_for_it() -> None:
    cards = [
        ToolCard(name="state", description="Host", examples=("How is host alpha doing?",)),
        ToolCard(name="reboot"),
    ]
    found = LexicalIndex(cards).match("How is host reboot doing?")
    assert found[0].framed
    assert found[1].terms == ("reboot",)


def test_what_varies_among_a_cards_examples_says_no_more_than_what_one_example_says() -> None:
    twice = ("Reboot host beta", "Bounce beta")
    assert LexicalIndex([ToolCard(name="do", examples=twice)]).match("beta")[0].terms == ("beta",)
    assert LexicalIndex([ToolCard(name="do", examples=(*twice, "Reboot host gamma"))]).match("beta") == {}
    called = ToolCard(name="beta", examples=(*twice, "Reboot host gamma"))
    assert LexicalIndex([called]).match("beta")[0].terms == ("beta",)


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

"""Decisions, in English and Chinese, with and without vectors; the vectors here are written by hand, one direction a card."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentflow.router import Decision, Router, Thresholds, Turn
from agentflow.routing.cards import ToolCard
from agentflow.routing.direct import DIRECT
from agentflow.routing.semantic import card_texts
from agentflow.tools.tool import ToolSpec

CARDS = msgspec.json.decode((Path(__file__).parent / "routing_cards.json").read_bytes(), type=list[ToolCard])
NAMES = [card.name for card in CARDS]
TALK = len(CARDS)  # the number of the card of no tool: the last
TEXTS = card_texts((*CARDS, DIRECT))
SHANGHAI = "\u4e0a\u6d77\u660e\u5929\u5929\u6c14\u600e\u4e48\u6837"  # how is the weather in Shanghai tomorrow


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(CARDS)


@pytest.fixture(scope="module")
def seeing(router: Router) -> Router:
    """With vectors that know each card's texts from all others, in either language."""
    return router.with_vectors(np.eye(TALK + 1, dtype=np.float32)[[text.card for text in TEXTS]])


def toward(card: int, share: float = 1.0) -> np.ndarray:
    """A vector that is alike to one card's texts, and to no others."""
    vector = np.zeros(TALK + 1, np.float32)
    vector[card] = share
    return vector


def decide(router: Router, text: str, **said: Any) -> Decision:
    return router.decide(Turn(text=text, **said))


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("Will it rain in Sofia on Friday?", "weather"),
        (SHANGHAI, "weather"),
        ("80 pounds to euros", "convert_currency"),
        ("100美元是多少人民币", "convert_currency"),
        ("When is sunset in Tunis?", "sun_times"),
        ("青岛明天几点日出", "sun_times"),
        ("12 inches in cm", "convert_units"),
        ("3公里是多少英里", "convert_units"),
        ("12 * (3 + 4)", "calculator"),
        ("36乘以25等于几", "calculator"),
        ("What time is it in Quito?", "time_in"),
        ("罗马现在几点", "time_in"),
        ("What does the contract say about rent?", "search_documents"),
        ("合同里的租金是多少", "search_documents"),
        ("Remember that I like window seats", "write_note"),
        ("帮我记一下我的航班", "write_note"),
    ],
)
def test_a_turn_that_clearly_wants_one_tool_is_extracted_by_words_alone(router: Router, text: str, tool: str) -> None:
    decision = decide(router, text)
    assert (decision.route, decision.tool) == ("extract", tool)
    assert any(reason.startswith(f"{tool} ") and "the turn says" in reason for reason in decision.reasons)


@pytest.mark.parametrize(
    "text",
    [
        "Hello!",
        "thank you so much",
        "Write a poem about the weather",
        "Explain how exchange rates work",
        "Why is the sky blue?",
        "What is the capital of Chad?",
        "谢谢",
        "天气预报是怎么做出来的",
        "写一首关于下雨的诗",
        "为什么会有时差",
    ],
)
def test_what_needs_no_tool_is_answered_though_it_names_a_tools_subject(router: Router, text: str) -> None:
    decision = decide(router, text)
    assert (decision.route, decision.tool) == ("answer", None)
    assert decision.reasons[0] == "that no tool is wanted is likeliest"


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("What's the weather in Paris, and convert 100 euros to dollars", "weather", "convert_currency"),
        ("巴黎天气怎么样，顺便看看欧元汇率", "weather", "convert_currency"),
        ("When is sunset in Rome? What time is it there?", "sun_times", "time_in"),
    ],
)
def test_a_turn_with_two_requests_is_reasoned_about(router: Router, text: str, first: str, second: str) -> None:
    decision = decide(router, text)
    assert decision.route == "reason"
    assert decision.reasons[0] == "parts of the turn want different tools"
    assert [re.sub('^".*": ', "", reason) for reason in decision.reasons[1:]] == [first, second]


def test_a_comma_within_a_number_parts_no_requests(router: Router) -> None:
    decision = decide(router, "How many dollars are 1,450 euros?")
    assert (decision.route, decision.tool) == ("extract", "convert_currency")


def test_a_turn_between_two_tools_is_reasoned_about_and_both_are_named(router: Router) -> None:
    decision = decide(router, "evening plan: forecast sunset")
    assert decision.route == "reason"
    assert {decision.tool, decision.runner_up} == {"weather", "sun_times"}


def test_results_are_aggregated_whatever_the_text_says(router: Router) -> None:
    decision = decide(router, "Will it rain?", results_present=True)
    assert decision == Decision(route="aggregate", reasons=("results of tools are there",))


@pytest.mark.parametrize("text", ["and in Rome?", "what about Sunday?", "那后天呢？", "罗马呢"])
def test_a_short_follow_up_goes_to_the_tool_before(router: Router, text: str) -> None:
    assert decide(router, text).route == "answer"
    decision = decide(router, text, previous_tool="weather")
    assert (decision.route, decision.tool) == ("extract", "weather")
    assert "follow-up" in decision.reasons[0]


def test_a_follow_up_that_names_another_tool_goes_there(router: Router) -> None:
    decision = decide(router, "and what time is it there?", previous_tool="weather")
    assert (decision.route, decision.tool) == ("extract", "time_in")


def test_what_is_no_follow_up_forgets_the_tool_before(router: Router) -> None:
    assert decide(router, "thanks", previous_tool="weather").route == "answer"
    assert decide(router, "and in Rome?", previous_tool="a tool that is gone").route == "answer"
    long = "and please be so kind as to say what else you could do for my parents"
    assert decide(router, long, previous_tool="weather").route == "answer"


def test_vectors_find_a_tool_that_no_word_names(router: Router, seeing: Router) -> None:
    turn = Turn(text="shall I take my galoshes to Galway")
    assert router.decide(turn).route == "answer"
    decision = seeing.decide(turn, toward(NAMES.index("weather")))
    assert (decision.route, decision.tool) == ("extract", "weather")
    assert any("is like" in reason for reason in decision.reasons)


def test_vectors_that_are_between_two_tools_leave_it_to_reason(seeing: Router) -> None:
    vector = toward(NAMES.index("weather"), 0.7) + toward(NAMES.index("sun_times"), 0.7)
    assert seeing.decide(Turn(text="conditions at the lookout"), vector).route == "reason"


def test_vectors_of_talk_are_answered(seeing: Router) -> None:
    assert seeing.decide(Turn(text="blimey"), toward(TALK)).route == "answer"


def test_an_embedder_that_mistakes_chinese_is_outvoted_by_examples_and_aliases(router: Router) -> None:
    """The small English encoder's cosines: 0.17 for the weather, 0.31 for a wrong tool; all its Chinese vectors are alike."""
    wrong = NAMES.index("time_in")
    rows = [toward(wrong) if re.search("[\u4e00-\u9fff]", text.text) else toward(text.card) for text in TEXTS]
    vector = toward(wrong, 0.31) + toward(NAMES.index("weather"), 0.17)
    decision = router.with_vectors(np.stack(rows)).decide(Turn(text=SHANGHAI), vector)
    assert (decision.route, decision.tool) == ("extract", "weather")


def test_a_vector_without_vectors_of_the_cards_changes_nothing(router: Router) -> None:
    turn = Turn(text="Will it rain in Sofia?")
    assert router.decide(turn, toward(TALK)) == router.decide(turn)


def test_vectors_are_one_for_each_text_of_the_cards(router: Router) -> None:
    texts = router.texts()
    assert texts == [text.text for text in TEXTS]
    assert {text for card in CARDS for text in (card.description, *card.examples)} <= set(texts)
    with pytest.raises(ValueError, match="3 vectors of"):
        router.with_vectors(np.zeros((3, 4), np.float32))


def test_what_is_embedded_is_short_and_only_what_may_change_the_decision(router: Router, seeing: Router) -> None:
    turn = Turn(text="shall I take my galoshes")
    assert seeing.to_embed(turn) == turn.text
    assert seeing.to_embed(Turn(text="x" * 1000 + "y" * 80)) == "x" * 160 + " " + "y" * 80
    assert router.to_embed(turn) is None
    alike = router.with_vectors(np.ones((len(router.texts()), 1), np.float32))  # an embedder that knows nothing at all
    assert alike.to_embed(turn) is None
    assert seeing.to_embed(msgspec.structs.replace(turn, results_present=True)) is None
    assert seeing.to_embed(Turn(text="?!")) is None
    assert seeing.to_embed(Turn(text="and in Rome?", previous_tool="weather")) is None
    assert seeing.to_embed(Turn(text="Weather in Rome, and 100 euros in dollars")) is None


def test_where_words_are_decisive_no_vector_is_asked_for(router: Router, seeing: Router) -> None:
    turn = Turn(text="What is the weather forecast for Rome?")
    assert router.decide(turn).score > 0.95
    assert seeing.to_embed(turn) is None
    asking = Router(CARDS, Thresholds(decisive=2)).with_vectors(
        np.eye(TALK + 1, dtype=np.float32)[[text.card for text in TEXTS]]
    )
    assert asking.to_embed(turn) == turn.text


def test_thresholds_are_data_and_decide() -> None:
    text = "Will it rain in Sofia on Friday?"
    assert decide(Router(CARDS), text).route == "extract"
    assert decide(Router(CARDS, Thresholds(sure=1.0)), text).route == "reason"
    assert decide(Router(CARDS, Thresholds(direct_prior=20)), text).route == "answer"
    read = msgspec.convert({"sure": 0.5, "lead": 0.2}, Thresholds)
    assert (read.sure, read.lead, read.direct_prior) == (0.5, 0.2, 1.0)
    for wrong in ({"sure": 2}, {"evidence_scale": 0}, {"unheard_of": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Thresholds)


@pytest.mark.parametrize("text", ["Who is the owner of billing?", "谁是计费的负责人？", "计费的负责人是谁"])
def test_a_tool_whose_examples_ask_as_general_questions_do_is_not_beaten_by_how_it_is_asked(text: str) -> None:
    examples = ("Who is the owner of search?", "搜索的负责人是谁？", "谁是搜索的负责人？")
    owner = ToolCard(name="owner_of", description="Who owns a service.", examples=examples, aliases=("owner", "负责人"))
    deploy = ToolCard(name="deploy_status", description="Which release is deployed.", aliases=("deployed", "部署"))
    router = Router([owner, deploy])
    decision = decide(router, text)
    assert (decision.route, decision.tool) == ("extract", "owner_of")
    for general in ("Who is the president of France?", "谁发明了电灯", "法国总统是谁"):
        assert decide(router, general).route == "answer", general


@pytest.mark.parametrize("text", ["ledger 是谁负责的?", "谁负责 ledger?", "请问 ledger 是谁负责的"])
def test_a_named_thing_in_a_question_of_two_languages_finds_its_tool(text: str) -> None:
    deploy = ToolCard(name="deploy_status", description="Which release is deployed.", aliases=("deployed", "部署"))
    worded = ("billing 是谁负责的？", "谁负责 billing？")  # the form alone, and no alias
    alike = ("Who is the owner of search?", "搜索的负责人是谁？", "谁是搜索的负责人？")
    for examples, aliases in ((worded, ()), (alike, ("owner", "负责人"))):
        owner = ToolCard(name="owner_of", description="Who owns a service.", examples=examples, aliases=aliases)
        decision = decide(Router([owner, deploy]), text)
        assert (decision.route, decision.tool) == ("extract", "owner_of"), examples
        for general in ("谁发明了电灯", "法国总统是谁", "Who is the president of France?"):
            assert decide(Router([owner, deploy]), general).route == "answer", general


def test_a_city_that_other_tools_examples_have_does_not_hide_the_tool_that_is_asked_for() -> None:
    clock = ToolCard(name="city_time", examples=("现在纽约几点了？", "巴黎现在是什么时间？"), aliases=("现在几点",))
    sun = ToolCard(name="sun_times", examples=("今天北京什么时候天黑？", "冬至那天北京白天有多长？"), aliases=("天黑",))
    weather = ToolCard(name="weather", examples=("北京今天天气怎么样？",), aliases=("天气",))
    units = ToolCard(name="convert_units", aliases=("公里",))
    money = ToolCard(name="convert_currency", aliases=("汇率",))
    decision = decide(Router([weather, sun, clock, money, units]), "北京现在几点")
    assert (decision.route, decision.tool) == ("extract", "city_time")


@pytest.mark.parametrize("text", ["How is host beta doing?", "主机 beta 现在怎么样？"])
@pytest.mark.parametrize(
    "described", [("Reboot a host.", "How a host is doing."), ("Restart a machine.", "Its state."), ("", "")]
)
def test_a_name_from_the_examples_of_a_tool_that_does_harm_is_not_taken_for_it(
    text: str, described: tuple[str, str]
) -> None:
    harm = ("Reboot host beta", "Please restart host beta", "重启主机 beta", "请重启 beta 主机")
    reboot = ToolCard(name="reboot", description=described[0], examples=harm)
    asked = ("How is host alpha doing?", "主机 alpha 现在怎么样？")
    status = ToolCard(name="host_status", description=described[1], examples=asked)
    router = Router([reboot, status])
    decision = decide(router, text)
    assert (decision.route, decision.tool) == ("extract", "host_status")
    harmful = decide(router, "Reboot host alpha")
    assert (harmful.route, harmful.tool) == ("extract", "reboot")
    # An encoder that sees the name alone.
    rows = np.stack([toward(text.card) for text in card_texts((reboot, status, DIRECT))])
    decision = router.with_vectors(rows).decide(Turn(text=text), toward(0))
    assert (decision.route, decision.tool) == ("extract", "host_status")


def test_without_tools_every_turn_is_answered() -> None:
    router = Router([])
    seeing = router.with_vectors(np.eye(len(router.texts()), dtype=np.float32))
    for text in ("Will it rain?", "12 * 12", SHANGHAI, ""):
        assert decide(router, text) == Decision(route="answer", reasons=("there are no tools",))
        vector = np.ones(len(router.texts()), np.float32)
        assert seeing.decide(Turn(text=text), vector).route == "answer"


def test_one_tool_with_no_more_than_a_name_is_found() -> None:
    router = Router([ToolCard.of(ToolSpec(name="get_weather"))])
    assert decide(router, "how is the weather in Pau").tool == "get_weather"
    assert decide(router, "tell me about the Romans").route == "answer"


@pytest.mark.parametrize("text", ["", "   \n", "\0" * 1_000_000, "\U0001f600" * 500_000, "?!...", "\ud800"])
def test_a_turn_without_a_word_is_answered(router: Router, text: str) -> None:
    assert decide(router, text) == Decision(route="answer", reasons=("the turn has no words",))


@pytest.mark.parametrize(
    "text", ["weather, " * 120_000, "天气" * 500_000, "\ufdfa" * 1_000_000, "1+" * 500_000, "x" * 1_000_000]
)
def test_a_megabyte_is_read_at_its_head_and_tail_only(router: Router, text: str) -> None:
    assert decide(router, text) == decide(router, f"{text[:1500]} {text[-500:]}")


def test_a_request_below_a_long_paste_is_still_seen(router: Router) -> None:
    decision = decide(router, "blah " * 100_000 + " Will it rain in Sofia?")
    assert (decision.route, decision.tool) == ("extract", "weather")


def test_decisions_are_the_same_each_time(router: Router) -> None:
    text = "What's the weather in Paris, and 100 euros in dollars, and the time in Rome?"
    assert decide(Router(CARDS), text) == decide(router, text)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nine_in_ten_labelled_turns_are_routed_rightly_by_words_alone(router: Router, lang: str) -> None:
    lines = (Path(__file__).parent / "routing_turns.jsonl").read_bytes().splitlines()
    turns = [turn for turn in map(msgspec.json.decode, lines) if turn["set"] == "test" and turn["lang"] == lang]
    right = 0
    for turn in turns:
        found = decide(router, turn["text"], previous_tool=turn.get("previous_tool"))
        right += found.route == turn["route"] and (found.route != "extract" or found.tool == turn["tool"])
    assert right >= 0.9 * len(turns)


@pytest.mark.parametrize(
    ("text", "earlier", "tool"),
    [
        ("And in Paris?", ("What is the weather in Rome?",), "weather"),
        ("那巴黎呢", ("罗马明天天气怎么样",), "weather"),
        ("换成欧元呢", ("100美元是多少人民币",), "convert_currency"),
        ("And in Paris?", ("and in Berlin?", "Will it rain in Rome?"), "weather"),
        ("and 100 dollars in yen?", ("What is the weather in Rome?",), "convert_currency"),
    ],
)
def test_a_short_follow_up_is_read_with_the_turn_before_where_no_call_is_known(
    router: Router, text: str, earlier: tuple[str, ...], tool: str
) -> None:
    alone, decision = decide(router, text), decide(router, text, earlier=earlier)
    assert (decision.route, decision.tool) == ("extract", tool)
    told = f'a short follow-up, read together with "{earlier[-1]}"'
    assert (decision.reasons[0] == told) == (alone.route != "extract")


@pytest.mark.parametrize(
    ("text", "earlier"),
    [
        ("And the Sistine Chapel?", ("Who painted the Mona Lisa?",)),
        ("And thank you", ("What is the weather in Rome?",)),
        ("And why is the sky blue?", ("What is the weather in Rome?",)),
        ("And in Paris?", ()),
        ("And in Paris?", ("and in Berlin?",)),
        ("I wish I could be in Paris with all of you for the weekend", ("What is the weather in Rome?",)),
        ("And in Paris?", ("Who painted the Mona Lisa?", "What is the weather in Rome?")),
    ],
)
def test_what_is_no_follow_up_of_a_tools_turn_stands_by_itself(
    router: Router, text: str, earlier: tuple[str, ...]
) -> None:
    assert decide(router, text, earlier=earlier) == decide(router, text)
    assert decide(router, text).route == "answer"


def test_a_call_that_is_known_counts_more_than_an_earlier_turn(router: Router) -> None:
    decision = decide(router, "and in Rome?", previous_tool="sun_times", earlier=("What is the weather in Paris?",))
    assert (decision.route, decision.tool) == ("extract", "sun_times")
    assert decide(router, "and in Rome?", results_present=True, earlier=("Weather in Paris?",)).route == "aggregate"


def test_a_follow_up_is_embedded_together_with_the_turn_before(seeing: Router) -> None:
    before, text = "Do I need sunscreen in Rome?", "and in Paris?"
    assert seeing.to_embed(Turn(text=text, earlier=(before,))) == f"{before}\n{text}"
    decision = seeing.decide(Turn(text=text, earlier=(before,)), toward(NAMES.index("weather")))
    assert (decision.route, decision.tool) == ("extract", "weather")
    assert seeing.to_embed(Turn(text=text)) == text

"""What a turn shares with an example but for a name."""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

import pytest

from agentflow.routing.frames import Example, Frame, Frames, gaps
from agentflow.routing.terms import units

OWNER = units("Who is the owner of search?")
CHINESE = units("billing 是谁负责的？")
BOTH = units("谁是搜索的负责人？")


def frames(*examples: list[str], telling: tuple[int, ...] = ()) -> Frames:
    """Of one card each, whose units at `telling` speak for it."""
    return Frames(
        Example(number, said, [at in telling for at in range(len(said))]) for number, said in enumerate(examples)
    )


@pytest.mark.parametrize(
    ("example", "text", "frame"),
    [
        (OWNER, "who is the owner of the big ledger", Frame(0, 5, 0)),
        (OWNER, "Who is the owner of search?", Frame(0, 6, 0)),
        (CHINESE, "ledger 是谁负责的", Frame(0, 0, 5)),
        (CHINESE, "请问 ledger 是谁负责的", Frame(0, 0, 5)),
        (BOTH, "谁是 ledger 的负责人?", Frame(0, 2, 4)),
        (units("a b b a"), "a b a", Frame(0, 2, 1)),  # no unit of the turn is of the beginning and of the end
        (units("a b a"), "a b b a", Frame(0, 2, 1)),
    ],
)
def test_a_turn_with_another_name_in_its_place_has_the_frame_of_an_example(
    example: list[str], text: str, frame: Frame
) -> None:
    assert frames(example).of(units(text)) == [frame]


@pytest.mark.parametrize(
    ("example", "text"),
    [
        (OWNER, "who is the president of France"),  # it shares less than it has of its own
        (OWNER, "who is the owner of the house that stands by the river"),
        (OWNER, "who is search"),  # all that it has, and half of the example's
        (CHINESE, "这个很大很旧的房子是谁负责的"),
        (BOTH, "搜索"),
        (OWNER, ""),
        ([], "who"),
    ],
)
def test_what_differs_in_more_than_a_name_has_none(example: list[str], text: str) -> None:
    assert frames(example).of(units(text)) == []


def test_what_speaks_for_the_card_is_no_name_and_stays_in_the_frame() -> None:
    author = units("Who is the author of search?")
    assert frames(OWNER).of(author) == [Frame(0, 3, 2)]
    assert frames(OWNER, telling=(3,)).of(author) == []
    assert frames(OWNER, telling=(3,)).of(units("Who is the owner of ledger?")) == [Frame(0, 5, 0)]


def test_the_longest_frames_come_first_and_each_once() -> None:
    found = frames(units("a b c d x"), units("a b c d e x"), units("a b c d y")).of(units("a b c d e z"))
    assert found == [Frame(1, 5, 0), Frame(0, 4, 0), Frame(2, 4, 0)]


def test_what_texts_of_one_frame_differ_in_is_given_of_each() -> None:
    texts = [
        units(text)
        for text in ("Reboot host beta", "Reboot host gamma", "Please reboot", "重启主机 beta 吧", "重启主机吧")
    ]
    assert list(gaps(texts)) == [["beta"], ["gamma"], ["beta"], []]
    assert list(gaps(texts[:1])) == list(gaps([])) == []

"""Words of examples by which a question is taken for a tool that waits for a person."""

from __future__ import annotations

import pytest

from agentflow.routing.cards import ToolCard
from agentflow.routing.lonewords import LoneWord, lone_words

REBOOT = ("Reboot host beta", "Please bounce host beta now")


def found(
    examples: tuple[str, ...], *, others: tuple[str, ...] = (), asked: str = "reboot_host", **card: object
) -> list[str]:
    """The words that are told of."""
    reboot = ToolCard(name="reboot_host", examples=examples, **card)  # type: ignore[arg-type]
    load = ToolCard(name="host_load", examples=("How busy is host alpha?", "Is host alpha busy?", *others))
    return [word.word for word in lone_words([reboot, load], {asked})]


def test_a_name_that_several_examples_of_one_tool_alone_have_is_told_of() -> None:
    assert found(REBOOT) == ["beta"]
    (word,) = lone_words([ToolCard(name="reboot_host", examples=REBOOT)], {"reboot_host"})
    assert word == LoneWord("reboot_host", "beta", 2)
    assert word.told().startswith(
        "2 examples of reboot_host, which waits for a person, have 'beta', and no other tool's"
    )


@pytest.mark.parametrize(
    "examples",
    [
        ("Reboot host beta", "Please bounce host gamma"),  # each in one alone
        ("Reboot host beta, beta I say",),
        ("Reboot host beta", "Bounce beta", "Reboot host gamma"),  # what varies speaks for nothing
        ("重启北京的主机", "北京的机器要重启"),  # no words with spaces between them
        ("Reboot it to 50 * 2", "Reboot 50 * 2"),
    ],
)
def test_what_one_example_says_and_what_is_no_word_is_not_told_of(examples: tuple[str, ...]) -> None:
    assert found(examples) == []


def test_what_the_tool_is_called_or_other_tools_examples_have_is_not_told_of() -> None:
    assert found(REBOOT, aliases=("bounce beta",)) == []
    assert found(REBOOT, description="Reboots alpha or beta.") == []
    assert found(REBOOT, parameters={"properties": {"host": {"description": "alpha or beta"}}}) == []
    assert found(REBOOT, others=("How busy is host beta?",)) == []


def test_of_a_tool_that_waits_for_nobody_nothing_is_told() -> None:
    assert found(REBOOT, asked="another") == []

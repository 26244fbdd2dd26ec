"""Nofit: what an agent says to a turn that no tool of its fits, where it says nothing else (`no_tool: refuse`). Pure.

    I can only do what my tools do. Ask for one thing at a time, such as: "Will it rain in Lisbon tomorrow?", items in stock.

In the language of the turn, English or Chinese, with an example of each tool; a tool without examples is named.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentflow.routing.cards import ToolCard
from agentflow.routing.terms import Script, script_of, spoken

MOST_TOOLS = 6  # that are named
MOST_CHARS = 80  # of an example that is shown


class _Words(NamedTuple):
    head: str
    such_as: str
    between: str
    quotes: tuple[str, str]
    end: str
    nothing: str


_WORDS: dict[Script, _Words] = {
    "spaced": _Words(
        head="I can only do what my tools do. Ask for one thing at a time",
        such_as=", such as: ",
        between=", ",
        quotes=('"', '"'),
        end=".",
        nothing="I can only do what my tools do, and none of them is there now.",
    ),
    "cjk": _Words(
        head="我只能做我的工具能做的事。请一次只问一件事",
        such_as="，例如：",
        between="、",
        quotes=("“", "”"),
        end="。",
        nothing="我只能做我的工具能做的事，而现在没有可用的工具。",
    ),
}


def nofit(cards: Sequence[ToolCard], turn: str) -> str:
    """The answer to `turn` of an agent with the tools of `cards`."""
    script = script_of(turn)
    words = _WORDS[script]
    if not cards:
        return words.nothing
    shown = words.between.join(_shown(card, script) for card in cards[:MOST_TOOLS])
    return f"{words.head}{words.such_as}{shown}{words.end}"


def _shown(card: ToolCard, script: Script) -> str:
    """An example of the tool, in that language if there is one; its name where there is none at all."""
    fit = [text for text in card.examples if len(text) <= MOST_CHARS]
    text = next((text for text in fit if script_of(text) == script), None) or next(iter(fit), None)
    left, right = _WORDS[script].quotes
    return spoken(card.name) if text is None else f"{left}{text}{right}"

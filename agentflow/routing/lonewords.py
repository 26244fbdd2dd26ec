"""Lone words: words by which a question is taken for a tool, though nobody chose them for it. Pure.

    restart_host   "Restart host beta", "Please bounce host beta"
    host_load      "How busy is host alpha?"

What several examples of one tool have, and no other tool's, speaks for that tool (routing/lexical.py): "What is beta?" is taken
for restart_host. For a tool that asks a person first that is worth a word to whoever wrote the examples. Of scripts without
spaces nothing is told: a pair of characters may be no word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from agentflow.routing.cards import ToolCard
from agentflow.routing.frames import gaps
from agentflow.routing.terms import spoken, terms, units

LEAST = 2  # examples: what one alone has is not counted


class LoneWord(NamedTuple):
    """A word, as a term, that only examples of `tool` have, so many of them."""

    tool: str
    word: str
    examples: int

    def told(self) -> str:
        """What comes of it, and what to do."""
        return (
            f"{self.examples} examples of {self.tool}, which waits for a person, have {self.word!r}, and no other tool's: "
            f"a question about {self.word!r} may be taken for {self.tool}. If it is a name, take another in each example, or use "
            "it in other tools' examples too; if it says what is wanted, make it an alias"
        )


def lone_words(cards: Sequence[ToolCard], asked: Collection[str]) -> list[LoneWord]:
    """Those of the tools in `asked`, among all the tools that one agent has."""
    having = Counter(term for card in cards for term in {term for example in card.examples for term in terms(example)})
    found: list[LoneWord] = []
    for card in cards:
        if card.name in asked:
            known = _chosen(card).union(*gaps([*map(units, card.examples)]))  # what varies among them is not counted
            counts = Counter(term for example in card.examples for term in terms(example))
            found += [
                LoneWord(card.name, term, count)
                for term, count in sorted(counts.items())
                if count >= LEAST and having[term] == 1 and term not in known and term in _words(card)
            ]
    return found


def _chosen(card: ToolCard) -> set[str]:
    """The terms of what a tool is called, and is said to be."""
    return set[str]().union(*map(terms, (spoken(card.name), card.description, *card.fields(), *card.aliases)))


def _words(card: ToolCard) -> set[str]:
    """The words of a tool's examples in scripts with spaces."""
    return {unit for example in card.examples for unit in units(example) if unit.isalpha() and len(unit) > 1}

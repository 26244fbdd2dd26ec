"""Semantic likeness of a text to cards: the cosines of its vector to the nearest descriptions and examples of each.

An embedder may know some scripts and not others, and nobody says which. So its trust is measured on the examples themselves,
for each script: how often the nearest other text belongs to the same card, beyond what chance gives. An English embedder
finds Chinese sentences alike that share some characters, and its vectors of them then weigh less, or nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.routing.cards import ToolCard
from agentflow.routing.terms import Script, script_of

if TYPE_CHECKING:
    import numpy as np

    Vectors = np.ndarray

NEAREST = 3  # one text alone may be alike in its places and days only
MEASURED = 6  # examples in a script, at least, for its trust to be measured
UNMEASURED: dict[Script, float] = {"spaced": 0.7, "cjk": 0.0}  # what is the more likely to be known is trusted unseen


@dataclass(frozen=True, slots=True)
class CardText:
    """A text that is embedded for the card with this number."""

    card: int
    text: str
    example: bool


def card_texts(cards: Sequence[ToolCard]) -> list[CardText]:
    """What is to be embedded: each card's description, unless it is empty, and its examples."""
    return [
        CardText(number, text, example)
        for number, card in enumerate(cards)
        for example, texts in ((False, (card.description,)), (True, card.examples))
        for text in texts
        if text.strip()
    ]


class SemanticIndex:
    """Texts of cards with their vectors: float32 (len(texts), width), each of length 1."""

    def __init__(self, texts: Sequence[CardText], vectors: Vectors) -> None:
        self._texts = texts
        self._vectors = vectors
        self.trust: dict[Script, float] = {script: self._measure(script) for script in UNMEASURED}

    def nearest(self, vector: Vectors) -> dict[int, tuple[float, str]]:
        """For each card by number: the mean cosine of its NEAREST nearest texts, and the nearest of them.

        `vector`: float32 (width,), of length 1.
        """
        likenesses: dict[int, list[tuple[float, str]]] = defaultdict(list)
        for likeness, text in zip((self._vectors @ vector).tolist(), self._texts, strict=True):
            likenesses[text.card].append((likeness, text.text))
        nearest: dict[int, tuple[float, str]] = {}
        for card, found in likenesses.items():
            best = sorted(found, reverse=True)[:NEAREST]
            nearest[card] = sum(likeness for likeness, _ in best) / len(best), best[0][1]
        return nearest

    def _measure(self, script: Script) -> float:
        """0 (no better than chance) to 1 (always right)."""
        rows = [row for row, text in enumerate(self._texts) if text.example and script_of(text.text) == script]
        cards = len({self._texts[row].card for row in rows})
        if len(rows) < MEASURED or cards < 2:
            return UNMEASURED[script]
        right = 0
        for row in rows:
            likeness = self._vectors @ self._vectors[row]
            likeness[row] = -1.0
            right += self._texts[int(likeness.argmax())].card == self._texts[row].card
        return max(0.0, (right / len(rows) - 1 / cards) / (1 - 1 / cards))

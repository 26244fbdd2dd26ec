"""Which cards a vector is alike to, and how far an embedder is trusted."""

from __future__ import annotations

import numpy as np
import pytest

from agentflow.routing.cards import ToolCard
from agentflow.routing.semantic import UNMEASURED, SemanticIndex, card_texts

CARDS = [
    ToolCard(
        name="a",
        description="what a does",
        examples=("one", "two", "three", "\u4e00\u4e00", "\u4e8c\u4e8c", "\u4e09\u4e09"),
    ),
    ToolCard(
        name="b", description=" ", examples=("four", "five", "six", "\u56db\u56db", "\u4e94\u4e94", "\u516d\u516d")
    ),
]
TEXTS = card_texts(CARDS)


def test_texts_are_descriptions_and_examples_but_empty_ones() -> None:
    assert [text.text for text in TEXTS] == ["what a does", *CARDS[0].examples, *CARDS[1].examples]
    assert [text.card for text in TEXTS] == [0] * 7 + [1] * 6
    assert [text.example for text in TEXTS[:2]] == [False, True]


def test_a_card_is_as_like_as_its_three_nearest_texts() -> None:
    vectors = np.zeros((len(TEXTS), 2), np.float32)
    vectors[1], vectors[2], vectors[3] = (1.0, 0.0), (0.8, 0.6), (0.6, 0.8)
    nearest = SemanticIndex(TEXTS, vectors).nearest(np.array([1.0, 0.0], np.float32))
    likeness, text = nearest[0]
    assert likeness == pytest.approx(0.8)
    assert text == "one"
    assert nearest[1][0] == 0.0


def test_an_embedder_is_trusted_for_a_script_as_it_knows_the_examples() -> None:
    """The English ones lie with their cards; each Chinese one lies nearest to one of the other card."""
    vectors = np.eye(8, dtype=np.float32)[[0, 0, 0, 0, 2, 3, 4, 1, 1, 1, 2, 3, 4]]
    assert SemanticIndex(TEXTS, vectors).trust == {"spaced": 1.0, "cjk": 0.0}


def test_an_embedder_is_not_measured_on_a_few_examples() -> None:
    few = [text for text in TEXTS if text.text.isascii()][:5]
    index = SemanticIndex(few, np.eye(5, dtype=np.float32))
    assert index.trust == UNMEASURED

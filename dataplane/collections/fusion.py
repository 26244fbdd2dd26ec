"""Reciprocal rank fusion: one ranking out of a ranking by vectors and one by words. Pure.

A row's share from a list is weight / (k + rank), with ranks from 1; its score is the sum of its shares over the largest sum
that there can be, so the row that is first in both lists has 1. Only ranks count: BM25 and inner products have no common
scale. Rows of equal score keep the order of the vectors' list, then of the words' list.

Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods",
SIGIR 2009, with its k of 60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dataplane.errors import InvalidInput


def reciprocal_rank(
    vector: Sequence[tuple[int, float]],
    text: Sequence[tuple[int, float]],
    weights: tuple[float, float] = (1.0, 1.0),
    k: float = 60,
) -> list[tuple[int, float]]:
    """(row number, score in (0, 1]) of every row in either list whose weight is over 0, best first.

    Both lists are (row number, score), best first; the scores in them are not looked at. A row that a list has twice counts
    where it comes first. `weights` are those of `vector` and of `text`.

    Raises InvalidInput: a weight that is negative or not finite, weights that are both 0, or a k that is negative or not finite.
    """
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights) > 0:
        raise InvalidInput("The weights must be finite, not negative, and not both 0.", param="weights")
    if not (math.isfinite(k) and k >= 0):
        raise InvalidInput("k must be a finite number that is not negative.", param="k")
    whole = sum(weights)
    scores: dict[int, float] = {}
    for ranked, weight in zip((vector, text), weights, strict=True):
        if weight == 0:
            continue
        for rank, row in enumerate(dict.fromkeys(row for row, _ in ranked)):
            share = weight / whole * ((k + 1) / (k + 1 + rank))
            scores[row] = scores.get(row, 0.0) + share
    # The sort is stable, and rows are in `scores` in the order that ties shall have. min: the parts of 1 may round above it.
    return [(row, min(1.0, score)) for row, score in sorted(scores.items(), key=lambda item: -item[1])]

"""The truth about nearest neighbours, by scanning everything, and how much of it an answer found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CHUNK = 256  # queries at once: 256 x 100,000 scores are 100 MB


def nearest(rows: np.ndarray, queries: np.ndarray, k: int, mask: np.ndarray | None = None) -> np.ndarray:
    """The `k` rows with the largest inner product for each query, best first: int64 (q, k).

    `rows` float32 (n, d), `queries` float32 (q, d). With `mask` (bool, (n,)) only rows that it lets through count.
    Raises ValueError when fewer than `k` rows are left.
    """
    kept = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    if len(kept) < k:
        raise ValueError(f"{k} neighbours of {len(kept)} rows")
    candidates = rows if mask is None else rows[kept]
    found = np.empty((len(queries), k), np.int64)
    for at in range(0, len(queries), CHUNK):
        scores = queries[at : at + CHUNK] @ candidates.T
        best = np.argpartition(scores, -k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
        found[at : at + CHUNK] = kept[np.take_along_axis(best, order, axis=1)]
    return found


def recall(found: Sequence[Sequence[int]], truth: np.ndarray) -> float:
    """The share of the true neighbours that were found, over all queries; what was found twice counts once."""
    if len(found) != len(truth):
        raise ValueError(f"{len(found)} answers to {len(truth)} queries")
    hits = sum(len(set(answer) & set(true.tolist())) for answer, true in zip(found, truth, strict=True))
    return hits / truth.size

"""What the best possible choice of hot rows would have served, to measure a real one against.

A stream of queries follows Zipf's law: the query of rank r comes with a probability in proportion to r**-exponent. Each
result of a query is an access to a row. The oracle knows every access that will be measured, and keeps, from the first to
the last, the `capacity` rows that are accessed most. No fixed choice serves more; and while the distinct rows that are
accessed are no more than its capacity, nothing that moves rows does either, since the oracle then serves all.

`lfu_share` is what plain counting, with no look ahead, would serve: the yardstick from the other side.
"""

from __future__ import annotations

import numpy as np


def zipf_draws(items: int, draws: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """int64 (draws,): numbers below `items`, each a rank; 0 is the most frequent."""
    weights = np.arange(1, items + 1, dtype=np.float64) ** -exponent
    return rng.choice(items, draws, p=weights / weights.sum())


def best_fixed_share(accesses: np.ndarray, rows: int, capacity: int) -> float:
    """The share of `accesses` (row numbers, any shape) that the best set of `capacity` of `rows` rows serves."""
    counts = np.bincount(accesses.ravel(), minlength=rows)
    served = np.sort(counts)[::-1][:capacity].sum()
    return float(served / counts.sum())


def lfu_share(warm: np.ndarray, measured: np.ndarray, hot: np.ndarray, every: int) -> float:
    """The share of `measured` that counting serves, after it has seen `warm`; both int64 (queries, k), row numbers.

    `hot` (bool, (rows,)) is what it begins with and is not changed; after each `every` queries as many rows as that, the
    most accessed, are hot, and among equals those that were hot stay so.
    """
    now = hot.copy()
    capacity = int(now.sum())
    counts = np.zeros(len(now), np.int64)
    served = 0
    for stream in (warm, measured):
        for at in range(0, len(stream), every):
            accessed = stream[at : at + every].ravel()
            if stream is measured:
                served += int(now[accessed].sum())
            np.add.at(counts, accessed, 1)
            kept = np.lexsort((~now, -counts))[:capacity]
            now = np.zeros(len(now), bool)
            now[kept] = True
    return served / measured.size

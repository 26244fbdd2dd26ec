"""Heats: which rows of a collection are read most, and which least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dataplane.collections.collection import Collection
from dataplane.hot.table import SCANNED, Slots, TableView, heat_of


def heated(collection: Collection) -> tuple[TableView, NDArray[np.float32]]:
    """The table of now, and the heat of each of its slots, below that of a row that was read once in the last hour of all.

    In parts, and in half the bytes: for a million rows all at once would take tens of megabytes that nobody has counted.
    """
    with collection.lock:
        view, (accesses, hours) = collection.table.view(), collection.table.accessed()
    heat = np.empty(len(view), np.float32)
    least = heat_of(np.ones(1, np.float32), hours.max(initial=0, keepdims=True))
    for start in range(0, len(heat), SCANNED):
        part = slice(start, start + SCANNED)
        heat[part] = heat_of(accesses[part], hours[part]) - least
    return view, heat


def leading(slots: Slots, order: NDArray[np.float32], count: int) -> Slots:
    """The `count` of `slots` that come first in an order of all slots, in that order: the coldest by heat, for example."""
    if len(slots) > count:
        slots = slots[np.argpartition(order[slots], count)[:count]]
    found: Slots = slots[np.argsort(order[slots], kind="stable")]
    return found

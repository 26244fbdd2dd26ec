"""What tests of the keeper's parts share: a collection whose rows are all in the graph, and how it is worked on."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dataplane.collections.collection import Collection
from dataplane.hot.graph import node_bytes
from dataplane.tiering.keeper import Keeper
from tests.dataplane.planes import DIMENSIONS, exact, vectors
from tests.dataplane.stilled import Stilled, now_ms, stilled

COUNT = 1800
STORED = vectors(2400)
QUERY = vectors(1, seed=9)[0]
NODE = node_bytes(DIMENSIONS)


def prepare(folder: Path) -> Path:
    """COUNT rows, and a snapshot of them all in the graph."""
    with stilled(folder, DIMENSIONS) as made:
        made.upsert(STORED[:COUNT])
        made.work()
    return folder


@contextmanager
def heated(prepared: Path, folder: Path) -> Iterator[Stilled]:
    """A copy of what was prepared, opened: COUNT rows are in the graph, and nothing is due."""
    shutil.copytree(prepared, folder)
    with stilled(folder, DIMENSIONS) as made:
        made.work()
        assert made.counts == (0, COUNT, 0, 0)
        yield made


def step(still: Stilled) -> bool:
    return still.keeper.steps.take_one(still.collection)


def hurried(still: Stilled) -> bool:
    still.keeper.hurry(still.collection, on=True)
    try:
        return step(still)
    finally:
        still.keeper.hurry(still.collection, on=False)


def warm_up(still: Stilled, ids: list[str]) -> None:
    """These are read often, and the others have not been for a day."""
    everything = np.arange(len(still.view.table))
    hour = now_ms() / 3_600_000
    ones = np.ones(len(everything), np.float32)
    still.collection.table.set_accessed(everything, ones, ones * np.float32(hour - 24))
    still.touch(ids, times=20)


def demote_for_good(keeper: Keeper, collection: Collection, slots: np.ndarray) -> None:
    """Rows become warm and stay so, though there is memory for them."""
    keeper.due.of(collection).promoted_at = math.inf
    keeper.moves.demote(collection, slots)


def promote_nothing(still: Stilled) -> None:
    """As if rows had been promoted a moment ago, for good."""
    still.keeper.due.of(still.collection).promoted_at = math.inf


def due_again(still: Stilled) -> None:
    """As if time had passed."""
    due = still.keeper.due.of(still.collection)
    due.promoted_at = due.discarded_at = due.compared_at = due.exchanged_at = 0.0


def right(still: Stilled, alive: np.ndarray | None = None) -> None:
    """A search finds what is there, and everything derived agrees with what is stored."""
    ids = exact(STORED[: len(alive) if alive is not None else COUNT], QUERY, k=2400)
    wanted = [id_ for id_ in ids if alive is None or alive[int(id_[1:])]][:10]
    assert still.ids(QUERY, exact=True) == wanted
    assert len(set(still.ids(QUERY)) & set(wanted)) >= 9
    assert still.problems() == []


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)

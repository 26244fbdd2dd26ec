"""Due: what the keeper remembers of each collection, so that it knows what is due, and what it has done in all.

It is in memory only. After a start every collection begins with a `Due` of that moment.
"""

from __future__ import annotations

import math
import time

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from dataplane.collections.collection import Collection

Rows = NDArray[np.uint64]


class KeeperCounts(Struct):
    """What the keeper has done, in rows and times. For metrics."""

    merged: int = 0
    demoted: int = 0
    promoted: int = 0
    expired: int = 0
    rebuilds: int = 0
    snapshots: int = 0
    failures: int = 0


class Due(Struct):
    """When things were last done for a collection (`time.monotonic()`), and what comes next."""

    promoted_at: float = 0.0
    compared_at: float = 0.0  # hot and warm rows, whether they should be exchanged
    exchanged_at: float = 0.0
    gave_way_at: float = -math.inf
    shrunk_at: float = -math.inf
    packed_until: float = -math.inf  # only for many more rows is the graph given up until then
    tidied: bool = False  # by the last step
    discarded_at: float = 0.0
    snapshot_at: float = 0.0
    snapshot_seq: int = -1
    snapshot_nodes: int = 0
    expired_at: float = 0.0
    trimmed_at: float = 0.0
    adopted: bool = False
    gathered: Rows = field(default_factory=lambda: np.empty(0, np.uint64))  # the loose rows to come, the hottest first
    paused_until: float = 0.0
    error: str | None = None  # of the last step, until one goes well


class Dues:
    """Those of all collections. Thread-safe: each call is one operation on a dict or set."""

    def __init__(self) -> None:
        self._dues: dict[bytes, Due] = {}  # by the collection's scope, which is never used again
        self._hurried: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._dues)

    def of(self, collection: Collection) -> Due:
        """The collection's own; it is changed in place."""
        return self._dues.setdefault(collection.scope, _beginning())

    def forget(self, collection: Collection) -> None:
        """The collection is gone, or is to be looked at as after a start."""
        self._dues.pop(collection.scope, None)

    def hurry(self, collection: Collection, *, on: bool) -> None:
        """Whether what is due for a collection is done whatever its age."""
        (self._hurried.add if on else self._hurried.discard)(collection.scope)

    def hurried(self, collection: Collection) -> bool:
        """Whether somebody waits for what is due."""
        return collection.scope in self._hurried

    @property
    def error(self) -> str | None:
        """Why some collection's last step failed."""
        return next((due.error for due in list(self._dues.values()) if due.error is not None), None)


def _beginning() -> Due:
    now = time.monotonic()
    return Due(snapshot_at=now, expired_at=now, compared_at=now)

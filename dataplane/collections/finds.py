"""Finds: the rows that searches found, on their way to the command that makes them warmer.

They wait in `Collection.touched` until PER_COMMAND searches have found some, for a command alone would cost as much as a
search. Where the ring has no room they wait on, and of more than MOST_ROWS the earliest are dropped: nobody waits for them,
and heat is no truth. On the loop; what waits when the process ends is lost.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from dataplane import clock
from dataplane.collections.collection import Collection
from dataplane.collections.commands import Touch
from dataplane.truth.writer import Writer

PER_COMMAND = 64
"""Searches whose finds are taken up together."""
MOST_ROWS = 4096
"""Rows that wait for room."""


class Finds:
    """Of all collections whose commands this writer takes."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def add(self, collection: Collection, rows: NDArray[np.uint64]) -> None:
        """A search has ended, and found these."""
        collection.searched_at = time.monotonic()
        collection.touched.append(rows)
        if len(collection.touched) >= PER_COMMAND:
            found = np.concatenate(collection.touched)
            taken = self._writer.submit_now(Touch(collection, found, clock.hour(clock.now_ms())))
            collection.touched = [] if taken else [found[-MOST_ROWS:]]

    async def settle(self, collection: Collection) -> None:
        """Have the collection told now of all that waits. Raises what `Writer.submit` raises."""
        if collection.touched:
            found, collection.touched = np.concatenate(collection.touched), []
            await self._writer.submit(Touch(collection, found, clock.hour(clock.now_ms())))

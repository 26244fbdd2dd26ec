"""Gauges: what the status tells and takes a look at the disk, or arithmetic, is measured by a thread, now and then. So is
whether the database still takes writes, before somebody meets it.

So asking for the status costs the event loop microseconds a collection. Of more than FRESH collections even those are too many:
then each of them is told as it was when it was measured, at most EVERY_S ago.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from dataplane import clock
from dataplane.collections.collection import Collection
from dataplane.errors import DataPlaneError
from dataplane.hot.table import FRESH as IN_DELTA
from dataplane.hot.table import HOT
from dataplane.planestatus import CollectionStatus, Figures, collection_status
from dataplane.threads import in_thread

EVERY_S = 10.0
AGED_S = 60.0  # heat decays by itself: what did not change is measured again after so long
FRESH = 64  # collections
SAMPLE = 4096  # rows of a collection whose heat is looked at
DECAY = 0.99  # of heat, an hour

_log = logging.getLogger(__name__)


class _Measured(Struct, frozen=True):
    published: int
    at: float
    figures: Figures
    status: CollectionStatus


class Gauges:
    """Owns the timer. `collections` are those that are open; `look` is called beside each measuring. Used on the event loop."""

    def __init__(self, collections: Callable[[], Sequence[Collection]], look: Callable[[], None]) -> None:
        self._collections = collections
        self._look = look
        self._measured: dict[bytes, _Measured] = {}
        self._timer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._timer = asyncio.get_running_loop().create_task(self._measure_for_ever())

    async def stop(self) -> None:
        """End. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def measure(self) -> None:
        """Measure now."""
        await in_thread(self._look)
        self._measured = await in_thread(self._measure, self._collections())

    def read(self) -> list[CollectionStatus]:
        """Every collection, as it is."""
        collections = self._collections()
        measured = self._measured
        found = []
        for collection in collections:
            known = measured.get(collection.scope)
            if known is not None and len(collections) > FRESH:
                found.append(known.status)
            else:
                found.append(collection_status(collection, Figures() if known is None else known.figures))
        return found

    def _measure(self, collections: Sequence[Collection]) -> dict[bytes, _Measured]:
        now = time.monotonic()
        measured = {}
        for collection in collections:
            published, known = collection.published, self._measured.get(collection.scope)
            if known is not None and known.published == published and now - known.at < AGED_S:
                figures, at = known.figures, known.at
            else:
                figures, at = _figures(collection), now
            status = collection_status(collection, figures)
            measured[collection.scope] = _Measured(published, at, figures, status)
        return measured

    async def _measure_for_ever(self) -> None:
        while True:
            try:
                await self.measure()
            except DataPlaneError as error:  # a collection that is being deleted
                _log.debug("the data plane was not measured", extra={"why": str(error)})
            except Exception:  # noqa: BLE001 - a defect must not end it for good
                _log.exception("the data plane was not measured")
            await asyncio.sleep(EVERY_S)


def _figures(collection: Collection) -> Figures:
    text = 0 if collection.text is None else collection.text.index.bytes
    return Figures(text, *_heat(collection))


def _heat(collection: Collection) -> tuple[float, float]:
    """Mean heat of rows in memory and of rows on the disk, over at most SAMPLE rows in all."""
    with collection.lock:
        view = collection.table.view()
        step = max(len(view) // SAMPLE, 1)
        accesses, hours = (column[::step].copy() for column in collection.table.accessed())
        alive, place = view.alive[::step].copy(), view.place[::step].copy()
    heat = accesses.astype(np.float64) * DECAY ** np.maximum(clock.hour(clock.now_ms()) - hours.astype(np.float64), 0)
    hot = (place == IN_DELTA) | (place == HOT)
    means = [float(heat[alive & chosen].mean()) if (alive & chosen).any() else 0.0 for chosen in (hot, ~hot)]
    return means[0], means[1]

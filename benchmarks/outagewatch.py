"""What the status says all the while: the backlog at its highest, and that it only rises while no server is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from acu.telemetry.datametrics import data_metrics
from dataplane.planestatus import PlaneStatus
from dataplane.store import DataPlane

METRIC = "acu_data_archive_backlog_rows"
EVERY_S = 0.1


def seqs(plane: DataPlane) -> int:
    """All collections' sequence numbers together: the backlog is what of them is not archived."""
    return sum(collection.seq for collection in plane.open_collections())


def metric(status: PlaneStatus) -> float:
    """The backlog as a scrape sees it."""
    return next(float(one.samples[0].value) for one in data_metrics(status) if one.name == METRIC)


class Watch:
    """Samples of the status. `highest`: the largest backlog; `failures`: runs that failed in the outage."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._before = 0  # the backlog of the last sample of the outage
        self._dead = False
        self._failed = 0
        self.highest = 0
        self.failures = 0
        self.problems: list[str] = []

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Take samples within the context."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def outage_begins(self) -> None:
        """From now on no run can end well."""
        status = self._plane.cold.status()
        self._failed, self._before, self._dead = status.failures, 0, True

    def outage_ends(self) -> None:
        """The server is about to come back."""
        self._dead = False

    async def _watch(self) -> None:
        while True:
            self._take(self._plane.status())
            await asyncio.sleep(EVERY_S)

    def _take(self, status: PlaneStatus) -> None:
        backlog = status.cold.backlog_rows
        self.highest = max(self.highest, backlog)
        if metric(status) != backlog:
            self.problems.append(f"the metric says {metric(status)}, and the status {backlog}")
        if not self._dead:
            return
        self.failures = status.cold.failures - self._failed
        if backlog < self._before:
            self.problems.append(f"without a server the backlog fell from {self._before} to {backlog}")
        self._before = backlog

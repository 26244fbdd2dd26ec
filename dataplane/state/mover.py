"""Mover: takes old events out of RocksDB into the history, has that forget what was dropped, and keeps it tidy. On the loop.

A round, now and then:

    1. forget    what was noted (forgetting.py), so that what comes anew is not taken for it
    2. move      every log's first events that are older than `history_after_s`, in parts of a few thousand (departures.py):
                 announced, in a shard, out of RocksDB. Each step is durable before the next. When RocksDB holds more than
                 MANY_EVENTS, their age no longer matters
    3. tidy      small shards are merged; what is older than `history_keep_days` is removed, within the hour

Everything that reads or writes files is done in a thread. Steps of a round, and erasing, take turns: so what moves was not
erased meanwhile. A step that fails leaves events where they are, in RocksDB, in the history or in both, and is tried again in
the next round. A round that took long is followed by a long rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from dataplane import clock
from dataplane.config import DataPlaneConfig
from dataplane.errors import Closed, Damaged, DataPlaneError
from dataplane.state import departures
from dataplane.state.departures import Announce, Depart, Departure
from dataplane.state.forgetting import Forgotten, noted
from dataplane.state.oldevents import HistoryStatus, OldEvents
from dataplane.threads import in_thread
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Writer

EVERY_S = 60.0
LEAST_S = 1.0
REST = 50  # times what a round took
MANY_EVENTS = 1_000_000
NOTES = 4096  # that are dealt with together
DAY_MS = 86_400_000

_log = logging.getLogger(__name__)


class Mover:
    """Owns the timer."""

    def __init__(self, rocks: Rocks, writer: Writer, old: OldEvents, config: DataPlaneConfig) -> None:
        self._rocks = rocks
        self._writer = writer
        self._old = old
        self._after_ms = round(config.history_after_s * 1000)
        self._keep_ms = None if config.history_keep_days is None else round(config.history_keep_days * DAY_MS)
        self._every_s = min(EVERY_S, max(LEAST_S, config.history_after_s / 10))
        self._turn = asyncio.Lock()
        self._timer: asyncio.Task[None] | None = None
        self._retained_ms = 0
        self.moved = 0  # events, for metrics
        self.forgotten = 0
        self.last_error: str | None = None  # of the last round

    def start(self) -> None:
        """Begin."""
        self._timer = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, when the step that is under way has ended. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    def status(self) -> HistoryStatus:
        """How the history is."""
        return self._old.status(moved=self.moved, forgotten=self.forgotten, trouble=self.last_error)

    async def round(self) -> int:
        """Everything that is due. Returns how many events moved. Raises the last error, when all else is done; Closed."""
        await in_thread(self._old.open)
        last: DataPlaneError | None = None
        moved, cursor = 0, b""
        try:
            await self.forget()
        except Damaged as error:
            last = error
        many = self._rocks.key_count("events") > MANY_EVENTS
        through_ms = departures.LATEST_MS if many else clock.now_ms() - self._after_ms
        while self._old.problem is None:
            async with self._turn:
                found, cursor = await in_thread(departures.due, self._rocks, cursor, through_ms)
                try:
                    moved += await self._move(found)
                except Damaged as error:
                    last = error
            if not cursor:
                break
        try:
            await self._tidy()
        except Damaged as error:
            last = error
        if last is not None:
            raise last
        return moved

    async def forget(self) -> None:
        """Have the history forget what was noted until now. Raises Damaged if it cannot all be read; then it stays noted."""
        async with self._turn:
            while notes := await in_thread(noted, self._rocks, NOTES):
                self.forgotten += await in_thread(self._old.forget, notes)
                for command in Forgotten.of(notes):
                    await self._writer.submit(command, "durable")

    async def _move(self, found: Sequence[Departure]) -> int:
        """Move them together; where a place in the history cannot be read, each for itself."""
        try:
            return await self._move_together(found) if found else 0
        except Damaged:
            if len(found) == 1:
                raise
        moved, last = 0, None
        for one in found:
            try:
                moved += await self._move_together([one])
            except Damaged as error:
                last = error
        if last is not None:
            raise last
        return moved

    async def _move_together(self, found: Sequence[Departure]) -> int:
        kept_from: list[int | None] = []
        for begin in range(0, len(found), departures.STEP):
            kept_from += await self._writer.submit(Announce(found[begin : begin + departures.STEP]), "durable")
        leaving = [(one, first) for one, first in zip(found, kept_from, strict=True) if first is not None]
        if not leaving:
            return 0
        await in_thread(_store, self._old, leaving)
        moved = 0
        for one, _ in leaving:
            for command in Depart.of(one):
                moved += await self._writer.submit(command)
        self.moved += moved
        return moved

    async def _tidy(self) -> None:
        """Retention cuts at whole hours, so that a shard that lies across the border is not written anew in each round."""
        before = None if self._keep_ms is None else (clock.now_ms() - self._keep_ms) // clock.HOUR_MS * clock.HOUR_MS
        if before is not None and before <= self._retained_ms:
            before = None
        async with self._turn:
            if self._old.problem is None:
                self.forgotten += await in_thread(self._old.tidy, before)
        self._retained_ms = before or self._retained_ms

    async def _run(self) -> None:
        pause = self._every_s
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                await self.round()
            except Closed:
                return
            except DataPlaneError as error:  # a full disk, a damaged shard: it is tried again
                self.last_error = str(error)
                _log.warning("old events were not all moved into the history", extra={"why": str(error)})
            except Exception as error:  # noqa: BLE001 - a defect must not end it for good
                self.last_error = repr(error)
                _log.exception("old events were not moved into the history")
            else:
                self.last_error = None
            pause = max(self._every_s, REST * (time.monotonic() - began))


def _store(old: OldEvents, leaving: Sequence[tuple[Departure, int]]) -> None:
    old.store([event for one, first in leaving for event in one.log_events(first)])

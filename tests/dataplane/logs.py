"""Event logs over a RocksDB and a history in one folder, without the rest of a data plane."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from dataplane.config import DataPlaneConfig
from dataplane.state.mover import Mover
from dataplane.state.oldevents import OldEvents
from dataplane.state.store import StateStore
from dataplane.truth.records import EventRecord
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Writer

NEVER_MS = 1 << 60  # of events that do not become old


class Logs:
    """What a data plane has for event logs. `mover` moves when it is told to."""

    def __init__(self, rocks: Rocks, writer: Writer, folder: Path, config: DataPlaneConfig) -> None:
        self.rocks = rocks
        self.writer = writer
        self.old = OldEvents(folder / "history")
        self.state = StateStore(rocks, writer, old=self.old)
        self.mover = Mover(rocks, writer, self.old, config)

    async def fill(self, tenant: str, stream: str, count: int, *, first: int = 1, time_ms: int | None = None) -> None:
        """Append `event`s with the numbers from `first` on."""
        numbers = range(first, first + count)
        for begin in range(0, count, 200):
            part = [event(tenant, stream, number, time_ms) for number in numbers[begin : begin + 200]]
            await self.state.append(tenant, stream, part, wait="visible")

    async def read(self, tenant: str, stream: str, after: int = 0, page: int = 1000) -> list[tuple[int, EventRecord]]:
        """All of a log, page by page."""
        found: list[tuple[int, EventRecord]] = []
        while part := await self.state.read(tenant, stream, after=after, limit=page):
            found += part
            after = part[-1][0]
        return found

    def in_rocks(self) -> int:
        """Events that are in RocksDB."""
        return sum(1 for _ in self.rocks.scan("events", b""))

    def in_history(self) -> int:
        """Events that are in the history."""
        return self.mover.status().rows


def event(tenant: str, stream: str, number: int, time_ms: int | None = None) -> EventRecord:
    """What `fill` appends: old, if nothing else is said."""
    return EventRecord("said", number if time_ms is None else time_ms, f"{tenant}/{stream}/{number}".encode())


def expected(tenant: str, stream: str, first: int, last: int) -> list[tuple[int, EventRecord]]:
    """What a reader gets of a log that `fill` filled."""
    return [(number, event(tenant, stream, number)) for number in range(first, last + 1)]


@contextlib.asynccontextmanager
async def logs(folder: Path, keep_days: float | None = None) -> AsyncIterator[Logs]:
    """Open, as a data plane would, and close."""
    rocks = Rocks.open(folder / "rocks", memory_bytes=16 << 20)
    writer = Writer(rocks, 4096)
    writer.start()
    opened = Logs(rocks, writer, folder, DataPlaneConfig(history_keep_days=keep_days))
    opened.old.open()
    try:
        yield opened
    finally:
        await writer.close()
        opened.old.close()
        rocks.close()

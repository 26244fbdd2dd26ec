"""RunClock: the time that a run may take. It stands still while people, and not the run, take their time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self


class RunClock:
    """`async with clock:` raises TimeoutError after `limit_s` seconds, less those within `stopped()`. For one run."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(None)
        self._left_s = limit_s
        self._stops = 0

    async def __aenter__(self) -> Self:
        self._timeout = asyncio.timeout(self._limit_s)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """While somebody thinks. Several may at a time: it goes on when the last is done."""
        loop = asyncio.get_running_loop()
        if self._stops == 0:
            ends_at = self._timeout.when()
            self._left_s = self._limit_s if ends_at is None else max(0.0, ends_at - loop.time())
            self._timeout.reschedule(None)
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if self._stops == 0 and not self._timeout.expired():
                self._timeout.reschedule(loop.time() + self._left_s)

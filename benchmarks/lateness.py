"""Things done at their time: a steady rate of calls, and how late an event loop is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

STEP_S = 0.005  # what the lag's watch sleeps


def due_by(elapsed_s: float, rate: float, total: int) -> int:
    """How many of `total` calls, `rate` a second with the first at 0, are due after `elapsed_s`."""
    return min(total, int(elapsed_s * rate) + 1) if elapsed_s >= 0 else 0


async def paced(rate: float, total: int, call: Callable[[int], Awaitable[None]]) -> list[float]:
    """Call `call(0)` to `call(total - 1)`, `rate` a second, each in a task of its own: none waits for one before.

    Returns, call by call, how many seconds after its due time it began. The first error ends all.
    """
    late: list[float] = []
    async with asyncio.TaskGroup() as group:
        began = time.perf_counter()
        while len(late) < total:
            elapsed = time.perf_counter() - began
            for number in range(len(late), due_by(elapsed, rate, total)):
                late.append(elapsed - number / rate)
                group.create_task(_run(call, number))
            await asyncio.sleep(max(0.0, len(late) / rate - (time.perf_counter() - began)))
    return late


async def _run(call: Callable[[int], Awaitable[None]], number: int) -> None:
    await call(number)


@contextlib.asynccontextmanager
async def watched_loop(lags: list[float]) -> AsyncIterator[None]:
    """While the block runs, sleep STEP_S again and again, and add to `lags` by how many seconds each wakes late."""

    async def watch() -> None:
        while True:
            due = time.perf_counter() + STEP_S
            await asyncio.sleep(STEP_S)
            lags.append(max(0.0, time.perf_counter() - due))

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher

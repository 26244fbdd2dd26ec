"""acu.process.pulse: lag is measured, and the watchdog is fed only while the loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time

from acu.process.pulse import BEAT_S, RECENT_BEATS, RecentLag, beat
from acu.process.systemd import Notifier


class Counting(Notifier):
    """A notifier that counts meals."""

    def __init__(self) -> None:
        super().__init__(None)
        self.meals = 0

    def alive(self) -> None:
        """Count."""
        self.meals += 1


async def beats(watchdog_s: float | None, during: float, *, hold_s: float = 0.0) -> tuple[list[float], int]:
    """(lags, meals) of a while in which the loop is held for `hold_s` seconds."""
    lags: list[float] = []
    notifier = Counting()
    task = asyncio.create_task(beat(lags.append, notifier, watchdog_s))
    await asyncio.sleep(during / 2)
    time.sleep(hold_s)  # noqa: ASYNC251
    await asyncio.sleep(during / 2)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return lags, notifier.meals


def test_the_recent_lag_forgets_what_is_past() -> None:
    lag = RecentLag()
    assert lag.p99_ms() == 0.0
    lag.observe(5.0)
    assert lag.p99_ms() == 5000.0
    for number in range(RECENT_BEATS):
        lag.observe(number / 1000)
    assert lag.p99_ms() == 197.0


async def test_a_held_loop_shows_as_lag() -> None:
    lags, meals = await beats(None, 4 * BEAT_S, hold_s=0.5)
    assert max(lags) > 0.5 - BEAT_S
    assert meals == 0


async def test_the_watchdog_is_fed_at_least_twice_in_its_time() -> None:
    _, meals = await beats(0.2, 1.0)
    assert meals >= 5

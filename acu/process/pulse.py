"""Pulse: proof that the event loop makes progress, and how late it is.

A task that sleeps for a short, known time measures by how much it wakes late: the loop's lag. Since the same task feeds
systemd's watchdog, a loop that is stuck, in whatever call, is not fed for, and systemd restarts the daemon.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import deque
from collections.abc import Callable

from acu.process.systemd import Notifier

BEAT_S = 0.05
RECENT_BEATS = 200  # ten seconds
SLOW_S = 1.0  # a lag worth a line in the log
FED_AT_MOST_EVERY_S = 15.0

log = logging.getLogger(__name__)


class RecentLag:
    """The lags of the last ten seconds, for `acu status`: what holds a client up now, not what once did."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=RECENT_BEATS)

    def observe(self, lag_s: float) -> None:
        """Remember one beat's lag, in seconds."""
        self._lags.append(lag_s)

    def p99_ms(self) -> float:
        """The lag in milliseconds that 99 of 100 beats stayed within."""
        ordered = sorted(self._lags)
        return round(ordered[int(0.99 * (len(ordered) - 1))] * 1000, 3) if ordered else 0.0


async def beat(observe: Callable[[float], None], notifier: Notifier, watchdog_s: float | None) -> None:
    """Run for ever: `observe` gets the lag in seconds of each beat; the watchdog is fed at half its time, or sooner."""
    loop = asyncio.get_running_loop()
    feed_every_s = min(watchdog_s / 2, FED_AT_MOST_EVERY_S) if watchdog_s else None
    step_s = min(BEAT_S, feed_every_s / 2) if feed_every_s else BEAT_S
    fed_at = 0.0
    due_at = loop.time() + step_s
    while True:
        await asyncio.sleep(max(0.0, due_at - loop.time()))
        lag_s = max(0.0, loop.time() - due_at)
        observe(lag_s)
        if lag_s > SLOW_S:
            log.warning("the event loop was held up", extra={"lag_ms": round(lag_s * 1000)})
        if feed_every_s is not None and time.monotonic() - fed_at >= feed_every_s:
            notifier.alive()
            fed_at = time.monotonic()
        due_at = loop.time() + step_s


def settle_memory() -> None:
    """Spare the collector what stays for good (vLLM's modules alone are a million objects), and let it run less often.

    A collection of everything would hold all streams up for hundreds of milliseconds, one of 50,000 young objects for 20.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)

"""Clock: the one timer that all streams of a scripted engine wait by.

A waiter is a future, kept by the millisecond in which it is due. One that is done before (its reader left) stays in its
place until then, and is passed over.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from functools import cached_property
from time import monotonic

_AT_ONCE = 32  # streams that are woken before the loop looks at something else


class Clock:
    """Wakes any number of waiters at their times, to the millisecond, with one timer of the loop.

    At most `_AT_ONCE` of them a turn of the loop: when a thousand are due, because the loop is late or because they began
    together, whoever else waits for the loop comes between them.
    """

    def __init__(self) -> None:
        # By the millisecond of `monotonic` that they are due in, and a heap of those milliseconds.
        self._slots: dict[int, deque[asyncio.Future[None]]] = {}
        self._order: list[int] = []
        self._timer: asyncio.Handle | None = None

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs. Kept, because to ask for it costs a system call."""
        return asyncio.get_running_loop()

    def ring(self, waiter: asyncio.Future[None], due: float) -> None:
        """Give `waiter` its result at the time `due`, unless it is done by then."""
        slot = int(due * 1000)
        if (waiters := self._slots.get(slot)) is not None:
            waiters.append(waiter)
            return
        self._slots[slot] = deque((waiter,))
        heapq.heappush(self._order, slot)
        if slot == self._order[0]:
            self._arm(monotonic())

    def _arm(self, now: float) -> None:
        """Have the first slot waited for, up to its end: timers that are rounded to milliseconds come early."""
        if self._timer is not None:
            self._timer.cancel()
        wait_s = (self._order[0] + 1) / 1000 - now
        self._timer = self.loop.call_later(wait_s, self._tick) if wait_s > 0 else self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = monotonic()
        upto = int(now * 1000)
        left = _AT_ONCE
        while left and self._order and self._order[0] <= upto:
            waiters = self._slots[self._order[0]]
            while left and waiters:
                waiter = waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    left -= 1
            if not waiters:
                del self._slots[heapq.heappop(self._order)]
        self._timer = None
        if self._order:
            self._arm(now)

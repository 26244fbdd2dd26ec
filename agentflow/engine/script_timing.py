"""When the tokens of scripted streams come: the timetable of each (Pace), and the timer that they share (Clock).

Token k of a stream is due at a fixed point of time, so a late loop causes no drift: whatever is due by then comes merged.
Streams that begin together are put out of phase, so that a thousand of them do not wake the loop all at once.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from functools import cached_property
from time import monotonic

from agentflow.engine.script import Rule, Script

_AT_ONCE = 32  # streams that are woken before the loop looks at something else
_NO_RULE = Rule()
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread as evenly as can be


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


class Pace:
    """The timetable of a stream. Token 0 is due when it begins, token k a fixed time after that."""

    __slots__ = ("_origin", "_phase", "interval_s", "per_delta", "ttft_s")

    def __init__(self, script: Script, rule: Rule | None, number: int) -> None:
        rule = rule or _NO_RULE
        rate = script.tokens_per_s if rule.tokens_per_s is None else rule.tokens_per_s
        self.ttft_s = script.ttft_s if rule.ttft_s is None else rule.ttft_s
        self.per_delta = rule.tokens_per_delta or script.tokens_per_delta
        self.interval_s = 1.0 / rate if rate else 0.0
        # Token 1 comes up to one interval early: no stream is ever slower than its rate.
        self._phase = number * _GOLDEN % 1.0 * self.interval_s
        self._origin = 0.0

    def begin(self, now: float) -> int:
        """Start the clock. Returns how many tokens are due."""
        self._origin = now - self._phase
        return self.per_delta

    def next(self, now: float, emitted: int) -> tuple[int, float]:
        """How many tokens the next delta should reach, and when it is due (not after `now`: it is late)."""
        upto = emitted + self.per_delta
        if not self.interval_s:
            return upto, now
        due = self._origin + (upto - 1) * self.interval_s
        if due <= now:
            upto = max(upto, int((now - self._origin) / self.interval_s) + 1)
        return upto, due

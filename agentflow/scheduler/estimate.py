"""How long will the queue take? Pure arithmetic over what was seen.

A seat is a place for one sequence on an engine. Runs leave seats at a rate that is learned as an exponentially weighted
mean of how long a run holds its seat; the wait behind `ahead` runs on `seats` seats follows from it.
"""

from __future__ import annotations


class WaitEstimate:
    """Learns the time that a run holds its seat, in seconds, and predicts waits from it."""

    def __init__(self, *, weight: float = 0.1) -> None:
        self._weight = weight
        self._held_s: float | None = None

    def observe(self, held_s: float) -> None:
        """A run left its seat after `held_s` seconds."""
        if self._held_s is None:
            self._held_s = held_s
        else:
            self._held_s += self._weight * (held_s - self._held_s)

    def wait_s(self, *, ahead: int, seats: int) -> float | None:
        """Seconds until a run with `ahead` waiting before it is seated, or None while nothing was learned."""
        if self._held_s is None or seats < 1:
            return None
        return self._held_s * (ahead + 1) / seats

    def empty_s(self, *, waiting: int, running: int, seats: int) -> float:
        """Seconds until `waiting` and `running` runs have all ended if none comes; 1 s for any while nothing was learned."""
        if not waiting and not running:
            return 0.0
        if self._held_s is None or seats < 1:
            return 1.0
        return self._held_s * (waiting / seats + (1 if running else 0))

    def retry_after_s(self, *, waiting: int, seats: int) -> float:
        """When a refused caller should come again: when half of the queue will have gone, 1 s at the least."""
        wait = self.wait_s(ahead=waiting // 2, seats=seats)
        return min(max(1.0, wait if wait is not None else 1.0), 60.0)

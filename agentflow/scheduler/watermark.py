"""PoolWatermark: when idle runs have to give up what they hold of a KV pool, and how many of them. Pure.

A pool is full of what runs (blocks that sequences use) and of what is held (blocks that only prompts of idle runs name, see
idle.py). What nobody holds counts as free, though an engine still finds it until it needs the room. A reading of both together
above `high` has the share `release` of the idle runs let go, those that were left the longest ago, at least one; the next
reading looks again. A pool counts as above its mark from the reading that passed it until one is below it by GAP.
"""

from __future__ import annotations

import math

from msgspec import Struct

GAP = 0.05  # of the pool


class PoolUse(Struct, frozen=True):
    """One reading of one model's pools together, in tokens. `held_runs`: idle prompts, of which `held_tokens` are."""

    pool_tokens: int
    running_tokens: int
    held_runs: int
    held_tokens: int

    @property
    def share(self) -> float:
        """What runs and what is held, as a share of the pool. May pass 1: an engine gives held blocks away as it needs them."""
        return (self.running_tokens + self.held_tokens) / self.pool_tokens if self.pool_tokens else 0.0


class PoolWatermark:
    """Of one model. `high` and `release` are shares, 0 to 1."""

    def __init__(self, high: float, release: float) -> None:
        self._high = high
        self._release = release
        self.above = False
        self.passed = 0  # times

    def observe(self, use: PoolUse) -> int:
        """How many idle runs have to let go now."""
        over = use.share > self._high
        if over and not self.above:
            self.above = True
            self.passed += 1
        elif use.share < self._high - GAP:
            self.above = False
        return math.ceil(self._release * use.held_runs) if over else 0

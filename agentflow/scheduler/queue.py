"""AdmissionQueue: who is next. Pure: no clock of its own, no I/O.

A waiting item's urgency is `priority - waited / ageing_s`, lowest first. Everybody ages at the same rate, so the order
of two items never changes while they wait, and `priority * ageing_s + arrived_at` is a key that needs no rescan.
Removal (a client that left) is lazy: the heap's entry stays until it surfaces, and is skipped. When dead entries
outnumber live ones, the heap is rebuilt, so that a flood of departures does not keep memory.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class AdmissionQueue(Generic[T]):
    """A priority queue with ageing. Items are compared by identity."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._heap: list[tuple[float, int, T]] = []
        self._live: dict[int, int] = {}  # id(item) -> its sequence number
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def push(self, item: T, *, priority: int, arrived_at: float) -> None:
        """Add `item`; `arrived_at` in seconds of any clock that is the same for all items."""
        self._sequence += 1
        self._live[id(item)] = self._sequence
        heapq.heappush(self._heap, (priority * self._ageing_s + arrived_at, self._sequence, item))

    def peek(self) -> T | None:
        """The next item, or None when nobody waits."""
        while self._heap:
            _, sequence, item = self._heap[0]
            if self._live.get(id(item)) == sequence:
                return item
            heapq.heappop(self._heap)
        return None

    def pop(self) -> T | None:
        """Take the next item out, or None when nobody waits."""
        item = self.peek()
        if item is not None:
            heapq.heappop(self._heap)
            del self._live[id(item)]
        return item

    def discard(self, item: T) -> bool:
        """Take `item` out wherever it stands; False when it does not wait here."""
        if self._live.pop(id(item), None) is None:
            return False
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._live):
            self._heap = [entry for entry in self._heap if self._live.get(id(entry[2])) == entry[1]]
            heapq.heapify(self._heap)
        return True

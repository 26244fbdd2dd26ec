"""Ring: the bounded way from the event loop to the writer's thread.

Entries leave in the order in which they came. Each has a weight (rows, say); the ring holds at most `capacity` of it, and
one entry that is heavier alone. Whoever puts into a full ring waits, in turn; nothing is dropped. `put` is for one event
loop, `take` for one thread. After `close` nothing more is taken in, and what is inside can still be taken out.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

from dataplane.errors import Closed

E = TypeVar("E")


class Ring(Generic[E]):
    """Made on the event loop that puts."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: deque[tuple[E, int]] = deque()
        self._weight = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._filled = threading.Condition()
        self._waiting: deque[asyncio.Future[None]] = deque()  # touched on the loop only
        self._wakes = False  # so is this: whether the thread is about to be woken

    @property
    def weight(self) -> int:
        """What is inside now."""
        return self._weight

    async def put(self, entry: E, weight: int = 1) -> None:
        """Put in at the end; waits while the ring is full. Raises Closed. A cancelled put has put nothing in."""
        if not self._waiting and self._try_put(entry, weight):
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        self._call_next()  # room may have come before anybody was seen to wait
        try:
            await turn
            while not self._try_put(entry, weight):
                self._waiting[0] = turn = self._loop.create_future()  # its place is still the first
                await turn
        finally:
            self._waiting.remove(turn)
            self._call_next()

    def put_now(self, entry: E, weight: int = 1) -> bool:
        """Put in at the end without waiting; False if there is no room, or others wait for it. Raises Closed."""
        return not self._waiting and self._try_put(entry, weight)

    def take(self, limit: int) -> list[E]:
        """The next entries, together at most `limit` heavy (or one alone); waits for the first. Empty: closed and drained."""
        with self._filled:
            while not self._entries and not self._closed:
                self._filled.wait()
            taken: list[E] = []
            weight = 0
            while self._entries and (not taken or weight + self._entries[0][1] <= limit):
                entry, own = self._entries.popleft()
                taken.append(entry)
                weight += own
            self._weight -= weight
        if taken and self._waiting and not self._loop.is_closed():  # to wake the loop costs as much as a write
            self._loop.call_soon_threadsafe(self._call_next)
        return taken

    def close(self) -> None:
        """Take nothing more in. Waiting puts raise Closed."""
        with self._filled:
            self._closed = True
            self._filled.notify_all()
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

    def _try_put(self, entry: E, weight: int) -> bool:
        with self._filled:
            if self._closed:
                raise Closed("the data plane is closing: nothing more is taken.")
            if self._entries and self._weight + weight > self._capacity:
                return False
            self._entries.append((entry, weight))
            self._weight += weight
        if not self._wakes:  # once, after all that is put in this turn of the loop
            self._wakes = True
            self._loop.call_soon(self._wake)
        return True

    def _wake(self) -> None:
        self._wakes = False
        with self._filled:
            self._filled.notify()

    def _call_next(self) -> None:
        """Let the first that waits try. It keeps its place until it has come, so that nobody passes it meanwhile."""
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)

"""Which files wait to be worked on, tenant by tenant in turn, so that one who brings hundreds holds nobody else up.

A key is what is worked on: a tenant, a vector store, and a file in it, or "" for the store itself. It is in at most one place:
it waits in a lane, or one worker has it. Lanes have workers of their own: `slow` is for what takes seconds or minutes, and a
tenant may be held to fewer keys of it at a time than it has workers, so that those of another find one free.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

Key = tuple[str, str, str]
Lane = Literal["slow", "quick"]


class Worklist:
    """Used on one event loop. `most_slow()`: how many keys of the slow lane a tenant may have taken at a time."""

    def __init__(self, most_slow: Callable[[], int] = lambda: sys.maxsize) -> None:
        self._most_slow = most_slow
        self._slow: set[Key] = set()  # those of the slow lane that are taken
        self._waiting: dict[Lane, OrderedDict[str, deque[Key]]] = {"slow": OrderedDict(), "quick": OrderedDict()}
        self._lane: dict[Key, Lane] = {}
        self._active: dict[Key, asyncio.Timeout | None] = {}
        self._changed = asyncio.Condition()
        self._news: dict[Lane, asyncio.Event] = {"slow": asyncio.Event(), "quick": asyncio.Event()}

    def put(self, key: Key, lane: Lane) -> None:
        """Let a worker look at `key`; at once one that has it, whose current step is broken off."""
        if key in self._active:
            _break_off(self._active[key])
            return
        if self._lane.get(key) == lane:
            return
        self._lane[key] = lane  # what waits elsewhere is passed over
        self._waiting[lane].setdefault(key[0], deque()).append(key)
        self._news[lane].set()

    async def take(self, lane: Lane) -> Key:
        """The next key. Its worker calls `done` when it has ended with it."""
        while True:
            if (key := self._next(lane)) is not None:
                return key
            self._news[lane].clear()
            await self._news[lane].wait()

    @asynccontextmanager
    async def step(self, key: Key) -> AsyncIterator[None]:
        """A step of work on a taken key. `put` ends it early, without an error."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._active[key] = scope
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._active[key] = None

    async def done(self, key: Key) -> None:
        """Nothing is due for a taken key any more."""
        self._active.pop(key, None)
        if key in self._slow:
            self._slow.discard(key)
            self._news["slow"].set()  # its tenant may have been held back
        async with self._changed:
            self._changed.notify_all()

    async def settled(self, *keys: Key) -> None:
        """Wait until no worker has one of these keys, and none waits."""
        async with self._changed:
            await self._changed.wait_for(lambda: not any(key in self._lane or key in self._active for key in keys))

    def break_off(self, tenant: str, store_id: str) -> list[Key]:
        """Break off every step for a store's files, and take those that wait off the list. Returns the keys worked on."""
        for key in [key for key in self._lane if key[:2] == (tenant, store_id) and key[2]]:
            del self._lane[key]
        active = [key for key in self._active if key[:2] == (tenant, store_id) and key[2]]
        for key in active:
            _break_off(self._active[key])
        return active

    @property
    def waiting(self) -> int:
        """Keys that no worker has yet."""
        return len(self._lane)

    @property
    def active(self) -> int:
        """Keys that a worker has."""
        return len(self._active)

    def _next(self, lane: Lane) -> Key | None:
        tenants = self._waiting[lane]
        while (tenant := self._whose_turn(lane)) is not None:
            keys = tenants.pop(tenant)
            key = keys.popleft()
            if keys:
                tenants[tenant] = keys  # at the end: the others have their turn first
            if self._lane.get(key) == lane and key not in self._active:
                del self._lane[key]
                self._active[key] = None
                if lane == "slow":
                    self._slow.add(key)
                return key
        return None

    def _whose_turn(self, lane: Lane) -> str | None:
        """The tenant that has waited longest, of those that may have one more key of the lane."""
        tenants = self._waiting[lane]
        if lane == "quick":
            return next(iter(tenants), None)
        held, most = Counter(key[0] for key in self._slow), self._most_slow()
        return next((tenant for tenant in tenants if held[tenant] < most), None)


def _break_off(step: asyncio.Timeout | None) -> None:
    if step is not None and not step.expired():
        step.reschedule(asyncio.get_running_loop().time())

"""Idle: the connections on which nothing is asked, in the order in which they became idle. Pure but for the clock it is given.

Clients that keep connections and never close them (a pool in every worker, a load balancer) fill `max_connections` with
silence. Where one more comes then, the connection that has been idle for longest makes room for it, and only where none
has been for `SPARED_S` is the newcomer refused: one that has just been answered is about to ask again, and to close it
would meet its next request on the way. At most `CLOSING_AT_ONCE` close at a time: until each has closed it still has its
descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SPARED_S = 1.0
CLOSING_AT_ONCE = 64  # of the descriptors in acu/process/descriptors.py's SPARE

C = TypeVar("C", bound=Hashable)


class Idle(Generic[C]):
    """The idle connections. `now` in seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._since: dict[C, float] = {}  # in order of time
        self._closing: set[C] = set()
        self.closed = 0
        """How many made room, since the start."""

    def __len__(self) -> int:
        """How many are idle."""
        return len(self._since)

    def rest(self, connection: C, now: float) -> None:
        """It is idle from now on."""
        self._since.pop(connection, None)
        self._since[connection] = now

    def wake(self, connection: C) -> None:
        """Something came from it."""
        self._since.pop(connection, None)

    def gone(self, connection: C) -> None:
        """It has closed."""
        self._since.pop(connection, None)
        self._closing.discard(connection)

    def give_way(self, now: float, quiet: Callable[[C], bool]) -> C | None:
        """The one to close for a newcomer: idle for longest, and `quiet` says that it is; None where there is none."""
        while self._since and len(self._closing) < CLOSING_AT_ONCE:
            connection, since = next(iter(self._since.items()))
            if now - since < SPARED_S:
                return None
            if quiet(connection):
                del self._since[connection]
                self._closing.add(connection)
                self.closed += 1
                return connection
            self.rest(connection, now)  # its last answer is still on the way
        return None

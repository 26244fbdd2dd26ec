"""Departures: events of logs that are old enough to leave RocksDB, and the two commands around their way into the history.

    due        reads them, log by log, each log's first ones
    Announce   the head says that they may be in the history from now on. Durable before they are
    (the history has them, durably)
    Depart     they leave RocksDB, and the head says so, in one batch

A crash before the last step leaves events in both places: they are found due again, and the history takes none twice. A log
that was dropped meanwhile is told by its head's token, also if there is a new one of its name: it is passed over.

A log's events leave in their order: what would leave a gap in RocksDB is passed over. So RocksDB has none up to `moved`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dataplane.errors import Damaged
from dataplane.state import forgetting, versioned
from dataplane.state.eventlog import FAMILY, Stream
from dataplane.state.logshards import LogEvent
from dataplane.truth import keys
from dataplane.truth.records import EventRecord, StreamRecord, decode, encode
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Command, Draft

MOST_EVENTS = 2048  # that move together
MOST_BYTES = 8 << 20
LATEST_MS = (1 << 63) - 1  # that a log shard can hold
LOOKED_AT = 256  # logs that are looked at in one call
STEP = 128  # events that a command removes
YIELD = 64  # events between two moments in which others may have the interpreter


class Departure(Struct, frozen=True):
    """The events of a log from number `first` on. `front`: RocksDB has none before them."""

    stream: Stream
    tenant: str
    token: str
    first: int
    front: bool
    events: list[EventRecord]

    @property
    def last(self) -> int:
        """The number of the last one."""
        return self.first + len(self.events) - 1

    def log_events(self, kept_from: int) -> Iterator[LogEvent]:
        """As the history takes them, from number `kept_from` on."""
        log = forgetting.log_name(self.stream.name, self.token)
        for seq, event in enumerate(self.events, self.first):
            if seq >= kept_from:
                yield LogEvent(self.tenant, log, seq, event.kind, event.time_ms, event.payload)


def due(rocks: Rocks, cursor: bytes, through_ms: int) -> tuple[list[Departure], bytes]:
    """The next logs that begin with events of at most `through_ms`, with all such, and the cursor of the next call.

    At most MOST_EVENTS events, and little more than MOST_BYTES. The cursor is a key; empty: from the first log on, or there
    are no more. Events that cannot be read, and what follows them in their log, are left where they are.
    """
    found: list[Departure] = []
    room, size = MOST_EVENTS, 0
    for _ in range(LOOKED_AT):
        prefix, tenant, name = _next_log(rocks, cursor)
        if not prefix:
            return found, b""
        departure, cursor, read = _front(
            rocks, Stream(tenant, name), tenant, (cursor, min(through_ms, LATEST_MS), room)
        )
        if departure.events:
            found.append(departure)
            room -= len(departure.events)
            size += read
        if room <= 0 or size >= MOST_BYTES or not cursor:
            break
    return found, cursor


class Announce(Command):
    """Say that departures may be in the history. Gives for each the number of its log's first kept event; None: it stays."""

    def __init__(self, departures: Sequence[Departure]) -> None:
        self.weight = len(departures)
        self._departures = departures

    def draft(self, draft: Draft) -> list[int | None]:
        return [self._announced(draft, one) for one in self._departures]

    def _announced(self, draft: Draft, one: Departure) -> int | None:
        if forgetting.is_noted(draft, one.stream.prefix):
            return None
        head = _head(draft, one)
        if head is None or one.last > head.last or not (one.front or one.first <= head.moved + 1):
            return None
        if head.moving < one.last:
            draft.put(versioned.FAMILY, one.stream.head, encode(replace(head, moving=one.last)))
        return head.first


class Depart(Command):
    """Remove the events `begin` to `end` (places in the departure) from RocksDB. Gives how many."""

    def __init__(self, departure: Departure, begin: int, end: int) -> None:
        self.weight = end - begin
        self._departure = departure
        self._front = departure.front and begin == 0
        self._numbers = range(departure.first + begin, departure.first + end)

    @classmethod
    def of(cls, departure: Departure) -> Iterator[Depart]:
        """As many as it takes, in order."""
        count = len(departure.events)
        for begin in range(0, count, STEP):
            yield cls(departure, begin, min(begin + STEP, count))

    def draft(self, draft: Draft) -> int:
        one, numbers = self._departure, self._numbers
        head = _head(draft, one)
        if head is None or not (self._front or numbers[0] <= head.moved + 1):
            return 0
        for number in numbers:
            draft.delete(FAMILY, one.stream.events + keys.number(number))
        draft.put(versioned.FAMILY, one.stream.head, encode(replace(head, moved=max(head.moved, numbers[-1]))))
        return len(numbers)


def _head(draft: Draft, one: Departure) -> StreamRecord | None:
    """The head of a departure's log, if it is still the same log."""
    stored = draft.get(versioned.FAMILY, one.stream.head)
    head = None if stored is None else one.stream.read_head(stored)
    return head if head is not None and head.token == one.token else None


def _next_log(rocks: Rocks, cursor: bytes) -> tuple[bytes, str, str]:
    """The prefix, tenant and name of the log of the first event at or after `cursor`; an empty prefix: there is none."""
    with contextlib.closing(rocks.scan(FAMILY, b"", start=cursor)) as found:
        key = next((key for key, _ in found), b"")
    tenant_end = 2 + int.from_bytes(key[:2], "big")
    end = tenant_end + 2 + int.from_bytes(key[tenant_end : tenant_end + 2], "big")
    try:
        return key[:end], key[2:tenant_end].decode(), key[tenant_end + 2 : end].decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"a key of the database is none of an event: {key[:40]!r}. Restore it from a backup.") from error


def _front(rocks: Rocks, stream: Stream, tenant: str, bounds: tuple[bytes, int, int]) -> tuple[Departure, bytes, int]:
    """A log's first events within `bounds`: from this key on, up to this time, so many. The next cursor, and their bytes."""
    cursor, through_ms, room = bounds
    beyond = keys.after(stream.events) or b""
    stored = rocks.get(versioned.FAMILY, stream.head)  # before the events: the token is theirs, or is found out
    token = stream.read_head(stored).token
    start = cursor[len(stream.events) :] if cursor.startswith(stream.events) else b""
    events: list[EventRecord] = []
    first = size = 0
    with contextlib.closing(rocks.scan(FAMILY, stream.events, start=start)) as found:
        for key, value in found:
            number = int.from_bytes(key[-8:], "big")
            first = first or number
            try:
                event = decode(EventRecord, value)
            except Damaged:
                break
            if event.time_ms > through_ms or number != first + len(events):
                break
            events.append(event)
            size += len(value)
            if len(events) == room or size >= MOST_BYTES:
                beyond = key + b"\0"
                break
            if len(events) % YIELD == 0:
                time.sleep(0)
    return Departure(stream, tenant, token, first, not start, events), beyond, size

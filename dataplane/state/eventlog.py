"""Event logs: events with rising numbers, and how they are appended, trimmed and read.

Format. Family `events`: tenant + counted stream + number (8 bytes) -> EventRecord. Family `state`: tenant + FF 02 + stream ->
StreamRecord, the log's head: the numbers of the last event and of the first that is kept. The older events of a log may have
left for the history (departures.py), where it has a name that no later log of this name has.

Invariant: the events first..last are stored, all of them, each in RocksDB or in the history (until that gives them up, by
age), and the first event ever has number 1. The head changes in the batch that adds or removes events. So numbers have no gap
and none repeats: not after a crash, which leaves whole batches, and not in a log that was trimmed to nothing, whose head stays.
A log that is dropped loses its head too: one made later under its name begins at 1.

Trimming removes from the front in steps of TRIM_EVENTS, each a batch that leaves the invariant true. A crash between
leaves a log that was trimmed to a smaller number. What was trimmed or dropped in the history is noted there (forgetting.py).

Reading. Events leave RocksDB only when the history has them. So a number that RocksDB does not show, up to the last one, is
then in the history, whatever moves meanwhile; one that is in both is given from RocksDB. What lies beyond the last number is not
there: a box that was restored may have some of it, which the next appends replace.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dataplane.errors import InvalidInput, VersionConflict
from dataplane.state import versioned
from dataplane.state.forgetting import EVERYTHING, log_name, note_log
from dataplane.truth import keys
from dataplane.truth.records import EventRecord, StreamRecord, decode, encode
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Command, Draft

if TYPE_CHECKING:
    from dataplane.state.oldevents import OldEvents

FAMILY = "events"
MAX_APPEND_EVENTS = 256  # an append is one batch, whose write holds the GIL
MAX_APPEND_BYTES = 1 << 20
TRIM_EVENTS = 128
PAGE_BYTES = 8 << 20
_TOKEN_BYTES = 6

Page = list[tuple[int, EventRecord]]


class Stream:
    """Where a log lies. Raises InvalidInput for names that cannot be."""

    def __init__(self, tenant: str, name: str) -> None:
        self.tenant = tenant
        self.name = name
        self.prefix = keys.tenant_prefix(tenant)
        self.events = self.prefix + keys.counted_name(name, "stream")
        self.head = self.prefix + versioned.STREAMS + keys.name(name, "stream")

    def read_head(self, stored: bytes | None) -> StreamRecord:
        """The head in `stored`, the value of its key."""
        return StreamRecord(0) if stored is None else decode(StreamRecord, stored)


class Append(Command):
    """Add events at the end. `expected_last`: the number that the last one must have, or None. Gives the new last number."""

    def __init__(self, stream: Stream, events: Sequence[EventRecord], expected_last: int | None) -> None:
        self._stream = stream
        self._expected = expected_last
        self._encoded = _encoded(events)
        size = sum(map(len, self._encoded))
        if len(events) > MAX_APPEND_EVENTS or size > MAX_APPEND_BYTES:
            raise InvalidInput(
                f"one append takes at most {MAX_APPEND_EVENTS} events of together {MAX_APPEND_BYTES} bytes, and this one "
                f"has {len(events)} of {size}: append them in turn, or put what is large into a record and name it.",
                param="events",
            )
        self.weight = 1 + max(len(events), size // versioned.ROW_BYTES)

    def draft(self, draft: Draft) -> int:
        stream = self._stream
        stored = draft.get(versioned.FAMILY, stream.head)
        head = stream.read_head(stored) if stored else StreamRecord(0, token=secrets.token_hex(_TOKEN_BYTES))
        if self._expected is not None and self._expected != head.last:
            raise VersionConflict(
                f"the last event of {stream.name!r} is {head.last}, and {self._expected} was expected: read on from there.",
                version=head.last,
            )
        if not self._encoded:
            return head.last
        for number, event in enumerate(self._encoded, head.last + 1):
            draft.put(FAMILY, stream.events + keys.number(number), event, read_again=False)
        last = head.last + len(self._encoded)
        draft.put(versioned.FAMILY, stream.head, encode(replace(head, last=last)))
        return last


class Trim(Command):
    """One step of removing the events up to `through`. Gives the first number that is kept."""

    weight = TRIM_EVENTS

    def __init__(self, stream: Stream, through: int) -> None:
        self._stream = stream
        self._through = through

    def draft(self, draft: Draft) -> int:
        stream = self._stream
        head = stream.read_head(draft.get(versioned.FAMILY, stream.head))
        begin = max(head.first, head.moved + 1)  # those before are not in RocksDB
        through = min(self._through, head.last, begin + TRIM_EVENTS - 1)
        if through < head.first:
            return head.first
        for number in range(begin, through + 1):
            draft.delete(FAMILY, stream.events + keys.number(number))
        if head.moving >= head.first:
            note_log(draft, stream.prefix, stream.name, head.token, through)
        draft.put(versioned.FAMILY, stream.head, encode(replace(head, first=through + 1)))
        return through + 1


class Drop(Command):
    """Remove a log and its head. Gives whether there was one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def draft(self, draft: Draft) -> bool:
        stream = self._stream
        stored = draft.get(versioned.FAMILY, stream.head)
        if stored is None:
            return False
        head = stream.read_head(stored)
        if head.moving:
            note_log(draft, stream.prefix, stream.name, head.token, EVERYTHING)
        draft.delete(versioned.FAMILY, stream.head)
        draft.delete_prefix(FAMILY, stream.events)
        return True


def read_last(rocks: Rocks, stream: Stream) -> int:
    """The number of the last event; 0: there never was one. Raises Damaged."""
    return stream.read_head(rocks.get(versioned.FAMILY, stream.head)).last


def read(rocks: Rocks, stream: Stream, after: int, limit: int, old: OldEvents | None = None) -> Page:
    """Events with numbers above `after`, in order: at most `limit`, and no more once PAGE_BYTES are read.

    `old`: where those are that RocksDB has no more. Raises Damaged, Closed.
    """
    while True:
        head = stream.read_head(rocks.get(versioned.FAMILY, stream.head))
        page, from_history = _page(rocks, stream, head, (after, limit), old)
        if not from_history or stream.read_head(rocks.get(versioned.FAMILY, stream.head)).token == head.token:
            return page  # otherwise the log was dropped meanwhile, and a new one has its name


def _page(
    rocks: Rocks, stream: Stream, head: StreamRecord, wanted: tuple[int, int], old: OldEvents | None
) -> tuple[Page, bool]:
    """As `read`. And whether it has something from the history."""
    after, limit = wanted
    page: Page = []
    size, following, from_history = 0, max(after + 1, head.first), False
    while following <= head.last and len(page) < limit and size < PAGE_BYTES:
        found: Page = []
        end = head.moved
        if old is None or following > end:
            found, end = _recent(rocks, stream, head, following, (limit - len(page), PAGE_BYTES - size))
        if not found and old is not None and (old.is_there or head.moving >= following):
            bounds = (limit - len(page), PAGE_BYTES - size)
            log = log_name(stream.name, head.token)
            earlier = old.span(stream.tenant, log, range(following, end + 1), *bounds)
            found = [(event.seq, EventRecord(event.kind, event.time_ms, event.payload)) for event in earlier]
            from_history = True
        page += found
        size += sum(len(event.payload) for _, event in found)
        following = end + 1
    return page, from_history


def _recent(rocks: Rocks, stream: Stream, head: StreamRecord, start: int, bounds: tuple[int, int]) -> tuple[Page, int]:
    """Events in RocksDB from number `start` on up to a gap, the last one, or these bounds; and the number that it reaches.

    None: RocksDB lacks the events up to this number. A gap is where events left that were in a copy of the box only in part.
    """
    limit, max_bytes = bounds
    page: Page = []
    size = 0
    with contextlib.closing(rocks.scan(FAMILY, stream.events, start=keys.number(start))) as found:
        for key, stored in found:
            number = int.from_bytes(key[-8:], "big")
            if number != start + len(page) or number > head.last:
                return page, start + len(page) - 1 if page else min(number - 1, head.last)
            page.append((number, decode(EventRecord, stored)))
            size += len(stored)
            if len(page) == limit or size >= max_bytes:
                break
    return page, page[-1][0] if page else head.last


def _encoded(events: Sequence[EventRecord]) -> list[bytes]:
    try:
        return [encode(event) for event in events]
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidInput(f"an event cannot be stored: {error}.", param="events") from error

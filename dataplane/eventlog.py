"""Event logs: events with rising numbers, and how they are appended and trimmed.

Format. Family `events`: tenant + counted stream + number (8 bytes) -> EventRecord. Family `state`: tenant + FF 02 + stream ->
StreamRecord, the log's head: the numbers of the last event and of the first that is kept.

Invariant: the events first..last are stored, all of them, and no others; the first event ever has number 1. The head changes
in the batch that adds or removes events. So numbers have no gap and none repeats: not after a crash, which leaves whole
batches, and not in a log that was trimmed to nothing, whose head stays. A log that is dropped loses its head too: one made
later under its name begins at 1.

Trimming removes from the front in steps of TRIM_EVENTS, each a batch that leaves the invariant true. A crash between
leaves a log that was trimmed to a smaller number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dataplane import keys, versioned
from dataplane.errors import InvalidInput, VersionConflict
from dataplane.records import EventRecord, StreamRecord, decode, encode
from dataplane.rocks import Rocks
from dataplane.writer import Command, Draft

FAMILY = "events"
MAX_APPEND_EVENTS = 256  # an append is one batch, whose write holds the GIL
MAX_APPEND_BYTES = 1 << 20
TRIM_EVENTS = 128
PAGE_BYTES = 8 << 20


class Stream:
    """Where a log lies. Raises InvalidInput for names that cannot be."""

    def __init__(self, tenant: str, name: str) -> None:
        prefix = keys.tenant_prefix(tenant)
        self.name = name
        self.events = prefix + keys.counted_name(name, "stream")
        self.head = prefix + versioned.STREAMS + keys.name(name, "stream")

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
        head = stream.read_head(draft.get(versioned.FAMILY, stream.head))
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
        draft.put(versioned.FAMILY, stream.head, encode(StreamRecord(last, head.first)))
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
        through = min(self._through, head.last, head.first + TRIM_EVENTS - 1)
        if through < head.first:
            return head.first
        for number in range(head.first, through + 1):
            draft.delete(FAMILY, stream.events + keys.number(number))
        draft.put(versioned.FAMILY, stream.head, encode(StreamRecord(head.last, through + 1)))
        return through + 1


class Drop(Command):
    """Remove a log and its head. Gives whether there was one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def draft(self, draft: Draft) -> bool:
        if draft.get(versioned.FAMILY, self._stream.head) is None:
            return False
        draft.delete(versioned.FAMILY, self._stream.head)
        draft.delete_prefix(FAMILY, self._stream.events)
        return True


def read_last(rocks: Rocks, stream: Stream) -> int:
    """The number of the last event; 0: there never was one. Raises Damaged."""
    return stream.read_head(rocks.get(versioned.FAMILY, stream.head)).last


def read(rocks: Rocks, stream: Stream, after: int, limit: int) -> list[tuple[int, EventRecord]]:
    """Events with numbers above `after`, in order: at most `limit`, and no more once PAGE_BYTES are read. Raises Damaged."""
    page: list[tuple[int, EventRecord]] = []
    size = 0
    with contextlib.closing(rocks.scan(FAMILY, stream.events, start=keys.number(after + 1))) as found:
        for key, stored in found:
            page.append((int.from_bytes(key[-8:], "big"), decode(EventRecord, stored)))
            size += len(stored)
            if len(page) == limit or size >= PAGE_BYTES:
                break
    return page


def _encoded(events: Sequence[EventRecord]) -> list[bytes]:
    try:
        return [encode(event) for event in events]
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidInput(f"an event cannot be stored: {error}.", param="events") from error

"""The state store: sessions, runs and jobs as versioned records, and logs of events.

Algorithm. Every change is a command in the one writer's ring (versioned.py and eventlog.py have the formats). A command reads and
changes in the writer's thread, in the order of the ring, so a compare-and-swap or an append has no race. A read first waits
until what this process submitted before it is visible, then reads RocksDB in a thread: one reads one's own writes, and the
loop never waits for the disk.

Crash behaviour. A change is there whole or not at all. What `durable` acknowledged survives the loss of power, what
`visible` acknowledged the death of the process. A call that was cancelled, or whose process died, may have happened.

Expired records are not there for any call. Their space comes back through `sweep`, which its owner calls by a timer.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import Future
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Literal, TypeVar, cast

from dataplane.clock import now_ms
from dataplane.errors import Closed, InvalidInput
from dataplane.state import eventlog, versioned
from dataplane.state.forgetting import note_tenant
from dataplane.state.oldevents import OldEvents
from dataplane.state.versioned import Address, Clock, Parts, Versioned
from dataplane.truth import keys
from dataplane.truth.records import EventRecord
from dataplane.truth.reserve import Lender
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Command, Draft, Writer

Kept = Literal["visible", "durable"]
T = TypeVar("T")

MAX_VALUE_BYTES = 16 << 20
MAX_TTL_S = 100 * 365.25 * 86_400
MAX_PAGE = 1000
_SWEEP_BATCH = 64
_END = (1 << 63) - 1  # beyond every number of an event


class StateStore:
    """The only door to state.

    `old`: events that left RocksDB. `executor`: where reads run; None: the loop's own threads. `clock`: milliseconds since 1970.
    """

    def __init__(
        self,
        rocks: Rocks,
        writer: Writer,
        *,
        old: OldEvents | None = None,
        executor: Executor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._rocks = rocks
        self._writer = writer
        self._old = old
        self._executor = executor
        self._clock = clock or now_ms
        self.rosters: Sequence[tuple[str, str]] = ()  # (tenant, kind) whose records are named for tenants
        self.lender: Lender | None = None  # of space for deletes on a full disk
        self._cursor = b""  # where the next sweep goes on

    async def put(
        self, tenant: str, kind: str, name: str, value: bytes, *, ttl_s: float | None = None, wait: Kept = "durable"
    ) -> int:
        """Set a value, whatever was there. It expires after `ttl_s` seconds, if given. Returns its version.

        Raises InvalidInput (names of 1 to 512 bytes, values of at most 16 MiB), StorageFull, Unavailable, Closed.
        """
        at = versioned.address(tenant, kind, name)
        return await self._put(at, value, _milliseconds(ttl_s), None, wait)

    async def compare_and_swap(
        self, tenant: str, kind: str, name: str, expected: int, value: bytes, *, ttl_s: float | None = None
    ) -> int:
        """Set a value if the stored version is `expected` (0: there is none). Returns the new version, which is durable.

        Raises VersionConflict, which has the stored version, and what `put` raises.
        """
        at = versioned.address(tenant, kind, name)
        return await self._put(at, value, _milliseconds(ttl_s), _checked(expected, "expected"), "durable")

    async def get(self, tenant: str, kind: str, name: str) -> Versioned | None:
        """The record of a name; None if there is none. Raises Damaged, Closed."""
        at = versioned.address(tenant, kind, name)
        return await self._read(lambda: versioned.read(self._rocks, at.key, at.tenant, self._clock()))

    async def delete(
        self, tenant: str, kind: str, name: str, *, expected: int | None = None, wait: Kept = "durable"
    ) -> bool:
        """Remove a record; False if there is none. With `expected`, raises VersionConflict as compare_and_swap does."""
        at = versioned.address(tenant, kind, name)
        if expected is not None:
            _checked(expected, "expected")

        async def delete() -> bool:
            return cast("bool", await self._writer.submit(versioned.Delete(at, self._clock, expected), wait))

        # Of a version, it is not tried again: the first attempt may have been all but durable.
        return await delete() if self.lender is None or expected is not None else await self.lender.delete(delete)

    async def scan(
        self, tenant: str, kind: str, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> list[tuple[str, Versioned]]:
        """A page of the records whose names begin with `prefix` and come after `after`, in the order of UTF-8.

        A page ends early once it has 32 MiB of values. Go on after its last name; an empty page is the end.
        """
        stem = versioned.kind_prefix(kind)
        at = Address(keys.tenant_prefix(tenant), stem + _text(prefix, "prefix"), "")
        start = None if after is None else _text(after, "after")
        limit = _page(limit)
        return await self._read(lambda: versioned.read_page(self._rocks, at, start, limit, self._clock()))

    async def append(
        self,
        tenant: str,
        stream: str,
        events: Sequence[EventRecord],
        *,
        expected_last: int | None = None,
        wait: Kept = "durable",
    ) -> int:
        """Add events at a log's end, all or none. Returns the number of the last one; the first event of a log has 1.

        With `expected_last` (0: a log without events), raises VersionConflict, whose version is the log's last number.
        Raises InvalidInput for more than 256 events or 1 MiB at once.
        """
        if expected_last is not None:
            _checked(expected_last, "expected_last")
        command = eventlog.Append(eventlog.Stream(tenant, stream), events, expected_last)
        return cast("int", await self._writer.submit(command, wait))

    async def append_ahead(
        self, tenant: str, stream: str, events: Sequence[EventRecord], *, expected_last: int
    ) -> Future[int]:
        """As `append`, once they have their place behind all that was submitted before; the future is done once they are durable.

        Appends to a log become durable in their order, and none does behind one that failed, if each expects those before it.
        """
        command = eventlog.Append(eventlog.Stream(tenant, stream), events, _checked(expected_last, "expected_last"))
        return await self._writer.submit_ahead(command)

    async def read(
        self, tenant: str, stream: str, *, after: int = 0, limit: int = MAX_PAGE
    ) -> list[tuple[int, EventRecord]]:
        """A page of the events with numbers above `after`, in order, wherever they are by now.

        Those that were trimmed, or that the history gave up, are skipped: the numbers then begin later.
        A page ends early once it has 8 MiB. Go on after its last number; an empty page is the end.
        """
        log = eventlog.Stream(tenant, stream)
        _checked(after, "after")
        limit = _page(limit)
        return await self._read(lambda: eventlog.read(self._rocks, log, after, limit, self._old))

    async def last_seq(self, tenant: str, stream: str) -> int:
        """The number of a log's last event, trimmed or not; 0: it has never had one."""
        log = eventlog.Stream(tenant, stream)
        return await self._read(lambda: eventlog.read_last(self._rocks, log))

    async def trim(self, tenant: str, stream: str, through: int, *, wait: Kept = "durable") -> int:
        """Remove the events up to number `through`, oldest first, in steps. Returns the first number that is kept."""
        log = eventlog.Stream(tenant, stream)
        through = _checked(through, "through")
        first = 0
        while True:
            before, first = first, cast("int", await self._writer.submit(eventlog.Trim(log, through), wait))
            if first > through or first == before:
                return first

    async def drop_stream(self, tenant: str, stream: str, *, wait: Kept = "durable") -> bool:
        """Remove a whole log; False if there is none. One that is made later under its name begins at 1."""
        return cast("bool", await self._writer.submit(eventlog.Drop(eventlog.Stream(tenant, stream)), wait))

    async def drop_tenant(self, tenant: str) -> None:
        """Remove all records and logs of a tenant, durably, and its name from `rosters`. Versions begin anew for it."""
        await self._writer.submit(_DropTenant(keys.tenant_prefix(tenant), noted=self._old is not None), "durable")
        for owner, kind in self.rosters:
            await self.delete(owner, kind, tenant)

    async def rosters_with(self, tenant: str) -> list[str]:
        """The owners of `rosters` that have the tenant's name."""
        return [owner for owner, kind in self.rosters if await self.get(owner, kind, tenant) is not None]

    async def sweep(self, now_ms: int, limit: int = 1000) -> int:
        """Remove what has expired at `now_ms`: the next `limit` tenants and expired records, then it returns.

        The next call goes on from there; after the last tenant comes the first. Returns how many records were removed.
        """
        if self.lender is not None:
            await self.lender.top_up()
        entries, self._cursor = await self._read(lambda: versioned.due(self._rocks, now_ms, self._cursor, limit))
        removed = 0
        for begin in range(0, len(entries), _SWEEP_BATCH):
            command = versioned.Expire(entries[begin : begin + _SWEEP_BATCH])
            removed += cast("int", await self._writer.submit(command, "visible"))
        return removed

    async def _put(self, at: Address, value: bytes, ttl_ms: int | None, expected: int | None, wait: Kept) -> int:
        if len(value) > MAX_VALUE_BYTES:
            raise InvalidInput(
                f"a value has at most {MAX_VALUE_BYTES} bytes; this one has {len(value)}.", param="value"
            )
        if len(value) <= versioned.INLINE_BYTES:
            command = versioned.Put(at, value, self._clock, ttl_ms=ttl_ms, expected=expected)
            return cast("int", await self._writer.submit(command, wait))
        parts = Parts.plan(at.tenant, len(value), self._clock())
        try:
            for number in range(parts.count):
                piece = value[number * versioned.INLINE_BYTES : (number + 1) * versioned.INLINE_BYTES]
                await self._writer.submit(versioned.PutPart(parts, number, piece), "visible")
            command = versioned.Put(at, parts, self._clock, ttl_ms=ttl_ms, expected=expected)
            return cast("int", await self._writer.submit(command, wait))
        except BaseException:
            self._give_up(parts)
            raise

    def _give_up(self, parts: Parts) -> None:
        """Remove the parts of a value that was not stored, if the writer has room; otherwise they expire."""
        try:
            self._writer.submit_now(versioned.DropParts(parts))
        except Closed:
            return

    async def _read(self, read: Callable[[], T]) -> T:
        await self._writer.barrier()
        return await asyncio.get_running_loop().run_in_executor(self._executor, read)


class _DropTenant(Command):
    alone = True  # a range, in which others may read

    def __init__(self, tenant: bytes, *, noted: bool) -> None:
        self._tenant = tenant
        self._noted = noted

    def draft(self, draft: Draft) -> None:
        for family in (versioned.FAMILY, eventlog.FAMILY):
            draft.delete_prefix(family, self._tenant)
        if self._noted:
            note_tenant(draft, self._tenant)


def _milliseconds(ttl_s: float | None) -> int | None:
    if ttl_s is None:
        return None
    if not (math.isfinite(ttl_s) and 0 < ttl_s <= MAX_TTL_S):
        raise InvalidInput(f"ttl_s must be above 0 and at most 100 years; this one is {ttl_s}.", param="ttl_s")
    return max(1, round(ttl_s * 1000))


def _checked(number: int, what: str) -> int:
    if not 0 <= number < _END:
        raise InvalidInput(f"{what} must be 0 or more and below 2^63 - 1; this one is {number}.", param=what)
    return number


def _page(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be between 1 and {MAX_PAGE}; this one is {limit}.", param="limit")
    return limit


def _text(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} holds half of a surrogate pair, which is no text.", param=what) from error

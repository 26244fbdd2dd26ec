"""Versioned records: a value under a tenant, a kind and a name, and how it changes.

Format. All keys lie in RocksDB's family `state`, after the tenant's prefix. A kind's length begins with 0, 1 or 2, and
everything else with FF, so that no kind meets what the store keeps for itself:

    kind, counted, + name               StateRecord
    FF 01                               the tenant's last version, 8 bytes
    FF 02 + stream                      StreamRecord: the head of an event log (eventlog.py)
    FF 03 + expiry, 8 bytes + subject   nothing: the expiry index. Its subject is what follows the tenant in the key of a
                                        record, or the prefix of parts
    FF 04 + token + number, 2 bytes     a part of a value
    FF 05 ..., FF 06                    what the history is to forget (forgetting.py)

Versions. Each change takes the tenant's next version, in the same batch. So a version never repeats for a name, also
after it was deleted and made anew, and nothing has to be kept for names that are gone. Versions of a name rise; they have gaps.

Expiry. A record that expires has exactly one entry in the index, changed in the same batch. So what has expired is found by
one seek for each tenant. An expired record counts as not there from that moment, whether it was swept or not.

Large values. RocksDB's write holds the GIL for about 2 ms per MiB, so a value of more than INLINE_BYTES is cut into parts,
each written by a command of its own, before the record that names them. Until then an entry of the expiry index stands
for the parts, and the record's batch removes it: what a crash leaves between is swept like an expired record. Parts are
never changed. A reader that finds one missing reads the record again, which has been replaced.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable

from msgspec import Struct

from dataplane.errors import Damaged, Unavailable, VersionConflict
from dataplane.truth import keys
from dataplane.truth.records import StateRecord, decode, encode
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Command, Draft

FAMILY = "state"
INLINE_BYTES = 256 << 10
PAGE_BYTES = 32 << 20  # of values in one page of a scan
ROW_BYTES = 2048  # what counts as one row in the ring

VERSIONS = b"\xff\x01"
STREAMS = b"\xff\x02"
_EXPIRIES = b"\xff\x03"
_PARTS = b"\xff\x04"
_TOKEN_BYTES = 12
_UPLOAD_MS = 3_600_000  # how long the parts of a value may wait for their record

Clock = Callable[[], int]


class Versioned(Struct, frozen=True):
    """A stored value. Times are milliseconds since 1970, UTC."""

    value: bytes
    version: int
    updated_ms: int
    expires_ms: int | None


class Address(Struct, frozen=True):
    """Where a record lies: the tenant's prefix, and what follows it in the key."""

    tenant: bytes
    subject: bytes
    label: str  # for messages

    @property
    def key(self) -> bytes:
        """The record's key."""
        return self.tenant + self.subject


class Parts(Struct, frozen=True):
    """Parts of a value that has no record yet."""

    tenant: bytes
    token: bytes
    count: int
    until_ms: int

    @classmethod
    def plan(cls, tenant: bytes, size: int, now_ms: int) -> Parts:
        """For a value of `size` bytes."""
        return cls(tenant, secrets.token_bytes(_TOKEN_BYTES), -(-size // INLINE_BYTES), now_ms + _UPLOAD_MS)

    @property
    def entry(self) -> bytes:
        """Its key in the expiry index."""
        return _entry(self.tenant, self.until_ms, _PARTS + self.token)


def address(tenant: str, kind: str, name: str) -> Address:
    """Raises InvalidInput for names that cannot be."""
    return Address(keys.tenant_prefix(tenant), kind_prefix(kind) + keys.name(name, "name"), f"{kind} {name!r}")


def kind_prefix(kind: str) -> bytes:
    """What the keys of a kind begin with, after the tenant. Raises InvalidInput."""
    return keys.counted_name(kind, "kind")


class PutPart(Command):
    """One part of a large value; nobody sees it before its record."""

    def __init__(self, parts: Parts, number: int, content: bytes) -> None:
        self.weight = 1 + len(content) // ROW_BYTES
        self._parts = parts
        self._number = number
        self._content = content

    def draft(self, draft: Draft) -> None:
        parts = self._parts
        if self._number == 0:
            draft.put(FAMILY, parts.entry, b"")
        elif draft.get(FAMILY, parts.entry) is None:
            raise _too_late()
        draft.put(FAMILY, _part_key(parts.tenant, parts.token, self._number), self._content, read_again=False)


class DropParts(Command):
    """Parts that get no record. Those that have one by now stay."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def draft(self, draft: Draft) -> None:
        if draft.get(FAMILY, self._parts.entry) is not None:
            draft.delete(FAMILY, self._parts.entry)
            draft.delete_prefix(FAMILY, self._parts.tenant + _PARTS + self._parts.token)


class Put(Command):
    """Set a value. `expected`: the version that must be stored (0: none), or None. Gives the new version."""

    def __init__(
        self, at: Address, value: bytes | Parts, clock: Clock, *, ttl_ms: int | None = None, expected: int | None = None
    ) -> None:
        self.weight = 1 if isinstance(value, Parts) else 1 + len(value) // ROW_BYTES
        self._at = at
        self._value = value
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._expected = expected

    def draft(self, draft: Draft) -> int:
        now = self._clock()
        at, value = self._at, self._value
        old = _stored(draft.get(FAMILY, at.key))
        _check_version(at, _live(old, now), self._expected)
        if isinstance(value, Parts) and draft.get(FAMILY, value.entry) is None:
            raise _too_late()
        version = int.from_bytes(draft.get(FAMILY, at.tenant + VERSIONS) or b"", "big") + 1
        expires = None if self._ttl_ms is None else now + self._ttl_ms
        _forget(draft, at, old)
        draft.put(FAMILY, at.tenant + VERSIONS, keys.number(version))
        if isinstance(value, Parts):
            draft.delete(FAMILY, value.entry)
            record = StateRecord(version, value.token, now, expires, value.count)
        else:
            record = StateRecord(version, value, now, expires)
        draft.put(FAMILY, at.key, encode(record))
        if expires is not None:
            draft.put(FAMILY, _entry(at.tenant, expires, at.subject), b"")
        return version


class Delete(Command):
    """Remove a record. `expected`: as for Put. Gives whether there was one."""

    def __init__(self, at: Address, clock: Clock, expected: int | None = None) -> None:
        self._at = at
        self._clock = clock
        self._expected = expected

    def draft(self, draft: Draft) -> bool:
        old = _stored(draft.get(FAMILY, self._at.key))
        live = _live(old, self._clock())
        _check_version(self._at, live, self._expected)
        if old is not None:
            _forget(draft, self._at, old)
            draft.delete(FAMILY, self._at.key)
        return live is not None


class Expire(Command):
    """Remove what entries of the expiry index stand for, if it is still as they say. Gives the number of records removed."""

    def __init__(self, entries: list[tuple[bytes, bytes]]) -> None:
        self.weight = 2 * len(entries)
        self._entries = entries  # the tenant's prefix, and the key

    def draft(self, draft: Draft) -> int:
        due = [(tenant, entry, *_parsed(tenant, entry)) for tenant, entry in self._entries]
        still = [here is not None for here in draft.get_many(FAMILY, [entry for _, entry, _, _ in due])]
        records = [_stored(one) for one in draft.get_many(FAMILY, [tenant + subject for tenant, _, _, subject in due])]
        removed = 0
        for (tenant, entry, expires, subject), there, record in zip(due, still, records, strict=True):
            if not there:
                continue
            draft.delete(FAMILY, entry)
            if subject.startswith(_PARTS):
                draft.delete_prefix(FAMILY, tenant + subject)
            elif record is not None and record.expires_ms == expires:
                _forget(draft, Address(tenant, subject, ""), record)
                draft.delete(FAMILY, tenant + subject)
                removed += 1
        return removed


def read(rocks: Rocks, key: bytes, tenant: bytes, now_ms: int) -> Versioned | None:
    """The record under `key`; None if there is none, or it has expired. Raises Damaged."""
    seen = -1
    while (record := _live(_stored(rocks.get(FAMILY, key)), now_ms)) is not None:
        value = _whole(rocks, tenant, record)
        if value is not None:
            return Versioned(value, record.version, record.updated_ms, record.expires_ms)
        if record.version == seen:
            raise Damaged("a stored value lacks some of its parts: restore it from a backup.")
        seen = record.version
    return None


def read_page(rocks: Rocks, at: Address, after: bytes | None, limit: int, now_ms: int) -> list[tuple[str, Versioned]]:
    """The names of a kind that begin as `at` does and come after `after`, in the order of their bytes, with their records.

    Ends at `limit` records or PAGE_BYTES of values, whichever is first.
    """
    stem = at.tenant + at.subject[: 2 + int.from_bytes(at.subject[:2], "big")]
    start = b""
    if after is not None and stem + after >= at.key:
        if not (stem + after).startswith(at.key):
            return []
        start = (stem + after)[len(at.key) :] + b"\0"
    page: list[tuple[str, Versioned]] = []
    size = 0
    with contextlib.closing(rocks.scan(FAMILY, at.key, start=start)) as found:
        for key, stored in found:
            record = _live(decode(StateRecord, stored), now_ms)
            if record is None:
                continue
            one = read(rocks, key, at.tenant, now_ms) if record.parts else _versioned(record)
            if one is None:  # replaced and deleted since the scan began
                continue
            page.append((key[len(stem) :].decode(), one))
            size += len(one.value)
            if len(page) == limit or size >= PAGE_BYTES:
                break
    return page


def due(rocks: Rocks, now_ms: int, cursor: bytes, limit: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Entries of the expiry index that are due, with their tenants' prefixes, and the cursor of the next call.

    Looks at `limit` entries and tenants together. The cursor is a key; empty: from the first tenant on.
    """
    entries: list[tuple[bytes, bytes]] = []
    for _ in range(limit):
        with contextlib.closing(rocks.scan(FAMILY, b"", start=cursor)) as found:
            first = next((key for key, _ in found), None)
        if first is None:
            return entries, b""
        tenant = first[: 2 + int.from_bytes(first[:2], "big")]
        with contextlib.closing(rocks.scan(FAMILY, tenant + _EXPIRIES)) as found:
            for key, _ in found:
                if _parsed(tenant, key)[0] > now_ms:
                    break
                entries.append((tenant, key))
                if len(entries) >= limit:
                    return entries, tenant
        cursor = keys.after(tenant) or b""
    return entries, cursor


def _stored(stored: bytes | None) -> StateRecord | None:
    return None if stored is None else decode(StateRecord, stored)


def _live(record: StateRecord | None, now_ms: int) -> StateRecord | None:
    if record is None or (record.expires_ms is not None and record.expires_ms <= now_ms):
        return None
    return record


def _check_version(at: Address, live: StateRecord | None, expected: int | None) -> None:
    version = 0 if live is None else live.version
    if expected is None or expected == version:
        return
    there = f"has version {version}" if version else "is not stored"
    raise VersionConflict(f"{at.label} {there}, and {expected} was expected: read it and try again.", version=version)


def _too_late() -> Unavailable:
    return Unavailable("a large value waited too long to be written, and was given up: write it again.")


def _forget(draft: Draft, at: Address, record: StateRecord | None) -> None:
    """Remove what hangs on a record: its expiry and its parts."""
    if record is not None and record.expires_ms is not None:
        draft.delete(FAMILY, _entry(at.tenant, record.expires_ms, at.subject))
    if record is not None and record.parts:
        draft.delete_prefix(FAMILY, at.tenant + _PARTS + record.value)


def _whole(rocks: Rocks, tenant: bytes, record: StateRecord) -> bytes | None:
    """The value; None if a part is missing. One part at a time, so that no copy holds the GIL for long."""
    if not record.parts:
        return record.value
    pieces: list[bytes] = []
    for number in range(record.parts):
        piece = rocks.get(FAMILY, _part_key(tenant, record.value, number))
        if piece is None:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _versioned(record: StateRecord) -> Versioned:
    return Versioned(record.value, record.version, record.updated_ms, record.expires_ms)


def _entry(tenant: bytes, expires_ms: int, subject: bytes) -> bytes:
    return tenant + _EXPIRIES + keys.number(expires_ms) + subject


def _parsed(tenant: bytes, entry: bytes) -> tuple[int, bytes]:
    """When an entry expires, and its subject."""
    rest = entry[len(tenant) + len(_EXPIRIES) :]
    return int.from_bytes(rest[:8], "big"), rest[8:]


def _part_key(tenant: bytes, token: bytes, number: int) -> bytes:
    return tenant + _PARTS + token + number.to_bytes(2, "big")

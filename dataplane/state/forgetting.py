"""Forgetting: what RocksDB has let go of and the history may still hold, noted until the history has let go of it too.

A log that is dropped or trimmed, and a tenant that is dropped, are gone for every reader at once: the head says so. Their
events in log shards go later, when the mover comes by, for that rewrites files. Format, in the family `state`:

    tenant + FF 05 + stream, counted, + token -> 8 bytes   this log's events up to that number
    tenant + FF 06 -> nothing                              everything of the tenant

A note is written in the batch that lets go, and removed once the history has done its part, if it is still the same. So a
crash repeats the work and skips none. While a tenant's own note is there, nothing of that tenant moves into the history: what
it stores anew is not taken for the old.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from dataplane.errors import Damaged
from dataplane.truth import keys
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Command, Draft

FAMILY = "state"
EVERYTHING = (1 << 63) - 1
_LOG = b"\xff\x05"
_TENANT = b"\xff\x06"
_FIRST_TENANT = b"\x00\x01"
_BATCH = 128


class Note(Struct, frozen=True):
    """What is to be forgotten: the events of `log` up to number `through`, or all of the tenant where `log` is None."""

    key: bytes
    value: bytes
    tenant: str
    log: str | None = None
    through: int = EVERYTHING


def log_name(stream: str, token: str) -> str:
    """What a log is called in the history: no later log of its name is called so."""
    return f"{token}/{stream}"


def note_log(draft: Draft, prefix: bytes, stream: str, token: str, through: int) -> None:
    """Have a log's events forgotten. `prefix` is the tenant's."""
    key = prefix + _LOG + keys.counted_name(stream, "stream") + token.encode()
    draft.put(FAMILY, key, keys.number(through), read_again=False)


def note_tenant(draft: Draft, prefix: bytes) -> None:
    """Have all of a tenant forgotten."""
    draft.put(FAMILY, prefix + _TENANT, b"")


def is_noted(draft: Draft, prefix: bytes) -> bool:
    """Whether all of a tenant is to be forgotten."""
    return draft.get(FAMILY, prefix + _TENANT) is not None


def noted(rocks: Rocks, limit: int) -> list[Note]:
    """The first `limit` notes, of all tenants. Raises Damaged."""
    found: list[Note] = []
    for prefix in _tenants(rocks):
        for kind in (_LOG, _TENANT):
            with contextlib.closing(rocks.scan(FAMILY, prefix + kind)) as entries:
                for key, value in entries:
                    found.append(_note(prefix, key, value))
                    if len(found) == limit:
                        return found
    return found


class Forgotten(Command):
    """The history has forgotten these. A note that says something else by now stays."""

    def __init__(self, notes: Sequence[Note]) -> None:
        self.weight = len(notes)
        self._notes = notes

    @classmethod
    def of(cls, notes: Sequence[Note]) -> Iterator[Forgotten]:
        """As many as it takes."""
        for begin in range(0, len(notes), _BATCH):
            yield cls(notes[begin : begin + _BATCH])

    def draft(self, draft: Draft) -> None:
        stored = draft.get_many(FAMILY, [note.key for note in self._notes])
        for note, value in zip(self._notes, stored, strict=True):
            if value == note.value:
                draft.delete(FAMILY, note.key)


def _tenants(rocks: Rocks) -> Iterator[bytes]:
    """The prefixes of the tenants that have state."""
    start: bytes | None = _FIRST_TENANT
    while start is not None:
        with contextlib.closing(rocks.scan(FAMILY, b"", start=start)) as found:
            key = next((key for key, _ in found), None)
        if key is None:
            return
        prefix = key[: 2 + int.from_bytes(key[:2], "big")]
        yield prefix
        start = keys.after(prefix)
        time.sleep(0)  # others may have the interpreter


def _note(prefix: bytes, key: bytes, value: bytes) -> Note:
    try:
        tenant = prefix[2:].decode()
        if key == prefix + _TENANT:
            return Note(key, value, tenant)
        rest = key[len(prefix) + len(_LOG) :]
        end = 2 + int.from_bytes(rest[:2], "big")
        log = log_name(rest[2:end].decode(), rest[end:].decode())
    except UnicodeDecodeError as error:
        raise Damaged("a note of what the history must forget is damaged: restore it from a backup.") from error
    return Note(key, value, tenant, log, int.from_bytes(value, "big"))

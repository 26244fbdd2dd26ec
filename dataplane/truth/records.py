"""The records in RocksDB: one byte of format version, then msgpack.

A record is an array of its fields in order. A newer release may add fields at the end, with defaults, and keep the
version: an older one ignores them. Any other change takes a new version, and `decode` then reads both. Pure.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from dataplane.errors import Damaged, UnsupportedFormat

VERSION = 1
Attributes = dict[str, str | float | bool | int]
R = TypeVar("R", bound=Struct)

_ENCODER = msgspec.msgpack.Encoder()


class RowRecord(Struct, frozen=True, array_like=True):
    """A row of a collection, without its vector. Times are milliseconds since 1970, UTC."""

    id: str
    text: str | None
    attributes: Attributes
    created_ms: int
    expires_ms: int | None = None


class CollectionRecord(Struct, frozen=True, array_like=True):
    """A collection. `number` is part of its keys and is never used again."""

    name: str
    number: int
    dimensions: int
    metric: str
    created_ms: int
    text: bool = True


class StateRecord(Struct, frozen=True, array_like=True):
    """A value under a name, with the version that a compare-and-swap names.

    Where `parts` is not 0, `value` is the token under which so many parts of the value lie.
    """

    version: int
    value: bytes
    updated_ms: int
    expires_ms: int | None = None
    parts: int = 0


class StreamRecord(Struct, frozen=True, array_like=True):
    """An event log: the number of its last event (0: none yet), and of the first that is kept.

    `token`: tells it from an earlier log of its name. Events up to `moving` may be in the history, those up to `moved` are in
    RocksDB no more.
    """

    last: int
    first: int = 1
    token: str = ""
    moving: int = 0
    moved: int = 0


class EventRecord(Struct, frozen=True, array_like=True):
    """One entry of an event log."""

    kind: str
    time_ms: int
    payload: bytes


def encode(record: Struct) -> bytes:
    """The bytes to store."""
    return bytes([VERSION]) + _ENCODER.encode(record)


def decode(type_: type[R], stored: bytes) -> R:
    """The record in `stored`. Raises UnsupportedFormat for a newer version, Damaged for bytes that are no record."""
    if not stored or stored[0] != VERSION:
        raise UnsupportedFormat(
            f"a {type_.__name__} has format {stored[0] if stored else 'none'}, and this release reads {VERSION}: "
            "start the release that wrote it."
        )
    try:
        return msgspec.msgpack.decode(memoryview(stored)[1:], type=type_)
    except msgspec.MsgspecError as error:
        raise Damaged(f"a {type_.__name__} cannot be read: {error}") from error

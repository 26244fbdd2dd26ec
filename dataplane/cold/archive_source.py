"""What the archive reads of the box: RocksDB in small steps, each for a thread of its own.

No step holds an iterator beyond its end, nor more than a few megabytes; each gives the interpreter away in between. So an
archive that runs for an hour blocks neither the loop nor the closing of the database. The price: each step sees the
database of its own moment. `archive.py` says why that is enough. Only `read_meta` sees all of its family at one moment.

Keys that begin with two zero bytes belong to no tenant, for no tenant's name is empty. They are the box's own (where its
archive stands, for one), and are not archived.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dataplane.cold.segments import Entry, Numbers, Row
from dataplane.errors import Damaged
from dataplane.truth import keys, records
from dataplane.truth.records import CollectionRecord, RowRecord
from dataplane.truth.rocks import Rocks

BOX = b"\x00\x00"
STEP = 256  # rows: about a millisecond of the interpreter's time
STEP_BYTES = 4 << 20
CHUNK_BYTES = 2 << 20  # what a range of keys has, on average
MAX_CHUNK_BYTES = 16 << 20
_FIRST_TENANT = b"\x00\x01"


class Source(NamedTuple):
    """A collection as it is on the box, up to sequence number `seq`."""

    tenant: str
    record: CollectionRecord
    seq: int

    @property
    def scope(self) -> bytes:
        """What its keys begin with."""
        return keys.scope(self.tenant, self.record.number)

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return 4 * self.record.dimensions


class Chunk(NamedTuple):
    """A range of one tenant's keys in a family. `content` is the SHA-256 of keys and values."""

    tenant: str
    entries: list[Entry]
    content: str


def tenant_of(key: bytes) -> str:
    """The tenant whose key it is. Raises Damaged for what is no key of ours."""
    length = int.from_bytes(key[:2], "big")
    try:
        if length and len(key) >= 2 + length:
            return key[2 : 2 + length].decode()
    except UnicodeDecodeError:
        pass
    raise Damaged(f"a key of the database begins with no tenant: {key[:40]!r}. Restore it from a backup or the bucket.")


def read_meta(rocks: Rocks) -> tuple[list[Entry], list[Source]]:
    """The family meta at one moment, and the collections that it has."""
    entries: list[Entry] = []
    with contextlib.closing(rocks.scan("meta", b"", start=_FIRST_TENANT)) as found:
        for step in _batched(found, STEP):
            entries += step
            time.sleep(0)  # others may have the interpreter
    stored = dict(entries)
    sources = []
    for key, value in entries:
        tenant = tenant_of(key)
        prefix = keys.tenant_prefix(tenant)
        if key.startswith(prefix + b"c"):
            record = records.decode(CollectionRecord, value)
            seq = stored.get(prefix + b"s" + keys.number(record.number), b"")
            sources.append(Source(tenant, record, int.from_bytes(seq, "big")))
    return entries, sources


def read_entries(rocks: Rocks, family: str, after: bytes | None) -> list[Entry]:
    """The next keys and values of a family after key `after`. Empty: there are no more."""
    start = _FIRST_TENANT if after is None else after + b"\x00"
    step: list[Entry] = []
    size = 0
    with contextlib.closing(rocks.scan(family, b"", start=start)) as found:
        for key, value in itertools.islice(found, STEP):
            step.append((key, value))
            size += len(key) + len(value)
            if size > STEP_BYTES:
                break
    return step


def read_rows(rocks: Rocks, source: Source, first: int) -> tuple[list[Row], int | None]:
    """The next live rows from number `first` on, up to the source's seq, and the number to go on from (None: done)."""
    scope = source.scope
    last = scope + keys.number(source.seq)
    found: list[Entry] = []
    size = 0
    with contextlib.closing(rocks.scan("rows", scope, start=keys.number(first))) as scan:
        for key, value in scan:
            if key > last:
                break
            found.append((key, value))
            size += len(value) + source.width
            if len(found) == STEP or size > STEP_BYTES:
                break
    vectors = rocks.get_many("vectors", [key for key, _ in found])
    rows = []
    for (key, value), vector in zip(found, vectors, strict=True):
        if vector is None:
            if rocks.get("rows", key) is None:
                continue  # deleted since the scan
            raise _damaged(source, key, "has no vector")
        if len(vector) != source.width:
            raise _damaged(source, key, f"has a vector of {len(vector)} bytes, not {source.width}")
        rows.append(Row(_number(key), records.decode(RowRecord, value), vector))
    return rows, _number(found[-1][0]) + 1 if found else None


def read_deletions(rocks: Rocks, source: Source, after: int) -> tuple[Numbers, Numbers]:
    """The next deletions after sequence number `after`, up to the source's: their seqs and row numbers. Empty: done."""
    last = source.scope + keys.number(source.seq)
    with contextlib.closing(rocks.scan("dead", source.scope, start=keys.number(after + 1))) as scan:
        step = list(itertools.takewhile(lambda pair: pair[0] <= last, itertools.islice(scan, 4 * STEP)))
    seqs = np.frombuffer(b"".join(key[-8:] for key, _ in step), dtype=">u8").astype(np.uint64)
    if any(len(value) < 8 for _, value in step):
        raise Damaged(f"a deletion in collection {source.record.name} is damaged. Restore the box from the bucket.")
    # What follows the number is the text that ended. It has no place in the archive.
    numbers = np.frombuffer(b"".join(value[:8] for _, value in step), dtype=">u8").astype(np.uint64)
    return seqs, numbers


class Chunker:
    """Cuts a family into ranges whose borders depend on the entries at the borders alone.

    An entry ends its range if a hash of its key is low, the more probably the larger it is; and so does a tenant's last. So
    an entry that comes, goes or changes changes its own range, or splits or joins two, and all others stay as they were.
    Only a range that would pass MAX_CHUNK_BYTES is cut anywhere; the next low hash is a border again, whatever came before.
    """

    def __init__(self, target: int = CHUNK_BYTES) -> None:
        self._target = target
        self._tenant: str | None = None
        self._prefix = b""
        self._begin()

    def add(self, entries: list[Entry]) -> Iterator[Chunk]:
        """Take entries in the order of their keys; give the ranges that end in them."""
        for key, value in entries:
            if self._tenant is None or not key.startswith(self._prefix):
                yield from self.end()
                self._tenant = tenant_of(key)
                self._prefix = keys.tenant_prefix(self._tenant)
            self._entries.append((key, value))
            self._digest.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(8, "big"))
            self._digest.update(value)
            size = len(key) + len(value)
            self._size += size
            if self._size > MAX_CHUNK_BYTES or zlib.crc32(key) * self._target < size << 32:
                yield from self.end()

    def end(self) -> Iterator[Chunk]:
        """Give the last range, if there is one."""
        if self._entries:
            assert self._tenant is not None
            yield Chunk(self._tenant, self._entries, self._digest.hexdigest())
            self._begin()

    def _begin(self) -> None:
        self._entries: list[Entry] = []
        self._digest = hashlib.sha256()
        self._size = 0


def _batched(found: Iterator[Entry], size: int) -> Iterator[list[Entry]]:
    while step := list(itertools.islice(found, size)):
        yield step


def _number(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def _damaged(source: Source, key: bytes, what: str) -> Damaged:
    return Damaged(
        f"row {_number(key)} of collection {source.record.name} {what}: run `acu data verify --repair`, or restore the "
        "box from the bucket."
    )

"""Boxes for tests of the archive: databases filled straight through batches, and what the archive must give back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dataplane.cold.bucket import Bucket
from dataplane.cold_config import ColdConfig
from dataplane.truth import keys, records
from dataplane.truth.records import CollectionRecord, EventRecord, RowRecord, StateRecord
from dataplane.truth.rocks import FAMILIES, Batch, Rocks

DIMENSIONS = 8
ARCHIVED = tuple(family for family in FAMILIES if family != "dead")


def open_box(path: Path) -> Rocks:
    """A database."""
    return Rocks.open(path, memory_bytes=16 << 20)


def local_bucket(folder: Path) -> Bucket:
    """A bucket in a folder."""
    return Bucket(ColdConfig(folder=str(folder)), folder)


class Tenant:
    """Writes one tenant's data, in the layout that the data plane has."""

    def __init__(self, rocks: Rocks, name: str) -> None:
        self.rocks = rocks
        self.name = name
        self.prefix = keys.tenant_prefix(name)
        self._seqs: dict[int, int] = {}
        self._random = np.random.default_rng(len(name))

    def create(self, name: str, number: int) -> None:
        """A collection."""
        batch = self.rocks.batch()
        record = CollectionRecord(name, number, DIMENSIONS, "cosine", 1_000)
        batch.put("meta", self.prefix + b"c" + keys.name(name), records.encode(record))
        batch.put("meta", self.prefix + b"n", keys.number(number + 1))
        self.rocks.write(batch)

    def drop(self, name: str, number: int) -> None:
        """Delete a collection."""
        batch = self.rocks.batch()
        batch.delete("meta", self.prefix + b"c" + keys.name(name))
        batch.delete("meta", self.prefix + b"s" + keys.number(number))
        for family in ("rows", "vectors", "index", "dead"):
            batch.delete_prefix(family, keys.scope(self.name, number))
        self.rocks.write(batch)

    def upsert(self, number: int, ids: Iterable[str], text: str = "text of") -> None:
        """Insert rows, or replace them."""
        scope = keys.scope(self.name, number)
        batch = self.rocks.batch()
        seq = self._seqs.get(number, 0)
        for id_ in ids:
            seq += 1
            index, key = scope + keys.name(id_), scope + keys.number(seq)
            self._end(batch, scope, seq, self.rocks.get("index", index))
            full = None if id_.endswith("7") else "" if id_.endswith("8") else f"{text} {id_} 上海"
            expires = 2_000_000 + seq if seq % 3 == 0 else None
            record = RowRecord(id_, full, {"n": seq, "x": 1.0, "b": True, "s": id_}, 1_000 + seq, expires)
            batch.put("rows", key, records.encode(record))
            batch.put("vectors", key, self._random.standard_normal(DIMENSIONS).astype("<f4").tobytes())
            batch.put("index", index, keys.number(seq))
        self._write(batch, number, seq)

    def delete(self, number: int, ids: Iterable[str]) -> None:
        """Delete rows, which are there."""
        scope = keys.scope(self.name, number)
        batch = self.rocks.batch()
        seq = self._seqs[number]
        for id_ in ids:
            seq += 1
            self._end(batch, scope, seq, self.rocks.get("index", scope + keys.name(id_)))
            batch.delete("index", scope + keys.name(id_))
        self._write(batch, number, seq)

    def put_state(self, name: str, value: bytes) -> None:
        """A record of the state."""
        batch = self.rocks.batch()
        batch.put("state", self.prefix + keys.name(name), records.encode(StateRecord(1, value, 1_000)))
        self.rocks.write(batch)

    def put_events(self, stream: str, first: int, count: int) -> None:
        """Entries of an event log."""
        batch = self.rocks.batch()
        for at in range(first, first + count):
            key = self.prefix + keys.counted_name(stream, "stream") + keys.number(at)
            batch.put("events", key, records.encode(EventRecord("note", at, b"payload %d" % at)))
        self.rocks.write(batch)

    def drop_all(self) -> None:
        """Delete everything of the tenant."""
        batch = self.rocks.batch()
        for family in FAMILIES:
            batch.delete_prefix(family, self.prefix)
        self.rocks.write(batch)

    def _end(self, batch: Batch, scope: bytes, seq: int, old: bytes | None) -> None:
        if old is not None:
            batch.delete("rows", scope + old)
            batch.delete("vectors", scope + old)
            batch.put("dead", scope + keys.number(seq), old + b"the text that ended")

    def _write(self, batch: Batch, number: int, seq: int) -> None:
        self._seqs[number] = seq
        batch.put("meta", self.prefix + b"s" + keys.number(number), keys.number(seq))
        self.rocks.write(batch)


def ids(first: int, count: int) -> list[str]:
    """Row ids."""
    return [f"row-{number:05}" for number in range(first, first + count)]


def fill(rocks: Rocks, rows: int = 2_000) -> tuple[Tenant, Tenant]:
    """Two tenants with rows, replaced and deleted rows, state and events."""
    alice, bob = Tenant(rocks, "alice"), Tenant(rocks, "bob")
    alice.create("notes", 1)
    alice.create("empty", 2)
    bob.create("notes", 1)
    for start in range(0, rows, 250):
        alice.upsert(1, ids(start, 250))
    bob.upsert(1, ids(0, 200), "bob says")
    alice.upsert(1, ids(10, 50), "second text of")
    alice.delete(1, ids(100, 50))
    for tenant in (alice, bob):
        for number in range(60):
            tenant.put_state(f"session-{number}", bytes([number]) * 500)
        tenant.put_events("run-1", 1, 300)
    return alice, bob


def content(rocks: Rocks) -> dict[str, dict[bytes, bytes]]:
    """All that the archive must give back: every family but `dead`, without what is the box's own."""
    return {family: dict(rocks.scan(family, b"", start=b"\x00\x01")) for family in ARCHIVED}

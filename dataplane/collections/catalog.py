"""The catalogue of collections: which each tenant has, and the numbers that stand for them in keys.

In the family `meta`, after the tenant:

    "c" + name      CollectionRecord
    "n"             the next collection's number: numbers are never used again. The first is the time of day in seconds, so
                    that those of a tenant that was erased do not come again either
    "s" + number    the collection's last sequence number
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dataplane.collections.collection import Collection
from dataplane.errors import AlreadyExists, Conflict, NotFound
from dataplane.rows import CollectionSpec
from dataplane.truth import keys, records
from dataplane.truth.records import CollectionRecord
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import Command, Draft

ROW_FAMILIES = ("rows", "vectors", "index", "dead")


def stored_collections(rocks: Rocks) -> Iterator[tuple[str, CollectionRecord]]:
    """Every tenant's collections."""
    for key, value in rocks.scan("meta", b""):
        length = int.from_bytes(key[:2], "big")
        if key[2 + length : 3 + length] == b"c":
            yield key[2 : 2 + length].decode(), records.decode(CollectionRecord, value)


class Create(Command):
    """Make a collection. Result: its record."""

    alone = True

    def __init__(self, tenant: str, name: str, spec: CollectionSpec, now_ms: int) -> None:
        self._tenant = keys.tenant_prefix(tenant)
        self._name = name
        self._key = self._tenant + b"c" + keys.name(name, "name")
        self._spec = spec
        self._now_ms = now_ms

    def draft(self, draft: Draft) -> CollectionRecord:
        if draft.get("meta", self._key) is not None:
            raise AlreadyExists(f"there is a collection {self._name!r} already.")
        stored = draft.get("meta", self._tenant + b"n")
        number = self._now_ms // 1000 if stored is None else int.from_bytes(stored, "big")
        record = CollectionRecord(
            self._name, number, self._spec.dimensions, self._spec.metric, self._now_ms, self._spec.text
        )
        draft.put("meta", self._key, records.encode(record))
        draft.put("meta", self._tenant + b"n", keys.number(number + 1))
        return record


class Drop(Command):
    """Delete a collection with all its rows."""

    alone = True

    def __init__(self, tenant: str, collection: Collection) -> None:
        self._collection = collection
        self._key = keys.tenant_prefix(tenant) + b"c" + keys.name(collection.name, "name")

    def draft(self, draft: Draft) -> None:
        if self._collection.dropped:
            raise NotFound(f"the collection {self._collection.name!r} has been deleted.")
        draft.delete("meta", self._key)
        draft.delete("meta", self._collection.seq_key)
        for family in ROW_FAMILIES:
            draft.delete_prefix(family, self._collection.scope)

    def publish(self, others: Sequence[Command] = ()) -> None:
        self._collection.dropped = True


class ForgetTenant(Command):
    """Remove what is left of a tenant whose collections are dropped: its names and numbers, and what no name leads to."""

    alone = True

    def __init__(self, tenant: str) -> None:
        self._tenant = keys.tenant_prefix(tenant)

    def draft(self, draft: Draft) -> None:
        if draft.has_prefix("meta", self._tenant + b"c"):
            raise Conflict("the tenant has made a collection meanwhile: take its keys away, and erase it again.")
        for family in ("meta", *ROW_FAMILIES):
            draft.delete_prefix(family, self._tenant)

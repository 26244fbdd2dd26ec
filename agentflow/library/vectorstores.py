"""Vector stores: what may be asked of them, and the records that say what is to do. Their files are storefiles.py's.

A store expires `expires_after_days` after its last use. It then tells so, and lets go of its rows; it cannot be used again,
only read and deleted. The time of the last use is exact in memory and stored every ACTIVE_STEP_S and at the end, so that a
search is not a write: after a crash a store may expire by so much too early.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from agentflow.errors import InvalidRequest
from agentflow.library.config import LibraryConfig
from agentflow.library.embedderid import EmbedderId
from agentflow.library.ids import Ids
from agentflow.library.paging import paged
from agentflow.library.planeerrors import translated
from agentflow.library.records import EntryRecord, StoreRecord
from agentflow.library.refusals import QuotaExceeded, StoreExpired
from agentflow.library.shelf import Shelves, StoreShelf
from agentflow.library.values import (
    FileCounts,
    NewStore,
    Page,
    PageRequest,
    StoreChanges,
    StoreStatus,
    VectorStore,
)
from agentflow.library.workers import Workers

ACTIVE_STEP_S: Final = 600
DAY_MS: Final = 86_400_000
_MOST_PAIRS, _MOST_KEY, _MOST_VALUE, _MOST_NAME = 16, 64, 512, 256


class VectorStores:
    """Reads and changes stores. Whoever calls what changes something runs it to its end (shelf.Changes)."""

    def __init__(self, shelves: Shelves, workers: Workers, ids: Ids, config: LibraryConfig) -> None:
        self._shelves = shelves
        self._workers = workers
        self._ids = ids
        self._config = config
        self._making: Counter[str] = Counter()  # by tenant: stores whose records are being stored
        self._used: dict[str, int] = {}  # by store id: the last use, where it is later than the record's

    # Stores

    async def create(self, tenant: str, new: NewStore, embedder: EmbedderId) -> VectorStore:
        """Make an empty store. See Library.create_store."""
        _check_days(new.expires_after_days)
        _check_name(new.name)
        if len(self._shelves.of(tenant).stores) + self._making[tenant] >= self._config.max_tenant_stores:
            raise QuotaExceeded(
                f"You have {self._config.max_tenant_stores:,} vector stores, which is the most: delete some."
            )
        store_id, now = self._ids.new("vs_")
        record = StoreRecord(
            id=store_id,
            name=new.name,
            created_ms=now,
            embedder=embedder.model,
            fingerprint=embedder.fingerprint,
            last_active_ms=now,
            metadata=_checked_metadata(new.metadata),
            expires_after_days=new.expires_after_days,
        )
        self._making[tenant] += 1
        try:
            with translated():
                shelf = await self._shelves.made(tenant)
                await shelf.put_store(record)
        finally:
            self._making[tenant] -= 1
        return self.told(tenant, store_id)

    def told(self, tenant: str, store_id: str) -> VectorStore:
        """Raises NotStored."""
        return self._told(tenant, self._shelves.of(tenant).store(store_id))

    def page(self, tenant: str, request: PageRequest) -> Page[VectorStore]:
        """See Library.stores."""
        stores = (store for store in self._shelves.of(tenant).stores.values() if store.record.due != "remove")
        page = paged(stores, lambda store: store.record.id, request)
        there = self._workers.collections(tenant)
        return Page(tuple(self._told(tenant, store, there) for store in page.data), page.has_more)

    async def update(self, tenant: str, store_id: str, changes: StoreChanges) -> VectorStore:
        """See Library.update_store."""
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        async with store.lock:
            record = shelf.store(store_id).record
            if changes.name is not UNSET:
                _check_name(changes.name)
                record = replace(record, name=changes.name)
            if changes.metadata is not UNSET:
                record = replace(record, metadata=_checked_metadata(changes.metadata))
            if changes.expires_after_days is not UNSET:
                _check_days(changes.expires_after_days)
                self.check_live(store)
                record = replace(record, expires_after_days=changes.expires_after_days)
            with translated():
                await shelf.put_store(replace(record, last_active_ms=self._last_used(store)))
        return self._told(tenant, store)

    async def delete(self, tenant: str, store_id: str) -> None:
        """Hide a store, and let a worker remove it. Raises NotStored."""
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        async with store.lock:
            record = shelf.store(store_id).record
            with translated():
                await shelf.put_store(replace(record, due="remove"))
        self._used.pop(store_id, None)
        self._workers.look(tenant, store_id, "")

    def usable(self, tenant: str, store_id: str, embedder: EmbedderId) -> StoreShelf:
        """A store to fill or to search. Raises NotStored, StoreExpired, EmbedderChanged."""
        store = self._shelves.of(tenant).store(store_id)
        self.check_live(store)
        store.record.made_with.check(embedder, store_id)
        return store

    async def touch(self, tenant: str, store_id: str, fingerprint: str = "") -> None:
        """A store was used, and is of the model with this fingerprint. Written now and then, and where that was not known."""
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        self._used[store_id] = now = _now_ms()
        known = store.record.fingerprint or not fingerprint
        if known and now - store.record.last_active_ms < ACTIVE_STEP_S * 1000:
            return
        async with store.lock:
            record = shelf.store(store_id).record
            with translated():
                await shelf.put_store(
                    replace(record, last_active_ms=now, fingerprint=record.fingerprint or fingerprint)
                )

    async def remember(self) -> None:
        """Store the last uses that are not stored yet."""
        for shelf in self._shelves.all():
            for store in list(shelf.stores.values()):
                async with store.lock:
                    used = self._last_used(store)
                    if store.record.due != "remove" and used > store.record.last_active_ms:
                        with translated():
                            await shelf.put_store(replace(store.record, last_active_ms=used))

    def expired(self) -> list[tuple[str, str]]:
        """Tenants and ids of stores that have expired and still have rows."""
        return [
            (shelf.tenant, store.record.id)
            for shelf in self._shelves.all()
            for store in shelf.stores.values()
            if not store.record.expired and not store.record.due and self._is_expired(store)
        ]

    async def expire(self, tenant: str, store_id: str) -> None:
        """Let a worker remove the rows of a store that has expired."""
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        async with store.lock:
            if store.record.due or store.record.expired or not self._is_expired(store):
                return
            with translated():
                await shelf.put_store(replace(store.record, due="expire", last_active_ms=self._last_used(store)))
        self._workers.look(tenant, store_id, "")

    # What a store is like

    def _told(self, tenant: str, store: StoreShelf, there: Container[str] | None = None) -> VectorStore:
        lost = self._workers.erased(tenant, store, there)
        record, counts, days = store.record, counts_without(store.counts(), lost), store.record.expires_after_days
        used = self._last_used(store)
        running: StoreStatus = "in_progress" if counts.in_progress else "completed"
        return VectorStore(
            id=record.id,
            name=record.name,
            created_at=record.created_ms // 1000,
            metadata=record.metadata,
            file_counts=counts,
            usage_bytes=0 if lost else store.usage_bytes,
            status="expired" if self._is_expired(store) else running,
            last_active_at=used // 1000,
            expires_after_days=days,
            expires_at=None if days is None else (used + days * DAY_MS) // 1000,
            embedder=record.embedder,
        )

    def _last_used(self, store: StoreShelf) -> int:
        return max(store.record.last_active_ms, self._used.get(store.record.id, 0))

    def _is_expired(self, store: StoreShelf) -> bool:
        record = store.record
        if record.expired or record.due == "expire":
            return True
        days = record.expires_after_days
        return days is not None and self._last_used(store) + days * DAY_MS <= _now_ms()

    def check_live(self, store: StoreShelf) -> None:
        """Raises StoreExpired."""
        if self._is_expired(store):
            raise StoreExpired(
                f"Vector store {store.record.id!r} has expired, and its contents are gone: make a new one, and attach "
                "the files to it."
            )


def counts_without(counts: FileCounts, lost: Sequence[EntryRecord]) -> FileCounts:
    """What is counted where these entries' rows were erased (Workers.erased)."""
    failed = sum(entry.status == "failed" for entry in lost)
    return replace(counts, completed=counts.completed - failed, failed=counts.failed + failed) if failed else counts


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _check_days(days: int | None) -> None:
    if days is not None and not 1 <= days <= 365:
        raise InvalidRequest(f"days must be from 1 to 365, not {days}.", param="expires_after.days")


def _check_name(name: str | None) -> None:
    if name is not None and (len(name) > _MOST_NAME or not _is_storable(name)):
        raise InvalidRequest(f"The name must be valid Unicode of at most {_MOST_NAME} characters.", param="name")


def _checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    pairs = dict(metadata or {})
    if len(pairs) > _MOST_PAIRS:
        raise InvalidRequest(f"metadata may have {_MOST_PAIRS} pairs, not {len(pairs)}.", param="metadata")
    for key, value in pairs.items():
        if len(key) > _MOST_KEY or len(value) > _MOST_VALUE or not _is_storable(key + value):
            raise InvalidRequest(
                f"A key of metadata may have {_MOST_KEY} characters, and its value {_MOST_VALUE}.", param="metadata"
            )
    return pairs


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""A tenant's records in memory, and the one way in which they change: first durably in the state store, then here.

So what is read here is what is stored, and no read waits for the disk. It takes less than a kilobyte for each file and for
each file in a store, which is less than the data plane's own table takes for the file's chunks; quotas bound it.

Ordering. Whoever changes a store's entries, or the store, holds `StoreShelf.lock` from reading the old record to the end of the
change. A change is never cut off in the middle (`Changes`), or memory and disk would differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, TypeVar

from agentflow.library.extraction import shown
from agentflow.library.records import HOUSE, BatchRecord, EntryRecord, FileRecord, Records, StoreRecord
from agentflow.library.refusals import DataUnavailable, NotStored
from agentflow.library.values import FileCounts

T = TypeVar("T")
ERASING_S = 5.0
"""When to come again to a tenant that is being erased."""

_log = logging.getLogger(__name__)


class StoreShelf:
    """A vector store: its record, its entries by file id, oldest first, its batches by id, and their counts."""

    def __init__(self, record: StoreRecord) -> None:
        self.record = record
        self.entries: dict[str, EntryRecord] = {}
        self.batches: dict[str, BatchRecord] = {}
        self.lock = asyncio.Lock()
        self.usage_bytes = 0
        self._counts: Counter[tuple[str | None, str]] = Counter()

    def counts(self, batch_id: str | None = None) -> FileCounts:
        """How many entries are in which state, of a batch or of all."""
        found = {status: self._counts[batch_id, status] for status in FileCounts.__struct_fields__}
        return FileCounts(**found)

    def entry(self, file_id: str) -> EntryRecord:
        """Raises NotStored, also for an entry that is being removed."""
        entry = self.entries.get(file_id)
        if entry is None or entry.due == "remove":
            raise NotStored(
                f"No file with id {shown(file_id)!r} is in vector store {self.record.id!r}.", param="file_id"
            )
        return entry

    def batch(self, batch_id: str) -> BatchRecord:
        """Raises NotStored."""
        try:
            return self.batches[batch_id]
        except KeyError:
            message = f"There is no file batch {shown(batch_id)!r} in vector store {self.record.id!r}."
            raise NotStored(message, param="batch_id") from None

    def set_entry(self, entry: EntryRecord) -> None:
        """Take what has been stored."""
        self._count(self.entries.get(entry.file_id), -1)
        self.entries[entry.file_id] = entry
        self._count(entry, 1)

    def drop_entry(self, file_id: str) -> None:
        """Forget what has been removed."""
        self._count(self.entries.pop(file_id, None), -1)

    def _count(self, entry: EntryRecord | None, by: int) -> None:
        if entry is None or entry.due == "remove":
            return
        self.usage_bytes += by * entry.usage_bytes
        self._counts[None, entry.status] += by
        if entry.batch_id is not None:
            self._counts[entry.batch_id, entry.status] += by


class Shelf:
    """What one tenant has: files and stores by id, oldest first."""

    def __init__(self, tenant: str, records: Records) -> None:
        self.tenant = tenant
        self.files: dict[str, FileRecord] = {}
        self.stores: dict[str, StoreShelf] = {}
        self.bytes = 0
        self._records = records

    async def load(self) -> None:
        """Read everything. Raises DataDamaged and the data plane's errors."""
        for _, file in await self._records.all(self.tenant, "file", FileRecord):
            self._take_file(file)
        for _, store in await self._records.all(self.tenant, "store", StoreRecord):
            self.stores[store.id] = StoreShelf(store)
        entries = await self._records.all(self.tenant, "store_file", EntryRecord)
        for name, entry in sorted(entries, key=lambda pair: pair[1].place):
            if (shelf := self.stores.get(name.partition("/")[0])) is not None:
                shelf.set_entry(entry)
        for name, batch in await self._records.all(self.tenant, "batch", BatchRecord):
            if (shelf := self.stores.get(name.partition("/")[0])) is not None:
                shelf.batches[batch.id] = batch

    @property
    def entries(self) -> int:
        """Files in stores, over all stores."""
        return sum(len(store.entries) for store in self.stores.values())

    def store(self, store_id: str) -> StoreShelf:
        """Raises NotStored, also for a store that is being removed."""
        shelf = self.stores.get(store_id)
        if shelf is None or shelf.record.due == "remove":
            raise NotStored(f"There is no vector store with id {shown(store_id)!r}.", param="vector_store_id")
        return shelf

    async def put_file(self, file: FileRecord) -> None:
        """Store a file's record."""
        await self._records.put(self.tenant, "file", file.id, file)
        self._take_file(file)

    async def has_file(self, file_id: str) -> bool:
        """Whether a file's record is stored, also one that `put_file` failed to make durable and that is not here."""
        return await self._records.has(self.tenant, "file", file_id)

    async def delete_file(self, file_id: str) -> None:
        """Remove a file's record."""
        await self._records.delete(self.tenant, "file", file_id)
        if (file := self.files.pop(file_id, None)) is not None:
            self.bytes -= file.bytes

    async def put_store(self, record: StoreRecord) -> None:
        """Store a vector store's record. The lock of one that is there must be held."""
        await self._records.put(self.tenant, "store", record.id, record)
        if (shelf := self.stores.get(record.id)) is None:
            _insert(self.stores, record.id, StoreShelf(record))
        else:
            shelf.record = record

    async def put_entries(self, store_id: str, entries: list[EntryRecord]) -> None:
        """Store entries at once. If one fails, the others are stored all the same. The store's lock must be held."""
        shelf = self.stores[store_id]
        puts = (self._records.put(self.tenant, "store_file", f"{store_id}/{entry.file_id}", entry) for entry in entries)
        done = await asyncio.gather(*puts, return_exceptions=True)
        for entry, error in zip(entries, done, strict=True):
            if error is None:
                shelf.set_entry(entry)
        for error in done:
            if error is not None:
                raise error

    async def delete_entry(self, store_id: str, file_id: str) -> None:
        """Remove an entry. The store's lock must be held."""
        await self._records.delete(self.tenant, "store_file", f"{store_id}/{file_id}")
        self.stores[store_id].drop_entry(file_id)

    async def put_batch(self, store_id: str, batch: BatchRecord) -> None:
        """Store a batch's record. The store's lock must be held."""
        await self._records.put(self.tenant, "batch", f"{store_id}/{batch.id}", batch)
        self.stores[store_id].batches[batch.id] = batch

    async def delete_store(self, store_id: str) -> None:
        """Remove a store's records, its own last: a crash between leaves one that is due to be removed."""
        shelf = self.stores[store_id]
        for file_id in list(shelf.entries):
            await self.delete_entry(store_id, file_id)
        for batch_id in list(shelf.batches):
            await self._records.delete(self.tenant, "batch", f"{store_id}/{batch_id}")
            del shelf.batches[batch_id]
        await self._records.delete(self.tenant, "store", store_id)
        del self.stores[store_id]

    def _take_file(self, file: FileRecord) -> None:
        _insert(self.files, file.id, file)
        self.bytes += file.bytes


class Shelves:
    """The shelves of all tenants."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._shelves: dict[str, Shelf] = {}
        self._closed: set[str] = set()  # tenants that are being erased

    async def load(self) -> None:
        """Read what every tenant has."""
        for tenant in await self._records.tenants():
            shelf = self._shelves[tenant] = Shelf(tenant, self._records)
            await shelf.load()

    def of(self, tenant: str) -> Shelf:
        """A tenant's shelf; an empty one, of which nothing is kept, for one that is new."""
        return self._shelves.get(tenant) or Shelf(tenant, self._records)

    async def made(self, tenant: str) -> Shelf:
        """A tenant's shelf, to put something on it. Raises DataUnavailable inside `closed`."""
        if tenant in self._closed:
            raise DataUnavailable(
                "What this tenant has is being erased, so nothing new is stored for it: come again.",
                retry_after_s=ERASING_S,
            )
        shelf = self._shelves.setdefault(tenant, Shelf(tenant, self._records))
        if not await self._records.has(HOUSE, "tenant", tenant):  # it is new, or was erased
            await self._records.put(HOUSE, "tenant", tenant, None)
        return shelf

    @contextmanager
    def closed(self, tenant: str) -> Iterator[None]:
        """Inside it no new file and no new store of this tenant is stored, but for those of changes that run already."""
        self._closed.add(tenant)
        try:
            yield
        finally:
            self._closed.discard(tenant)

    def all(self) -> list[Shelf]:
        """Of everybody."""
        return list(self._shelves.values())


def _insert(members: dict[str, T], id_: str, member: T) -> None:
    """Add a member in the order of ids. It may be a little late: another's record was stored sooner."""
    late = bool(members) and id_ < next(reversed(members))
    members[id_] = member
    if late:
        ordered = sorted(members.items(), key=itemgetter(0))
        members.clear()
        members.update(ordered)


class Changes:
    """Runs each change to its end, also when its caller leaves in the middle."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, change: Coroutine[Any, Any, T]) -> T:
        """What `change` returns or raises. Cancelling this does not cancel it."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for those that run."""
        if self._running:
            await asyncio.wait(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # marked as seen: the caller may have left
            _log.debug("a change failed", extra={"why": str(error)})

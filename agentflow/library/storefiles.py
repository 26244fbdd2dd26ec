"""The files of vector stores: attached, listed, changed, detached, one by one and in batches.

Nothing is done to a row here. The entry's record says what is due, and a worker does it (workers.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from agentflow.errors import InvalidRequest
from agentflow.library.config import LibraryConfig
from agentflow.library.embedderid import EmbedderId
from agentflow.library.filestore import FileStore
from agentflow.library.ids import Ids
from agentflow.library.paging import paged
from agentflow.library.planeerrors import translated
from agentflow.library.records import BatchRecord, EntryRecord
from agentflow.library.refusals import NotStored, QuotaExceeded
from agentflow.library.shelf import Shelf, Shelves, StoreShelf
from agentflow.library.values import Attachment, BatchStatus, FileBatch, FileStatus, Page, PageRequest, StoreFile
from agentflow.library.vectorstores import VectorStores, counts_without
from agentflow.library.workers import Workers
from dataplane import check_attributes

MOST_AT_ONCE: Final = 500
"""Files that one request may attach."""
STORES_A_FILE: Final = 10
"""In so many stores may a tenant's files be each, on average, if it has all the files that it may have."""


class StoreFiles:
    """Reads and changes entries. Whoever calls what changes something runs it to its end (shelf.Changes)."""

    def __init__(
        self, shelves: Shelves, files: FileStore, stores: VectorStores, workers: Workers, config: LibraryConfig
    ) -> None:
        self._shelves = shelves
        self._files = files
        self._stores = stores
        self._workers = workers
        self._config = config
        self._ids = Ids()

    def check(self, tenant: str, attachments: Sequence[Attachment], place: str) -> None:
        """Raises what `attach` raises for these, but for what lies in the store."""
        self._checked(self._shelves.of(tenant), {}, attachments, place)

    async def attach(
        self, tenant: str, store_id: str, attachments: Sequence[Attachment], place: str, embedder: EmbedderId
    ) -> None:
        """Begin to put files in. `place` is where number {} of them stands in the caller's request."""
        self._stores.usable(tenant, store_id, embedder)
        await self._attach(tenant, store_id, attachments, place, None)

    async def _attach(
        self, tenant: str, store_id: str, attachments: Sequence[Attachment], place: str, batch: BatchRecord | None
    ) -> None:
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        async with store.lock:
            shelf.store(store_id)
            self._stores.check_live(store)
            entries = self._checked(shelf, store.entries, attachments, place)
            self._check_entries(shelf, store, sum(entry.file_id not in store.entries for entry in entries))
            with translated():
                if batch is not None:
                    await shelf.put_batch(store_id, batch)
                    entries = [replace(entry, batch_id=batch.id) for entry in entries]
                try:
                    await shelf.put_entries(store_id, entries)
                finally:
                    for entry in entries:
                        self._workers.look(tenant, store_id, entry.file_id)
        await self._stores.touch(tenant, store_id)

    def _checked(
        self, shelf: Shelf, there: Mapping[str, EntryRecord], attachments: Sequence[Attachment], place: str
    ) -> list[EntryRecord]:
        """The new entries; `there` has those that are in the store. Of two for the same file the later counts."""
        if len(attachments) > MOST_AT_ONCE:
            raise InvalidRequest(
                f"{len(attachments)} files are too many for one request; {MOST_AT_ONCE} are the most.",
                param=place.partition("[")[0],
            )
        entries: dict[str, EntryRecord] = {}
        for number, one in enumerate(attachments):
            at = place.format(number)
            try:
                self._files.file(shelf.tenant, one.file_id)
            except NotStored as error:
                param = at if place.startswith("file_ids") else f"{at}.file_id".lstrip(".")
                raise NotStored(str(error), param=param) from error
            with translated():
                attributes = check_attributes(one.attributes, param=f"{at}.attributes".lstrip("."))
            serial, now = self._ids.new("")
            old = there.get(one.file_id)
            entries[one.file_id] = EntryRecord(
                file_id=one.file_id,
                created_ms=now if old is None else old.created_ms,
                serial=serial,
                place=serial if old is None else old.place,
                attributes=attributes,
                chunking=one.chunking,
            )
        return list(entries.values())

    def _check_entries(self, shelf: Shelf, store: StoreShelf, new: int) -> None:
        if new and len(store.entries) + new > self._config.max_store_files:
            raise QuotaExceeded(
                f"A vector store may have {self._config.max_store_files:,} files; this one has {len(store.entries):,}, "
                f"and {new:,} more do not fit: use another one.",
                param="vector_store_id",
            )
        most = STORES_A_FILE * self._config.max_tenant_files
        if new and shelf.entries + new > most:
            raise QuotaExceeded(f"Your vector stores have {shelf.entries:,} files, {most:,} are the most: delete some.")

    def entry(self, tenant: str, store_id: str, file_id: str) -> StoreFile:
        """Raises NotStored."""
        store = self._shelves.of(tenant).store(store_id)
        entry = store.entry(file_id)
        lost = {one.file_id: one for one in self._workers.erased(tenant, store)}
        return _told_entry(store_id, lost.get(file_id, entry))

    def entries(
        self, tenant: str, store_id: str, request: PageRequest, status: FileStatus | None, batch_id: str | None = None
    ) -> Page[StoreFile]:
        """See Library.store_files and Library.batch_files."""
        store = self._shelves.of(tenant).store(store_id)
        if batch_id is not None:
            batch = store.batch(batch_id)
            members = [store.entries[file_id] for file_id in batch.file_ids if file_id in store.entries]
            found = [entry for entry in members if entry.batch_id == batch_id]
        else:
            found = list(store.entries.values())
        lost = {one.file_id: one for one in self._workers.erased(tenant, store)}
        found = [lost.get(entry.file_id, entry) for entry in found]
        shown = (entry for entry in found if entry.due != "remove" and status in (None, entry.status))
        page = paged(shown, lambda entry: entry.file_id, request)
        return Page(tuple(_told_entry(store_id, entry) for entry in page.data), page.has_more)

    async def set_attributes(self, tenant: str, store_id: str, file_id: str, attributes: object) -> None:
        """Set a file's attributes; a worker then rewrites its rows. Raises InvalidRequest, NotStored."""
        with translated():
            checked = check_attributes(attributes)
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        async with store.lock:
            entry = shelf.store(store_id).entry(file_id)
            if entry.attributes == checked:
                return
            due = "rewrite" if entry.status == "completed" and not store.record.expired else entry.due
            with translated():
                await shelf.put_entries(store_id, [replace(entry, attributes=checked, due=due)])
        if due == "rewrite":
            self._workers.look(tenant, store_id, file_id)

    async def detach(self, tenant: str, store_id: str, file_id: str) -> None:
        """Hide a file, and let a worker remove its rows. Raises NotStored."""
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        async with store.lock:
            entry = shelf.store(store_id).entry(file_id)
            with translated():
                await shelf.put_entries(store_id, [replace(entry, due="remove")])
        self._workers.look(tenant, store_id, file_id)

    async def detach_everywhere(self, tenant: str, file_id: str) -> list[str]:
        """Detach a file, whose record is gone, from every store. Returns their ids.

        Each store's lock is waited for, because whoever has it may just be putting that file in.
        """
        shelf = self._shelves.of(tenant)
        held: list[str] = []
        for store_id, store in list(shelf.stores.items()):
            async with store.lock:
                entry = store.entries.get(file_id)
                if entry is None or store.record.due == "remove" or store_id not in shelf.stores:
                    continue
                if entry.due != "remove":
                    with translated():
                        await shelf.put_entries(store_id, [replace(entry, due="remove")])
            held.append(store_id)
            self._workers.look(tenant, store_id, file_id)
        return held

    # Batches

    async def create_batch(
        self, tenant: str, store_id: str, attachments: Sequence[Attachment], place: str, embedder: EmbedderId
    ) -> FileBatch:
        """See Library.create_batch."""
        if not attachments:
            raise InvalidRequest("A batch has at least one file.", param=place.partition("[")[0])
        self._stores.usable(tenant, store_id, embedder)
        batch_id, now = self._ids.new("vsfb_")
        file_ids = tuple(dict.fromkeys(one.file_id for one in attachments))
        await self._attach(
            tenant, store_id, attachments, place, BatchRecord(id=batch_id, created_ms=now, file_ids=file_ids)
        )
        return self.batch(tenant, store_id, batch_id)

    def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Raises NotStored."""
        store = self._shelves.of(tenant).store(store_id)
        lost = [entry for entry in self._workers.erased(tenant, store) if entry.batch_id == batch_id]
        record, counts = store.batch(batch_id), counts_without(store.counts(batch_id), lost)
        running: BatchStatus = "in_progress" if counts.in_progress else "completed"
        return FileBatch(
            id=batch_id,
            vector_store_id=store_id,
            created_at=record.created_ms // 1000,
            status="cancelled" if record.cancelled else running,
            file_counts=counts,
        )

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """See Library.cancel_batch. One that has ended stays as it is."""
        shelf = self._shelves.of(tenant)
        store = shelf.store(store_id)
        async with store.lock:
            batch = shelf.store(store_id).batch(batch_id)
            members = [store.entries[file_id] for file_id in batch.file_ids if file_id in store.entries]
            running = [one for one in members if one.batch_id == batch_id and one.due == "ingest"]
            if running:
                with translated():
                    await shelf.put_batch(store_id, replace(batch, cancelled=True))
                    stopped = [replace(entry, status="cancelled", due="clear") for entry in running]
                    await shelf.put_entries(store_id, stopped)
        for entry in running:
            self._workers.look(tenant, store_id, entry.file_id)
        return self.batch(tenant, store_id, batch_id)


def _told_entry(store_id: str, entry: EntryRecord) -> StoreFile:
    return StoreFile(
        id=entry.file_id,
        vector_store_id=store_id,
        created_at=entry.created_ms // 1000,
        status=entry.status,
        last_error=entry.error,
        usage_bytes=entry.usage_bytes,
        attributes=entry.attributes,
        chunking=entry.chunking,
    )

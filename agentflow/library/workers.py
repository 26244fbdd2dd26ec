"""The library's background work: files are put into stores, rows are removed or get other attributes.

What is to do stands in the records (`due`), so nothing is kept here. A worker takes a key off the list, does what is due for it,
writes that it is done, and looks again until nothing is due:

    ingest    the file's rows are made: completed or failed
    rewrite   the rows get the entry's attributes
    clear     the rows of a file that failed or was cancelled are removed
    remove    the rows are removed, then the entry; of a store its rows, entries, batches, then itself
    expire    all rows of a store are removed

Somebody may erase a store's collection behind the library's back (erased.py). Its files are then told as failed, which is
written before the collection is made anew for another file.

Crash behaviour. Each step can be done again from its beginning. The record that says that it is done is durable, and with it
every row before it, since all go through one log.

What a request changes meanwhile breaks off the step, and the worker looks again. A step writes its end only if the entry is
still the one it began with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from agentflow.errors import AgentFlowError, InvalidRequest
from agentflow.library.chunkrows import ChunkRows
from agentflow.library.config import LibraryConfig
from agentflow.library.embedder import Embedder
from agentflow.library.erased import count_anew, without_rows
from agentflow.library.errors import FileRefused, UnsupportedFile
from agentflow.library.extraction import Extractor
from agentflow.library.filestore import FileStore
from agentflow.library.ingest import Filled, Ingest, Source
from agentflow.library.patience import patiently
from agentflow.library.planeerrors import translated
from agentflow.library.records import EntryRecord
from agentflow.library.shelf import Changes, Shelves, StoreShelf
from agentflow.library.values import FileError
from agentflow.library.worklist import Key, Lane, Worklist
from dataplane import DataPlane

_log = logging.getLogger(__name__)


class _Work(NamedTuple):
    """What a step is done on."""

    tenant: str
    store: StoreShelf
    entry: EntryRecord
    rows: ChunkRows


class Workers:
    """Does what is due, from `start` to `stop`."""

    def __init__(self, plane: DataPlane, shelves: Shelves, files: FileStore, changes: Changes) -> None:
        self._plane = plane
        self._shelves = shelves
        self._files = files
        self._changes = changes
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="chunks")
        self._ingest: Ingest | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._slots = 1
        self.worklist = Worklist(self._most_slots)

    def start(self, tasks: asyncio.TaskGroup, embedder: Embedder, extractor: Extractor, config: LibraryConfig) -> None:
        """Begin with what is due, in `tasks`."""
        self._ingest = Ingest(embedder, extractor, config.embed_batch, self._threads)
        self._slots = config.ingest_files
        for shelf in self._shelves.all():
            for store in shelf.stores.values():
                self.look(shelf.tenant, store.record.id, "")
                for file_id in store.entries:
                    self.look(shelf.tenant, store.record.id, file_id)
        self._tasks = [tasks.create_task(self._serve("slow")) for _ in range(config.ingest_files)]
        self._tasks.append(tasks.create_task(self._serve("quick")))

    async def stop(self) -> None:
        """Break off what is being done: the next start takes it up again."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def look(self, tenant: str, store_id: str, file_id: str) -> Key:
        """Let a worker look at a file in a store ("": at the store itself), if something is due. Returns its key."""
        key = (tenant, store_id, file_id)
        if due := self._due(key):
            self.worklist.put(key, "slow" if due == "ingest" else "quick")
        return key

    async def settled(self, *keys: Key) -> None:
        """Wait until nothing is being done or to do for these."""
        await self.worklist.settled(*keys)

    def collections(self, tenant: str) -> Container[str]:
        """The ids of stores that have rows, or had some."""
        return self._plane.collections(tenant)

    def erased(self, tenant: str, store: StoreShelf, there: Container[str] | None = None) -> list[EntryRecord]:
        """The entries whose rows somebody erased with the store's collection, as they are to be told: failed.

        `there`: what `collections` gives, for whoever asks for many stores.
        """
        record = store.record
        if not store.usage_bytes or record.due or record.expired:
            return []
        if record.id in (self.collections(tenant) if there is None else there):
            return []
        return [without_rows(entry) for entry in store.entries.values() if entry.usage_bytes and entry.due != "remove"]

    def _most_slots(self) -> int:
        """How many files of one tenant are put in at a time: all but one, which is kept for whoever comes next.

        All where nobody else has ever stored anything. Where there is one slot it is anybody's, and what a file may cost
        (ExtractionLimits) bounds how long the others wait for it.
        """
        return self._slots if len(self._shelves.all()) < 2 else max(1, self._slots - 1)

    def _due(self, key: Key) -> str:
        tenant, store_id, file_id = key
        store = self._shelves.of(tenant).stores.get(store_id)
        if store is None:
            return ""
        if not file_id or store.record.due:  # a store that goes takes its files with it
            return "" if file_id else store.record.due
        entry = store.entries.get(file_id)
        return "" if entry is None else entry.due

    async def _serve(self, lane: Lane) -> None:
        while True:
            key = await self.worklist.take(lane)
            try:
                await self._work(key)
            except Exception as error:  # noqa: BLE001 - trouble with one file must not end the work on others
                _log.exception(
                    "work on a vector store is given up until the next start",
                    extra={"store": key[1], "file": key[2], "due": self._due(key), "why": str(error)},
                )
            finally:
                await self.worklist.done(key)

    async def _work(self, key: Key) -> None:
        tenant, store_id, file_id = key
        while (store := self._shelves.of(tenant).stores.get(store_id)) is not None:
            async with store.lock:  # what is being written decides what is due
                due = self._due(key)
            if not due:
                return
            async with self.worklist.step(key):
                if file_id:
                    rows = ChunkRows(self._plane, tenant, store, self._changes)
                    await self._file_step(due, _Work(tenant, store, store.entries[file_id], rows))
                else:
                    await patiently(partial(self._store_step, tenant, store))

    # A file in a store

    async def _file_step(self, due: str, work: _Work) -> None:
        entry = work.entry
        if due == "ingest":
            await self._end(work, await self._ingested(work))
        elif due == "rewrite":
            erased = await patiently(partial(work.rows.set_attributes, entry.file_id, entry.attributes, entry.rows))
            if erased:  # whoever erased them may have counted while they were there again
                await patiently(lambda: self._changes.run(self._count_anew(work, erased)))
            await self._end(work, replace(entry, due=""))
        else:
            await patiently(partial(work.rows.cut, entry.file_id, 0, entry.rows))
            await self._end(work, None if due == "remove" else replace(entry, due=""))

    async def _ingested(self, work: _Work) -> EntryRecord:
        """The entry as it is after its file was put in, or could not be."""
        try:
            filled = await self._filled(work)
        except UnsupportedFile as error:
            return _failed(work.entry, FileError("unsupported_file", str(error)))
        except FileRefused as error:
            return _failed(work.entry, FileError("invalid_file", str(error)))
        except (AgentFlowError, OSError) as error:
            _log.warning(
                "a file could not be put into a vector store",
                extra={"store": work.store.record.id, "file": work.entry.file_id, "why": str(error)},
            )
            return _failed(work.entry, FileError("server_error", str(error)))
        except Exception:  # noqa: BLE001 - as above
            _log.exception("a file was not put into a vector store", extra={"file": work.entry.file_id})
            return _failed(work.entry, FileError("server_error", "the server failed; its log has the details."))
        return replace(
            work.entry, status="completed", due="", rows=filled.rows, usage_bytes=filled.usage_bytes, error=None
        )

    async def _filled(self, work: _Work) -> Filled:
        assert self._ingest is not None, "the workers were not started"
        file = self._shelves.of(work.tenant).files.get(work.entry.file_id)
        if file is None:
            raise InvalidRequest("the file was deleted.")
        work.store.record.made_with.check(
            self._ingest.embedder.id, work.store.record.id
        )  # it waited for another model's start
        await self._files.check(work.tenant, file)  # before its reader, which would call damage the file's own fault
        path = self._files.path(work.tenant, file.id)
        await patiently(lambda: self._changes.run(self._write_erased(work.tenant, work.store)))
        return await self._ingest.fill(Source(work.tenant, path, file.filename), work.entry, work.rows)

    async def _count_anew(self, work: _Work, row_ids: list[str]) -> None:
        shelf = self._shelves.of(work.tenant)
        await count_anew(self._plane, shelf, self._changes, work.store.record.id, row_ids)

    async def _write_erased(self, tenant: str, store: StoreShelf) -> None:
        async with store.lock:
            if lost := self.erased(tenant, store):
                with translated():
                    await self._shelves.of(tenant).put_entries(store.record.id, lost)

    async def _end(self, work: _Work, ended: EntryRecord | None) -> None:
        """Write how a step ended (None: the entry goes), unless it was for an entry that has become another one.

        Attributes that were changed while the rows were made are still due. Of an entry that was rewritten only that ends:
        its usage may have been counted anew meanwhile.
        """
        began, store_id = work.entry, work.store.record.id

        async def write() -> None:
            shelf = self._shelves.of(work.tenant)
            async with work.store.lock:
                entry = work.store.entries.get(began.file_id)
                if entry is None or (entry.serial, entry.due) != (began.serial, began.due):
                    return
                told = replace(entry, due="") if began.due == "rewrite" else ended
                if told is None:
                    await shelf.delete_entry(store_id, began.file_id)
                elif entry.attributes == began.attributes:
                    await shelf.put_entries(store_id, [told])
                elif told.status == "completed":
                    changed = replace(told, attributes=entry.attributes, due="rewrite")
                    await shelf.put_entries(store_id, [changed])
                else:
                    await shelf.put_entries(store_id, [replace(told, attributes=entry.attributes)])

        await patiently(lambda: self._changes.run(write()))

    # A store

    async def _store_step(self, tenant: str, store: StoreShelf) -> None:
        await self.worklist.settled(*self.worklist.break_off(tenant, store.record.id))
        await self._changes.run(self._end_store(tenant, store))

    async def _end_store(self, tenant: str, store: StoreShelf) -> None:
        """Remove a store's rows, and write that they are gone. Nothing is due for its files any more."""
        shelf = self._shelves.of(tenant)
        async with store.lock:
            await ChunkRows(self._plane, tenant, store, self._changes).drop()
            if store.record.due == "remove":
                await shelf.delete_store(store.record.id)
                return
            entries = list(store.entries.values())
            idle = [_expired(entry) for entry in entries if entry.due != "remove"]
            await shelf.put_entries(store.record.id, idle)
            for entry in entries:
                if entry.due == "remove":
                    await shelf.delete_entry(store.record.id, entry.file_id)
            await shelf.put_store(replace(store.record, due="", expired=True))


def _failed(entry: EntryRecord, error: FileError) -> EntryRecord:
    return replace(entry, status="failed", due="clear", error=error, rows=0, usage_bytes=0)


def _expired(entry: EntryRecord) -> EntryRecord:
    """An entry of a store that expired."""
    status = "cancelled" if entry.status == "in_progress" else entry.status
    return replace(entry, status=status, due="", rows=0, usage_bytes=0)

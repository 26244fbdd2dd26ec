"""The library: files, and the vector stores that they are put into. The only door to both.

    filestore.py     uploaded files: bytes in a folder, records
    vectorstores.py  stores;  storefiles.py: the files in them, and batches
    workers.py       what is due is done in the background: ingest.py, and the rows of chunkrows.py
    searching.py     queries
    shelf.py         all records in memory, and how they change;  records.py: how they are stored

All methods are for one event loop. Each takes the tenant first, sees nothing of another, and raises errors of
`agentflow.errors`' tree only (`agentflow.library.errors`, `agentflow.library.refusals`). What a method that changes
something returned is durable, and it is done whole if its caller leaves. What is left of it to the workers is waited for, but no
longer than SETTLED_S: they may have to wait for room on the disk, which the caller may be just about to make.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from agentflow.errors import AgentFlowError, InvalidRequest
from agentflow.library.chunkrows import ChunkRows
from agentflow.library.config import LibraryConfig
from agentflow.library.embedder import Embedder
from agentflow.library.erased import count_anew
from agentflow.library.extraction import Extractor
from agentflow.library.filestore import FileStore, damaged, listed
from agentflow.library.ids import Ids
from agentflow.library.planeerrors import translated
from agentflow.library.records import Records
from agentflow.library.refusals import DataDamaged, DataUnavailable, NotStored
from agentflow.library.searching import search
from agentflow.library.shelf import Changes, Shelves
from agentflow.library.storefiles import StoreFiles
from agentflow.library.values import (
    Attachment,
    Content,
    FileBatch,
    FileObject,
    FileStatus,
    NewStore,
    Page,
    PageRequest,
    SearchHit,
    SearchRequest,
    StoreChanges,
    StoreFile,
    VectorStore,
)
from agentflow.library.vectorstores import VectorStores
from agentflow.library.workers import Workers
from agentflow.library.worklist import Key
from dataplane import DataPlane, StateStore

SWEEP_S: Final = 60.0
SETTLED_S: Final = 10.0
"""So long does a call wait for the workers. What it asked for is promised by then (`due`), and done behind it."""
MOST_CONTENT: Final = 1_000
"""Chunks in one part of a file's content."""

_log = logging.getLogger(__name__)


class Library:
    """Files and vector stores. Made by `open`; `start` begins the background work; `close` is the end."""

    def __init__(
        self,
        plane: DataPlane,
        shelves: Shelves,
        folder: Path,
        embedder: Embedder,
        extractor: Extractor,
        config: LibraryConfig,
    ) -> None:
        """Use `open`."""
        self._plane = plane
        self._shelves = shelves
        self._embedder = embedder
        self._extractor = extractor
        self._config = config
        self._changes = Changes()
        self._sweeper: asyncio.Task[None] | None = None
        self._orphans: set[tuple[str, str]] = set()  # deleted files that are still to be taken out of stores
        ids = Ids()
        self._files = FileStore(folder, shelves, ids, config)
        self._workers = Workers(plane, shelves, self._files, self._changes)
        self._stores = VectorStores(shelves, self._workers, ids, config)
        self._entries = StoreFiles(shelves, self._files, self._stores, self._workers, config)

    @classmethod
    async def open(
        cls,
        plane: DataPlane,
        state: StateStore,
        folder: Path,
        embedder: Embedder,
        extractor: Extractor,
        config: LibraryConfig | None = None,
    ) -> Library:
        """Read what is stored, and remove what a crash left of uploads. Raises DataUnavailable, DataDamaged, DiskFull."""
        shelves = Shelves(Records(state))
        with translated():
            await shelves.load()
        library = cls(plane, shelves, folder, embedder, extractor, config or LibraryConfig())
        await library._files.prepare()
        if folder == plane.folder / "library":  # where the data plane archives files
            plane.cold.uploads = partial(listed, state)
        return library

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin the background work in `tasks`: what was not finished is taken up again."""
        self._orphans = self._found_orphans()
        await self._detach_orphans()
        self._workers.start(tasks, self._embedder, self._extractor, self._config)
        self._sweeper = tasks.create_task(self._sweep_for_ever())

    async def close(self) -> None:
        """Break off the background work, and wait for the changes that run. Before the extractor and the data plane close."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        await self._workers.stop()
        await self._changes.close()
        try:
            await self._stores.remember()
        except Exception as error:  # noqa: BLE001 - of a full disk, mostly; what follows must be closed all the same
            _log.warning("vector stores count as used some minutes earlier", extra={"why": str(error)})

    @property
    def max_file_bytes(self) -> int:
        """The largest file that may be uploaded."""
        return self._files.max_bytes

    @property
    def backlog(self) -> int:
        """Files in stores, and stores, for which there is something to do."""
        return self._workers.worklist.waiting + self._workers.worklist.active

    # Files

    def new_upload(self, tenant: str) -> Path:
        """Where to write a file that is being uploaded (it is not there yet). Raises QuotaExceeded.

        Give it to `create_file`, or unlink it. The next start removes what is left.
        """
        return self._files.new_upload(tenant)

    async def create_file(
        self, tenant: str, upload: Path, filename: str, purpose: str, expires_after_s: int | None = None
    ) -> FileObject:
        """Keep an uploaded file, which is moved away. `filename` is a label only: folders in it are cut off.

        On an error the upload is unlinked. Raises InvalidRequest (params file, purpose, expires_after.seconds),
        FileTooLarge, QuotaExceeded, DiskFull.
        """
        return await self._changes.run(self._files.keep(tenant, upload, filename, purpose, expires_after_s))

    async def file(self, tenant: str, file_id: str) -> FileObject:
        """Raises NotStored."""
        return self._files.told(tenant, file_id)

    async def files(self, tenant: str, page: PageRequest, purpose: str | None = None) -> Page[FileObject]:
        """A part of the tenant's files. Limits 1 to 10,000. Raises InvalidRequest, NotStored for an unknown `after`."""
        return self._files.page(tenant, page, purpose)

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Remove a file, also from every vector store that has it. Raises NotStored."""
        stores = await self._changes.run(self._delete_file(tenant, file_id))
        await self._settled(*((tenant, store_id, file_id) for store_id in stores))

    async def _delete_file(self, tenant: str, file_id: str) -> list[str]:
        """The stores that had it."""
        await self._files.delete(tenant, file_id)
        self._orphans.add((tenant, file_id))
        try:
            return await self._detach_orphan(tenant, file_id)
        except DataUnavailable as error:  # the file is gone, whatever happens: the next sweep goes on
            _log.warning("not taken out of stores yet", extra={"tenant": tenant, "id": file_id, "why": str(error)})
            return []

    def file_path(self, tenant: str, file_id: str) -> Path:
        """Where the bytes of a file lie, to be read by who looks whether they are what was uploaded. Raises NotStored."""
        return self._files.path(tenant, self._files.file(tenant, file_id).id)

    def file_sha256(self, tenant: str, file_id: str) -> str | None:
        """What the bytes of a file must have; None: a record of an earlier release. Raises NotStored."""
        return self._files.file(tenant, file_id).sha256

    def damaged(self, file_id: str, what: str) -> DataDamaged:
        """The error for a file that cannot be given as it was uploaded."""
        return damaged(file_id, what)

    # Vector stores

    async def create_store(self, tenant: str, new: NewStore) -> VectorStore:
        """Make a vector store, and begin to put files into it.

        Raises InvalidRequest (params name, metadata, expires_after.days, file_ids), NotStored (file_ids[3]), QuotaExceeded.
        """
        return await self._changes.run(self._create_store(tenant, new))

    async def _create_store(self, tenant: str, new: NewStore) -> VectorStore:
        attachments = [Attachment(file_id=file_id, chunking=new.chunking) for file_id in new.file_ids]
        place = "file_ids[{}]"
        self._entries.check(tenant, attachments, place)
        store = await self._stores.create(tenant, new, self._embedder.id)
        if attachments:
            await self._entries.attach(tenant, store.id, attachments, place, self._embedder.id)
        return self._stores.told(tenant, store.id)

    async def store(self, tenant: str, store_id: str) -> VectorStore:
        """Raises NotStored."""
        return self._stores.told(tenant, store_id)

    async def stores(self, tenant: str, page: PageRequest) -> Page[VectorStore]:
        """A part of the tenant's vector stores. Limits 1 to 100. Raises InvalidRequest, NotStored."""
        return self._stores.page(tenant, page)

    async def update_store(self, tenant: str, store_id: str, changes: StoreChanges) -> VectorStore:
        """Change a vector store. Raises InvalidRequest, NotStored; StoreExpired for another expiry."""
        return await self._changes.run(self._stores.update(tenant, store_id, changes))

    async def delete_store(self, tenant: str, store_id: str) -> None:
        """Remove a vector store with everything that was made of its files; they stay. Raises NotStored."""
        await self._changes.run(self._stores.delete(tenant, store_id))
        await self._settled((tenant, store_id, ""))

    # Files of a vector store

    async def attach(self, tenant: str, store_id: str, attachment: Attachment) -> StoreFile:
        """Begin to put a file into a store, anew if it is there.

        Raises InvalidRequest (params file_id, attributes...), NotStored, StoreExpired, EmbedderChanged, QuotaExceeded.
        """
        attaching = self._entries.attach(tenant, store_id, [attachment], "", self._embedder.id)
        await self._changes.run(attaching)
        return self._entries.entry(tenant, store_id, attachment.file_id)

    async def store_file(self, tenant: str, store_id: str, file_id: str) -> StoreFile:
        """Raises NotStored."""
        return self._entries.entry(tenant, store_id, file_id)

    async def store_files(
        self, tenant: str, store_id: str, page: PageRequest, status: FileStatus | None = None
    ) -> Page[StoreFile]:
        """A part of a store's files, maybe only those of a status. Limits 1 to 100. Raises InvalidRequest, NotStored."""
        return self._entries.entries(tenant, store_id, page, status)

    async def update_attributes(self, tenant: str, store_id: str, file_id: str, attributes: object) -> StoreFile:
        """Set the attributes of a file in a store (decoded JSON); filters see them on return, or on a full disk later.

        Of a file that is being put in, they are set when it is in. Raises InvalidRequest, NotStored.
        """
        await self._changes.run(self._entries.set_attributes(tenant, store_id, file_id, attributes))
        if self._entries.entry(tenant, store_id, file_id).status != "in_progress":
            await self._settled((tenant, store_id, file_id))
        return self._entries.entry(tenant, store_id, file_id)

    async def detach(self, tenant: str, store_id: str, file_id: str) -> None:
        """Take a file out of a store; the file stays. Raises NotStored."""
        await self._changes.run(self._entries.detach(tenant, store_id, file_id))
        await self._settled((tenant, store_id, file_id))

    async def content(self, tenant: str, store_id: str, file_id: str, start: int = 0, limit: int = 256) -> Content:
        """A part of a file's chunks in a store, from number `start` on, 1 to 1,000. Raises InvalidRequest, NotStored."""
        if not 1 <= limit <= MOST_CONTENT:
            raise InvalidRequest(f"limit must be from 1 to {MOST_CONTENT}, not {limit}.", param="limit")
        if not 0 <= start < 1 << 32:
            raise InvalidRequest("A page of content is named by a number.", param="page")
        store = self._shelves.of(tenant).store(store_id)
        entry, end = store.entry(file_id), start + limit
        rows = await ChunkRows(self._plane, tenant, store, self._changes).read(file_id, start, limit + 1)
        beyond = bool(rows) and rows[-1].id == f"{file_id}#{end}"
        texts = tuple(row.text or "" for row in (rows[:-1] if beyond else rows))
        return Content(texts, end if beyond or end < entry.rows else None)

    async def count_anew(self, tenant: str, store_id: str, row_ids: Iterable[str]) -> list[str]:
        """Tell of a store's files what is left after these rows were erased. See erased.py. Raises DataUnavailable."""
        counting = count_anew(self._plane, self._shelves.of(tenant), self._changes, store_id, row_ids)
        return await self._changes.run(counting)

    @contextlib.asynccontextmanager
    async def closed(self, tenant: str) -> AsyncIterator[None]:
        """Inside it nothing new is stored for a tenant: its uploads and new stores are refused with DataUnavailable.

        Nothing that was begun before is still on its way, so whoever erases the tenant takes no bytes from under a record.
        """
        with self._shelves.closed(tenant):
            await self._changes.close()
            yield

    # File batches

    async def create_batch(self, tenant: str, store_id: str, attachments: tuple[Attachment, ...]) -> FileBatch:
        """Begin to put 1 to 500 files into a store; all are checked before. Raises as `attach`, with params `files[3]...`."""
        making = self._entries.create_batch(tenant, store_id, attachments, "files[{}]", self._embedder.id)
        return await self._changes.run(making)

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Raises NotStored."""
        return self._entries.batch(tenant, store_id, batch_id)

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Stop putting in those files of a batch that are not in yet. One that has ended stays as it is. Raises NotStored."""
        return await self._changes.run(self._entries.cancel_batch(tenant, store_id, batch_id))

    async def batch_files(
        self, tenant: str, store_id: str, batch_id: str, page: PageRequest, status: FileStatus | None = None
    ) -> Page[StoreFile]:
        """A part of a batch's files. Raises as `store_files` does."""
        return self._entries.entries(tenant, store_id, page, status, batch_id)

    # Searching

    async def search(self, tenant: str, store_id: str, request: SearchRequest) -> tuple[SearchHit, ...]:
        """The best chunks of a store for a query, best first; for several, those that are best for any.

        Raises InvalidRequest (params query, filters..., max_num_results, ranking_options.score_threshold), NotStored,
        StoreExpired, EmbedderChanged, Refused, EngineFailure.
        """
        store = self._stores.usable(tenant, store_id, self._embedder.id)
        hits = await search(self._plane, self._embedder, self._shelves.of(tenant), store, request)
        with contextlib.suppress(NotStored, DataUnavailable):  # reads go on while the disk is full
            await self._changes.run(self._stores.touch(tenant, store_id, self._embedder.id.fingerprint))
        return hits

    # Care

    async def sweep(self) -> None:
        """Remove files that have expired, and the rows of vector stores that have. Called by itself every minute.

        Each by itself, so that one which cannot be removed keeps no other; it is logged, and tried again by the next sweep.
        """
        await self._detach_orphans()
        for tenant, file_id in self._files.expired():
            await self._attempt(self._delete_file(tenant, file_id), tenant, file_id)
        for tenant, store_id in self._stores.expired():
            await self._attempt(self._stores.expire(tenant, store_id), tenant, store_id)

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await self.sweep()
            except Exception:  # noqa: BLE001 - a defect there must not end the library
                _log.exception("what has expired was not removed, and is tried again")
            await asyncio.sleep(SWEEP_S)

    async def _attempt(self, change: Coroutine[Any, Any, object], tenant: str, id_: str) -> None:
        """Make a change for which nobody asks; what fails is logged."""
        try:
            await self._changes.run(change)
        except NotStored:  # somebody else was faster
            return
        except AgentFlowError as error:
            _log.warning("not removed yet", extra={"tenant": tenant, "id": id_, "why": str(error)})
        except Exception:  # noqa: BLE001 - a defect with one must not keep the others
            _log.exception("not removed yet, for a defect", extra={"tenant": tenant, "id": id_})

    async def _settled(self, *keys: Key) -> None:
        """Wait until the workers have done what is due for these, SETTLED_S at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_S):
                await self._workers.settled(*keys)

    def _found_orphans(self) -> set[tuple[str, str]]:
        """Files in stores whose deletion a crash cut off."""
        return {
            (shelf.tenant, file_id)
            for shelf in self._shelves.all()
            for store in shelf.stores.values()
            for file_id in store.entries.keys() - shelf.files.keys()
        }

    async def _detach_orphans(self) -> None:
        for tenant, file_id in tuple(self._orphans):
            await self._attempt(self._detach_orphan(tenant, file_id), tenant, file_id)

    async def _detach_orphan(self, tenant: str, file_id: str) -> list[str]:
        stores = await self._entries.detach_everywhere(tenant, file_id)
        self._orphans.discard((tenant, file_id))
        return stores

"""DataPlane: the only door. Opens everything in order, and closes it in the opposite one.

    <path>/rocks/                      RocksDB, the truth
    <path>/history/                    log shards: events that were old enough to leave RocksDB (from the first one on)
    <path>/reserve                     space with which it opens on a full disk
    <path>/derived/<tenant>-<number>/  of each collection: graph snapshot, warm shards, full text; can all be removed

Open: RocksDB (which locks the folder), collections from it, writer, keeper, indexer, archive, mover. Close: no new commands,
archive and mover stop, the ring is written and synced, keeper and indexer end, each graph gets a snapshot, files are closed.

All methods are for one event loop, and none holds it up: rows are prepared in the caller's turn (a few microseconds each),
everything else happens in the writer's, the keeper's and the searching threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from dataplane import clock
from dataplane.cold.tier import ColdTier
from dataplane.collections import loading, searching
from dataplane.collections.catalog import Create, Drop, stored_collections
from dataplane.collections.collection import Collection
from dataplane.collections.commands import Delete, Upsert
from dataplane.collections.derived import Derived
from dataplane.collections.finds import Finds
from dataplane.collections.rowcodec import row_batch, stored_ids, stored_rows
from dataplane.config import DataPlaneConfig
from dataplane.errors import Closed, Damaged, DataPlaneError, InvalidInput, NotFound, Unavailable
from dataplane.files import storage_errors
from dataplane.gauges import Gauges
from dataplane.memory import collections_share, memory_bytes, rocks_share
from dataplane.planestatus import PlaneStatus, SearchCounts, state_status
from dataplane.rows import CollectionSpec, Location, Row, SearchQuery, SearchResult, StoredRow
from dataplane.state.mover import Mover
from dataplane.state.oldevents import OldEvents
from dataplane.state.store import StateStore
from dataplane.state.sweeper import Sweeper
from dataplane.threads import share_cores
from dataplane.tiering.keeper import Keeper
from dataplane.truth import keys
from dataplane.truth.records import CollectionRecord
from dataplane.truth.reserve import Lender, Reserve
from dataplane.truth.rocks import Rocks
from dataplane.truth.writer import BATCH_ROWS, Command, Wait, Writer
from dataplane.words.indexer import Indexer, TextFeed

SETTLE_POLL_S = 0.02
T = TypeVar("T")

_log = logging.getLogger(__name__)


class DataPlane:
    """Made by `open`, on the event loop that uses it."""

    def __init__(self, folder: Path, rocks: Rocks, config: DataPlaneConfig, memory_bytes: int) -> None:
        """Use `open`."""
        self.folder = folder
        self.rocks = rocks
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._memory_bytes = memory_bytes
        self._derived = Derived(folder / "derived")
        self._collections: dict[tuple[str, str], Collection] = {}
        self.writer = Writer(rocks, config.ring_rows)
        self.old_events = OldEvents(folder / "history")
        self.state = StateStore(rocks, self.writer, old=self.old_events)
        self.mover = Mover(rocks, self.writer, self.old_events, config)
        self.keeper = Keeper(self.open_collections, self._submit_from_thread, collections_share(memory_bytes))
        self.indexer = Indexer(self._feeds)
        self.cold = ColdTier(rocks, config.cold, folder, config.archive_every_s, self.open_collections)
        self._sweeper = Sweeper(self.state)
        self.gauges = Gauges(self.open_collections, self.writer.look)
        self._searches = SearchCounts()
        self._finds = Finds(self.writer)
        self._pool = ThreadPoolExecutor(config.search_threads, "dataplane-search", share_cores)
        self._unfinished: set[asyncio.Task[None]] = set()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, config: DataPlaneConfig, folder: Path | None = None) -> DataPlane:
        """Open the data plane in `folder` (default: `config.path`, which must be a path), or make it.

        Raises Locked, Damaged, StorageFull, Unavailable.
        """
        path = Path(config.path) if folder is None else folder
        memory = memory_bytes(config)
        reserve = Reserve(path / "reserve", rocks_share(memory))
        needed = await asyncio.to_thread(reserve.give_up)
        rocks = await asyncio.to_thread(_open_rocks, path, memory)
        plane = cls(path, rocks, config, memory)
        try:
            await asyncio.to_thread(plane._load)
        except BaseException:
            await asyncio.to_thread(plane._let_go)
            raise
        finally:
            await asyncio.to_thread(reserve.take_back if needed else reserve.top_up)
        plane.state.lender = Lender(reserve)
        plane.writer.start()
        plane.keeper.start()
        plane.indexer.start()
        plane.cold.start()
        plane._sweeper.start()
        plane.mover.start()
        plane.gauges.start()
        return plane

    def _load(self) -> None:
        self.cold.load()
        for tenant, record in list(stored_collections(self.rocks)):
            collection = self._derived.load(partial(self._made, tenant, record))
            self._collections[tenant, record.name] = collection
        self._derived.remove_stray({collection.folder.name for collection in self._collections.values()})
        self.old_events.open()

    def _made(self, tenant: str, record: CollectionRecord) -> Collection:
        folder = self._derived.folder_of(tenant, record.number)
        return Collection(self.rocks, tenant, record, folder, self.indexer.wake, self.keeper.memory)

    def open_collections(self) -> list[Collection]:
        """All tenants' collections, for what takes care of them."""
        return list(self._collections.values())

    def _feeds(self) -> list[TextFeed]:
        return [collection.text for collection in self.open_collections() if collection.text is not None]

    async def close(self) -> None:
        """Write what was put in, and close everything. Idempotent; a caller that is cancelled may call again and wait."""
        if self._closing is None:
            self._closed = True
            self._closing = self._loop.create_task(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        if self._unfinished:
            await asyncio.wait(self._unfinished)
        await self.cold.stop()
        await self._sweeper.stop()
        await self.mover.stop()
        await self.gauges.stop()
        await self.writer.close()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.keeper.stop()
        self.indexer.stop()
        self._pool.shutdown(wait=True)  # before the snapshots: searches end
        for collection in self.open_collections():
            if collection.graph is not None and not collection.dropped:
                with contextlib.suppress(DataPlaneError):  # a full disk: the next start builds the graph anew
                    self.keeper.moves.save_snapshot(collection)
        self._let_go()

    def _let_go(self) -> None:
        """Close all files."""
        self._pool.shutdown(wait=True)
        for collection in self.open_collections():
            collection.close()
        self.old_events.close()
        try:
            self.rocks.close()
        except Unavailable as error:  # it is closed all the same, and the next start reads the log
            _log.error("the log could not be synced while closing", extra={"why": str(error)})
        except Damaged as error:  # the same
            self.writer.damaged(error)
        except DataPlaneError as error:  # the same
            _log.error("the database did not close in order", extra={"why": str(error)})

    # Collections

    async def create_collection(self, tenant: str, name: str, spec: CollectionSpec) -> None:
        """Make a collection. Raises AlreadyExists, InvalidInput."""
        self._check_open()
        await self._whole(self._create(tenant, name, spec))

    async def _create(self, tenant: str, name: str, spec: CollectionSpec) -> None:
        record = await self.writer.submit(Create(tenant, name, spec, clock.now_ms()), "durable")
        collection = self._made(tenant, record)
        try:
            await asyncio.to_thread(loading.load, collection)
            if collection.text is not None and collection.text.unopened is not None:
                raise collection.text.unopened
        except DataPlaneError:  # its files cannot be made: nothing of it is to stay
            await self.writer.submit(Drop(tenant, collection), "durable")
            raise
        self._collections[tenant, name] = collection

    async def drop_collection(self, tenant: str, name: str) -> None:
        """Delete a collection with all its rows, on every tier of this box. Raises NotFound."""
        await self._whole(self._drop(tenant, self._collection(tenant, name)))

    async def _drop(self, tenant: str, collection: Collection) -> None:
        await self.writer.submit(Drop(tenant, collection), "durable")
        self._collections.pop((tenant, collection.name), None)
        await asyncio.to_thread(self._remove, collection)

    async def _whole(self, work: Coroutine[None, None, None]) -> None:
        """Do work to its end, even if the caller is cancelled in the middle; closing waits for it."""
        task = self._loop.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._unfinished.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # the caller, if it still waits, has it too
            _log.debug("a collection could not be made or dropped: %s", error)

    def _remove(self, collection: Collection) -> None:
        collection.readers.wait_for_earlier()
        with self.keeper.held():  # it may be writing a file of it
            self.keeper.forget(collection)
            collection.close()
            shutil.rmtree(collection.folder, ignore_errors=True)

    def collections(self, tenant: str) -> dict[str, CollectionSpec]:
        """The tenant's collections, by name."""
        return {
            name: CollectionSpec(dimensions=found.dimensions, metric=found.metric, text=found.record.text)
            for (owner, name), found in self._collections.items()
            if owner == tenant
        }

    # Rows

    async def upsert(self, tenant: str, name: str, rows: Sequence[Row], wait: Wait = "visible") -> int:
        """Store rows; one with an id that is there replaces it. Returns how many were new (0 with wait="nothing").

        Up to 128 rows are stored together or not at all; more are stored in such parts, in order, and an error says
        nothing of the parts before it. Raises InvalidInput, NotFound, StorageFull, Closed, Unavailable.
        """
        collection = self._collection(tenant, name)
        now = clock.now_ms()
        parts = [row_batch(collection, rows[at : at + BATCH_ROWS], at, now) for at in range(0, len(rows), BATCH_ROWS)]
        new = 0
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            new += await self.writer.submit(Upsert(collection, part, now), wait if last else _before(wait)) or 0
        return new

    async def delete(self, tenant: str, name: str, ids: Sequence[str], wait: Wait = "visible") -> int:
        """Delete rows by id. Returns how many there were (0 with wait="nothing")."""
        collection = self._collection(tenant, name)
        distinct = list(dict.fromkeys(ids))
        parts = [distinct[at : at + BATCH_ROWS] for at in range(0, len(distinct), BATCH_ROWS)]
        gone = 0
        for number, part in enumerate(parts):
            for id_ in part:
                keys.name(id_)
            last = number == len(parts) - 1
            gone += (
                await self.writer.submit(Delete(collection, part, clock.now_ms()), wait if last else _before(wait)) or 0
            )
        return gone

    async def get(self, tenant: str, name: str, ids: Sequence[str], *, vectors: bool = False) -> list[StoredRow | None]:
        """Rows by id, in the order of `ids`; None for those that are not there. Sees every write put in before."""
        collection = self._collection(tenant, name)
        wanted = [collection.scope + keys.name(id_) for id_ in ids]
        await self.writer.barrier()
        return await self._loop.run_in_executor(self._pool, stored_rows, collection, wanted, vectors)

    async def ids(self, tenant: str, name: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """A page of the ids behind `after`, in the order of UTF-8; some may have expired. An empty page is the end."""
        collection = self._collection(tenant, name)
        await self.writer.barrier()
        return await self._in_pool(collection, lambda: stored_ids(collection, after, limit))

    # Searching

    async def search(self, tenant: str, name: str, query: SearchQuery) -> SearchResult:
        """The best rows for a vector, a text or both. Sees every write put in before. Raises InvalidInput, NotFound."""
        collection = self._collection(tenant, name)
        if query.vector is None and not query.text:
            raise InvalidInput("a search needs a vector or a text.", param="query")
        await self.writer.barrier()
        if (
            query.vector is not None
            and not (query.text or query.filter or query.exact or query.fetch)
            and collection.quick()
        ):
            searched = searching.search(collection, query)
        else:
            searched = await self._in_pool(collection, lambda: searching.search(collection, query))
        self._finds.add(collection, searched.rows)
        result = searched.result
        slow = result.took_ms > self.config.slow_search_ms
        self._searches.add(result, slow=slow)
        if slow:
            _log.warning(
                "slow search",
                extra={"collection": name, "ms": round(result.took_ms, 1), "tiers": result.tiers, "k": query.k},
            )
        return result

    async def locate(self, tenant: str, name: str, query: SearchQuery, *, prewarm: bool = True) -> Location:
        """Where the answer to a query lies; with `prewarm`, what is on the disk begins to be read for a search to come."""
        collection = self._collection(tenant, name)
        await self.writer.barrier()
        return await self._in_pool(collection, lambda: searching.locate(collection, query, prewarm=prewarm))

    async def _in_pool(self, collection: Collection, work: Callable[[], T]) -> T:
        """In a searching thread. Raises NotFound where the collection was deleted meanwhile."""
        try:
            return await self._loop.run_in_executor(self._pool, work)
        except Closed:
            if collection.dropped:
                raise NotFound(f"the collection {collection.name!r} has been deleted.") from None
            raise

    # Care

    async def settle(self, tenant: str, name: str) -> None:
        """Wait until everything that is due has been done for a collection: merged, demoted, expired, in a snapshot."""
        collection = self._collection(tenant, name)
        await self.writer.barrier()
        await self._finds.settle(collection)
        self.keeper.hurry(collection, on=True)
        try:
            while not await asyncio.to_thread(self.keeper.settled, collection):
                self._check_open()
                if collection.dropped:
                    raise NotFound(f"the collection {name!r} has been deleted.")
                await asyncio.sleep(SETTLE_POLL_S)
        finally:
            self.keeper.hurry(collection, on=False)

    def status(self) -> PlaneStatus:
        """How it is: rows and bytes by tier, memory against its cap, the backlog, what failed."""
        return PlaneStatus(
            collections=tuple(self.gauges.read()),
            cold=self.cold.status(),
            state=state_status(self.rocks, self._sweeper.swept),
            history=self.mover.status(),
            searches=msgspec.structs.replace(self._searches),
            memory_bytes=self.keeper.used_bytes() + self.rocks.memory_bytes(),
            memory_cap_bytes=self._memory_bytes,
            ring_rows=self.writer.backlog,
            writes=self.writer.written,
            syncs=self.writer.syncs,
            keeper=msgspec.structs.replace(self.keeper.counts),
            failed=self.writer.failed,
            last_error=str(self.writer.last_error) if self.writer.last_error else self.keeper.last_error,
        )

    def _collection(self, tenant: str, name: str) -> Collection:
        self._check_open()
        try:
            return self._collections[tenant, name]
        except KeyError:
            raise NotFound(f"there is no collection {name!r}.") from None

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the data plane is closed.")

    def _submit_from_thread(self, command: Command) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            asyncio.run_coroutine_threadsafe(self._submit_quietly(command), self._loop)

    async def _submit_quietly(self, command: Command) -> None:
        with contextlib.suppress(DataPlaneError):  # it is tried again when it is due again
            await self.writer.submit(command, "nothing")


@contextlib.asynccontextmanager
async def opened(config: DataPlaneConfig, folder: Path | None = None) -> AsyncIterator[DataPlane]:
    """A data plane that is closed at the end."""
    plane = await DataPlane.open(config, folder)
    try:
        yield plane
    finally:
        await asyncio.shield(plane.close())


def _open_rocks(path: Path, memory: int) -> Rocks:
    with storage_errors(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # one that is there is its owner's, who has set its mode
    share = rocks_share(memory)
    return Rocks.open(path / "rocks", memory_bytes=share - share // 8)  # it passes its limit now and then, by little


def _before(wait: Wait) -> Wait:
    """How long to wait for the parts before the last: the last one's sync covers them."""
    return "nothing" if wait == "nothing" else "visible"

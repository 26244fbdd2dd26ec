"""Repair: what `verify` found wrong and RocksDB still knows is made anew.

    index     entries that lead nowhere are removed, rows get their entry; of two rows with one id the later stays  (writer)
    graph     memory that differs from RocksDB is made anew from it, without graph, which the keeper builds again   (writer)
              a snapshot that is damaged is written again                                                     (keeper, held)
    shards    a damaged shard is removed, its rows are read from RocksDB until the keeper demotes them again  (keeper, held)
    text      the index is thrown away and built from RocksDB                                              (indexer's thread)
    rows      a row without its vector cannot be repaired: it is left, and told again

Searches go on meanwhile and are right; writes wait while a collection's memory is made anew. A crash in the middle leaves
what was there before, or what was repaired.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dataplane import clock
from dataplane.care.verify import Problem, index_faults, memory_faults, misplaced, verify
from dataplane.collections.collection import Collection
from dataplane.collections.commands import Mend, Remake
from dataplane.errors import NotFound
from dataplane.hot import snapshot
from dataplane.hot.table import LOOSE
from dataplane.threads import in_thread
from dataplane.truth.writer import BATCH_ROWS
from dataplane.words.indexer import TextFeed

if TYPE_CHECKING:
    from dataplane.store import DataPlane

TEXT_WAIT_S = 0.5  # at a time


async def repair(plane: DataPlane, tenant: str, name: str) -> list[Problem]:
    """Make anew what is wrong with a collection. Returns what is left.

    Raises NotFound, StorageFull, Closed, Unavailable; what was repaired until then stays so.
    """
    collection = _collection(plane, tenant, name)
    kinds = {problem.where for problem in await in_thread(verify, collection)}
    if "index" in kinds:
        await _mend_index(plane, collection)
    if "graph" in kinds:
        await in_thread(_mend_graph, plane, collection, asyncio.get_running_loop())
    if "shards" in kinds:
        await in_thread(_mend_shards, plane, collection)
    if "text" in kinds and collection.text is not None:
        await _mend_text(collection.text)
    left = await in_thread(verify, collection)
    if not left:
        collection.problems.clear()
        collection.shards.problems.clear()
    return left


def _collection(plane: DataPlane, tenant: str, name: str) -> Collection:
    for collection in plane.open_collections():
        if (collection.tenant, collection.name) == (tenant, name):
            return collection
    raise NotFound(f"there is no collection {name!r}.")


async def _mend_index(plane: DataPlane, collection: Collection) -> None:
    """Ids first: then every entry that rows are compared with is right."""
    rows, ids = await in_thread(index_faults, collection)
    now_ms = clock.now_ms()
    for at in range(0, len(ids), BATCH_ROWS):
        await plane.writer.submit(Mend(collection, (), ids[at : at + BATCH_ROWS], now_ms), "durable")
    for at in range(0, len(rows), BATCH_ROWS):
        await plane.writer.submit(Mend(collection, rows[at : at + BATCH_ROWS], (), now_ms), "durable")


def _mend_graph(plane: DataPlane, collection: Collection, loop: asyncio.AbstractEventLoop) -> None:
    """In a thread: it waits for the keeper and for the writer."""
    with plane.keeper.held():
        if collection.dropped:
            return
        snapshot.remove(collection.folder)
        if memory_faults(collection):
            asyncio.run_coroutine_threadsafe(plane.writer.submit(Remake(collection)), loop).result()
            plane.keeper.forget(collection)  # so that it takes up shards, and writes a snapshot in time
        elif collection.graph is not None:
            plane.keeper.moves.save_snapshot(collection)


def _mend_shards(plane: DataPlane, collection: Collection) -> None:
    """In a thread, as the keeper."""
    with plane.keeper.held():
        if collection.dropped:
            return
        for name, (why, *_) in collection.shards.damaged().items():
            plane.keeper.moves.abandon_shard(collection, name, why)
        slots = misplaced(collection)
        with collection.lock:
            collection.table.move(slots, LOOSE)
        collection.readers.wait_for_earlier()
        with collection.lock:
            collection.table.set_groups(slots, -1)
        collection.shards.write_manifest()


async def _mend_text(feed: TextFeed) -> None:
    """Until the index is built again, or cannot be (`verify` tells why)."""
    feed.renew()
    while not await in_thread(feed.wait_for_end, TEXT_WAIT_S):
        continue

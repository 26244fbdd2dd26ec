"""Keeper: the thread that moves rows between the tiers, in small steps, while everything else goes on.

For each collection in turn, one step of the first that is due:

    merge      FRESH -> HOT      the delta's oldest rows, once there are some or they are a moment old
    adopt      LOOSE -> WARM     rows that a shard already has, after a start
    mend       WARM -> LOOSE     the rows of a shard that a search found damaged; the shard is removed
    gather     LOOSE -> HOT      rows that are in RocksDB only: after a start, a rebuild, or a burst
    shrink     HOT -> WARM       when more memory is taken than there may be
    spill      FRESH -> LOOSE    the same, for collections that are too small for a graph
    overflow   LOOSE -> WARM     when there is no room for them in the graph and they have become many
    rebuild    HOT -> LOOSE      when too many nodes of the graph are masked; `gather` builds it anew
    promote    WARM -> HOT       rows that are clearly hotter than the coldest hot ones, while there is room
    reshuffle  all               when there is no room and many rows are on the wrong side: the graph is built anew of the hottest
    discard    WARM -> LOOSE     the rows of a shard of which most have ended; the shard is removed
    snapshot                     when enough has changed and some time has passed
    expire                       rows whose time has come are deleted, by a command
    tidy                         slots of rows that ended are forgotten
    trim                         so is what RocksDB notes of them, once full text and archive have it

Memory is bounded by `memory_bytes` over all collections, as they count it themselves (memory.py): a row becomes HOT only
where there is room for it, and what the writing of a shard takes is kept free. A graph whose array would have to move to a
larger one, without the memory for both, is built anew with all the memory that it may have. To leave the graph costs a rebuild
sooner or later, so a row that is in it stays until another is clearly hotter (`CLEARLY`).

A crash in any step leaves what was before it: places are in memory only, and shards and snapshots are written atomically.
A step that fails is logged and tried again after a pause; a full disk pauses demotion, and rows then stay LOOSE.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane import allocator, archive_position, keys, snapshot
from dataplane.collection import FLAT_ROWS, Collection
from dataplane.commands import Expire, Forget
from dataplane.errors import Closed, DataPlaneError
from dataplane.graph import Graph, node_bytes
from dataplane.memory import Memory
from dataplane.shards import ShardMeta, ShardRows
from dataplane.table import FRESH, HOT, LOOSE, WARM, Slots
from dataplane.writer import Command

MERGE_ROWS = 256
MERGE_FROM = 64
MERGE_AFTER_S = 0.2
OVERFLOW_ROWS = 4096  # loose rows are found by their sketches; a shard of fewer is not worth its file
SHARD_ROWS = 16_384
LEAST_SHARD_ROWS = 64  # a row group
SHARD_SHARE = 0.1  # of memory that the rows of a shard take while it is written; it is kept free for that
RECORD_BYTES = 512  # about what a row takes then, beside its vector
SHRINK_SHARE = 0.05  # of memory that is given back beyond what must be
RESERVE = 1.25  # times the live rows: no graph is made with memory for more
CLEARLY = 0.4  # of heat: half as many accesses again
SPARE_SHARE = 0.05  # of the graph, or of free memory, that only promotions use
DRIFT_SHARE = 0.1  # of the graph that should be exchanged before it is built anew
RESHUFFLE_EVERY_S = 60.0
PROMOTE_ROWS = 512
PROMOTE_EVERY_S = 1.0
MASKED_SHARE = 0.3
DEAD_SHARE = 0.5  # of a shard
DISCARD_EVERY_S = 30.0
SNAPSHOT_SHARE = 0.1  # of the graph that has changed
SNAPSHOT_EVERY_S = 60.0
SNAPSHOT_IDLE_S = 5.0
EXPIRE_EVERY_S = 5.0
EXPIRE_ROWS = 128
TRIM_EVERY_S = 60.0
TRIM_ROWS = 4096
PAUSE_S = 5.0
GIVE_BACK_EVERY_S = 10.0
IDLE_S = 0.05

_log = logging.getLogger(__name__)


class KeeperCounts(Struct):
    """What the keeper has done, in rows and times. For metrics."""

    merged: int = 0
    demoted: int = 0
    promoted: int = 0
    expired: int = 0
    rebuilds: int = 0
    snapshots: int = 0
    failures: int = 0


class _Due(Struct):
    """When things were last done for a collection."""

    promoted_at: float = 0.0
    discarded_at: float = 0.0
    reshuffled_at: float = 0.0
    snapshot_at: float = 0.0
    snapshot_seq: int = -1
    snapshot_nodes: int = 0
    expired_at: float = 0.0
    trimmed_at: float = 0.0
    adopted: bool = False
    paused_until: float = 0.0
    error: str | None = None  # of the last step, until one goes well


class Keeper:
    """Owns the thread. `collections` are those that are open; `submit` hands a command to the writer from any thread."""

    def __init__(
        self, collections: Callable[[], Sequence[Collection]], submit: Callable[[Command], None], memory_bytes: int
    ) -> None:
        self._collections = collections
        self._submit = submit
        self.memory = Memory(memory_bytes)
        self.counts = KeeperCounts()
        self._due: dict[bytes, _Due] = {}  # by the collection's scope, which is never used again
        self._given_back_at = 0.0
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._hurry: set[bytes] = set()
        self._stepping = threading.Lock()  # while a step goes on
        self._thread = threading.Thread(target=self._run, name="dataplane-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step that goes on."""
        self._stopping.set()
        self._poked.set()
        if self._thread.ident is not None:
            self._thread.join()

    def hurry(self, collection: Collection, *, on: bool) -> None:
        """Do what is due for a collection now, whatever its age; for those who wait for it."""
        (self._hurry.add if on else self._hurry.discard)(collection.scope)
        self._poked.set()

    def settled(self, collection: Collection) -> bool:
        """Whether nothing is left to be moved, and the snapshot is of now."""
        due = self._due_of(collection)
        counts, graph = collection.counts(), collection.graph
        if graph is None and collection.table.live <= FLAT_ROWS:
            return due.adopted and not (counts[LOOSE] and self._delta_fits(collection))
        fresh, loose = counts[FRESH], counts[LOOSE]
        loose = loose >= OVERFLOW_ROWS or (loose > 0 and self._room(collection, MERGE_ROWS))
        over = counts[HOT] and graph is not None and self._free_bytes() < 0
        saved = graph is None or due.snapshot_seq == collection.published
        return not fresh and not loose and not over and due.adopted and saved

    @property
    def last_error(self) -> str | None:
        """Why some collection's last step failed; it is tried again."""
        return next((due.error for due in list(self._due.values()) if due.error is not None), None)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The thread does nothing meanwhile, and its work may be done by whoever holds it."""
        with self._stepping:
            yield

    @property
    def memory_bytes(self) -> int:
        """What all collections together may take."""
        return self.memory.cap

    @memory_bytes.setter
    def memory_bytes(self, cap: int) -> None:
        self.memory.cap = cap

    def used_bytes(self) -> int:
        """Memory of all collections."""
        return sum(collection.nbytes for collection in self._collections())

    # The thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._free_bytes()  # what the steps gave back may be taken again
            worked = False
            for collection in self._collections():
                if self._stopping.is_set():
                    return
                worked |= self._guarded_step(collection)
            self._give_back(worked)
            if not worked:
                self._poked.wait(IDLE_S)
                self._poked.clear()

    def _give_back(self, worked: bool) -> None:
        """Now and then, while there is work: what was freed goes back to the system."""
        now = time.monotonic()
        if worked and now - self._given_back_at > GIVE_BACK_EVERY_S:
            self._given_back_at = now
            allocator.give_back()

    def _due_of(self, collection: Collection) -> _Due:
        return self._due.setdefault(collection.scope, _Due(snapshot_at=time.monotonic(), expired_at=time.monotonic()))

    def forget(self, collection: Collection) -> None:
        """The collection is gone."""
        self._due.pop(collection.scope, None)

    def _guarded_step(self, collection: Collection) -> bool:
        with self._stepping:
            if collection.dropped:
                return False
            due = self._due_of(collection)
            if time.monotonic() < due.paused_until:
                return False
            try:
                worked = self.step(collection)
            except DataPlaneError as error:
                _log.warning("the keeper pauses", extra={"collection": collection.name, "why": str(error)})
                due.error = str(error)
            except Exception:  # noqa: BLE001 - a defect in one step must not end the thread
                _log.exception("the keeper failed", extra={"collection": collection.name})
                due.error = "a step of the keeper failed: see the log"
            else:
                due.error = None
                return worked
        self.counts.failures += 1
        due.paused_until = time.monotonic() + PAUSE_S
        return False

    def step(self, collection: Collection) -> bool:
        """One step of what is due; False if nothing is."""
        due = self._due_of(collection)
        return (
            self._merge(collection)
            or self._adopt(collection, due)
            or self._mend(collection)
            or self._shrink(collection)
            or self._spill(collection)
            or self._gather(collection)
            or self._rebuild_if_masked(collection)
            or self._tidy(collection)
            or self._promote(collection, due)
            or self._discard(collection, due)
            or self._expire(collection, due)
            or self._trim(collection, due)
            or self._snapshot(collection, due)
        )

    # Steps

    def _merge(self, collection: Collection) -> bool:
        waiting = len(collection.delta)
        if not waiting or (collection.graph is None and collection.table.live <= FLAT_ROWS):
            return False
        idle = time.monotonic() - collection.changed_at > MERGE_AFTER_S or collection.scope in self._hurry
        if waiting < MERGE_FROM and not idle:
            return False
        with collection.lock:
            delta = collection.delta.view(MERGE_ROWS)
        fits = self._make_room(collection, len(delta.rows))
        self._into_graph(collection, delta.rows, delta.vectors, to_graph=fits)
        with collection.lock:
            collection.delta.drop(len(delta.rows))
        self.counts.merged += len(delta.rows)
        return True

    def _gather(self, collection: Collection) -> bool:
        """Loose rows become hot while there is room, the oldest first; else many of them become warm."""
        count = collection.counts()[LOOSE]
        if not count or (collection.graph is None and collection.table.live <= FLAT_ROWS and not len(collection.delta)):
            return bool(count) and self._into_delta(collection)
        if not self._make_room(collection, min(count, MERGE_ROWS)):
            return count >= OVERFLOW_ROWS and self._overflow(collection)
        view = collection.table.view()
        loose = view.rows[view.first_at(LOOSE, MERGE_ROWS)]
        rows, vectors = collection.stored_vectors(loose)
        self._into_graph(collection, rows, vectors, to_graph=True)
        collection.leave_out(np.setdiff1d(loose, rows))
        return True

    def _shrink(self, collection: Collection) -> bool:
        """With more memory taken than may be, the coldest hot rows become warm, and the graph is built anew of the others.

        The graph goes first, for that gives memory back at once. Somewhat more goes than must, or the next rows to come
        would have it built anew again.
        """
        over = -self._free_bytes()
        if over <= 0 or collection.graph is None or not collection.counts()[HOT]:
            return False
        with collection.lock:
            view, heat = collection.table.view(), collection.table.heat()
        hot = np.flatnonzero(view.alive & (view.place == HOT))
        over += int(SHRINK_SHARE * self.memory_bytes)
        count = min(len(hot), over // node_bytes(collection.dimensions) + MERGE_ROWS)
        coldest = np.sort(hot[np.argsort(heat[hot], kind="stable")[:count]])
        self._drop_graph(collection)
        self.demote(collection, coldest)
        collection.graph = self._reserved_graph(collection)
        return True

    def _into_delta(self, collection: Collection) -> bool:
        """A collection that has become small is scanned as a whole, if there is memory for it."""
        if not self._delta_fits(collection):
            return False
        self.memory.took(collection.delta.growth(collection.counts()[LOOSE]))
        with collection.lock:
            view = collection.table.view()
            loose = view.rows[np.flatnonzero((view.place == LOOSE) & view.alive)]
            rows, vectors = collection.stored_vectors(loose)
            collection.delta.append(rows, vectors)
            collection.table.move(view.slots_of(rows), FRESH)
        collection.leave_out(np.setdiff1d(loose, rows))
        return True

    def _delta_fits(self, collection: Collection) -> bool:
        growth = collection.delta.growth(collection.counts()[LOOSE])
        return self._free_bytes() - SPARE_SHARE * self.memory_bytes >= growth

    def _spill(self, collection: Collection) -> bool:
        """Too much memory is taken, and this is the small collection that was not changed for longest: its rows become loose."""
        if collection.graph is not None or not len(collection.delta) or self._free_bytes() >= 0:
            return False
        flat = [one for one in self._collections() if one.graph is None and len(one.delta)]
        if collection is not min(flat, key=lambda one: one.changed_at):
            return False
        with collection.lock:
            delta = collection.delta.view()
        self._into_graph(collection, delta.rows, delta.vectors, to_graph=False)
        with collection.lock:
            collection.delta.drop(len(delta.rows))
        return True

    def _overflow(self, collection: Collection) -> bool:
        view = collection.table.view()
        self.demote(collection, view.first_at(LOOSE, SHARD_ROWS))
        return True

    def _into_graph(
        self,
        collection: Collection,
        rows: NDArray[np.uint64],
        vectors: NDArray[np.float32],
        *,
        to_graph: bool,
    ) -> None:
        """Rows become HOT, or LOOSE without `to_graph`. Those that ended meanwhile become nothing."""
        with collection.lock:
            view = collection.table.view()
            slots = view.slots_of(rows)
            alive = (slots >= 0) & view.alive[np.maximum(slots, 0)]
            rows, vectors, slots = rows[alive], vectors[alive], slots[alive]
            if len(rows):
                collection.sketch(slots, vectors)
            if not to_graph:
                collection.table.move(slots, LOOSE)
        if not to_graph or not len(rows):
            return
        if collection.graph is None:
            collection.graph = Graph(collection.dimensions, collection.metric)
        graph = collection.graph
        first = graph.add(rows, vectors)
        with collection.lock:
            view = collection.table.view()
            slots = view.slots_of(rows)
            nodes = np.arange(first, first + len(rows))
            collection.table.set_nodes(slots, nodes)
            collection.table.move(slots, HOT)
            for node in nodes[~view.alive[slots]].tolist():
                graph.end(node)

    def _adopt(self, collection: Collection, due: _Due) -> bool:
        """After a start: rows that shards have are WARM, unless the snapshot has them in the graph."""
        if due.adopted:
            return False
        due.adopted = True
        for entry in collection.shards.entries:
            try:
                for group, rows in collection.shards.groups(entry.name):
                    with collection.lock:
                        view = collection.table.view()
                        slots = view.slots_of(rows)
                        slots = slots[slots >= 0]
                        collection.table.set_groups(slots, group)
                        collection.table.move(slots[view.place[slots] == LOOSE], WARM)
            except DataPlaneError as error:
                self.abandon_shard(collection, entry.name, str(error))
        return True

    def _mend(self, collection: Collection) -> bool:
        if not collection.damaged:
            return False
        group, why = collection.damaged.popitem()
        with contextlib.suppress(Closed):  # with another of its groups it has gone already
            self.abandon_shard(collection, collection.shards.shard_of(group), why)
        return True

    def abandon_shard(self, collection: Collection, name: str, why: str) -> None:
        """Its rows are read from RocksDB."""
        with collection.lock:
            view = collection.table.view()
            groups = collection.shards.numbers_of(name)
            inside = np.flatnonzero((view.group >= groups.start) & (view.group < groups.stop))
            collection.table.move(inside[view.place[inside] == WARM], LOOSE)
        collection.readers.wait_for_earlier()  # they look for rows in these groups
        with collection.lock:
            collection.table.set_groups(inside, -1)
        collection.shards.drop(name, why)

    def _rebuild_if_masked(self, collection: Collection) -> bool:
        graph = collection.graph
        if graph is None or graph.masked < FLAT_ROWS or graph.masked < MASKED_SHARE * len(graph):
            return False
        self._drop_graph(collection)
        self._compact_table(collection)
        return True

    def _tidy(self, collection: Collection) -> bool:
        """Where many rows ended that no graph had: they were new, or warm."""
        table = collection.table
        if table.ended < max(FLAT_ROWS, MASKED_SHARE * len(table)):
            return False
        self._compact_table(collection)
        return True

    def _drop_graph(self, collection: Collection) -> None:
        """Hot rows become loose."""
        with collection.lock:
            view = collection.table.view()
            collection.table.move(np.flatnonzero(view.place == HOT), LOOSE)
            collection.graph = None
        collection.readers.wait_for_earlier()
        self._due_of(collection).snapshot_seq = -1  # a snapshot of the old graph is as large as that was
        self.counts.rebuilds += 1

    def purge(self, collection: Collection, shards: Sequence[str]) -> None:
        """Have nothing of rows that ended stay in graph, table, snapshot and these shards. While `held`.

        Live rows are read from RocksDB until graph and snapshot have been made anew.
        """
        for name in shards:
            self.abandon_shard(collection, name, "")
        self._drop_graph(collection)
        snapshot.remove(collection.folder)
        self._compact_table(collection, share=0)

    def _compact_table(self, collection: Collection, share: float = MASKED_SHARE) -> None:
        """Forget the slots of rows that ended, once they are a share of all."""
        if collection.table.ended < share * len(collection.table):
            return
        with collection.lock:
            slots = np.flatnonzero(collection.table.view().alive)
            collection.table = collection.table.kept(slots)
            collection.attributes = collection.attributes.keep(slots)
            collection.delta.keep(collection.table.view().slots_of(collection.delta.view().rows) >= 0)

    # Memory

    def _free_bytes(self) -> int:
        collections = self._collections()
        large = [collection for collection in collections if collection.table.live > FLAT_ROWS]
        writing = max((self._shard_size(one) * _row_bytes(one) for one in large), default=0)
        used = sum(collection.nbytes for collection in collections)
        self.memory.counted(used, writing + sum(collection.growing for collection in collections))
        return self.memory.free

    def _room(self, collection: Collection, count: int, spare: float = SPARE_SHARE) -> bool:
        """Whether `count` rows can become hot, and the share `spare` is left."""
        graph = collection.graph
        if graph is not None and graph.spare >= count + spare * len(graph):
            return True
        return self._free_bytes() - spare * self.memory_bytes >= count * node_bytes(collection.dimensions)

    def _make_room(self, collection: Collection, count: int, spare: float = SPARE_SHARE) -> bool:
        """The same; afterwards the graph can take them without needing more memory than there is, for a moment or for good."""
        if not self._room(collection, count, spare):
            return False
        graph = collection.graph
        needed = 0 if graph is None else graph.growth(count) + graph.moving_bytes(count)
        if needed and not self.memory.take(needed):
            self._drop_graph(collection)
            collection.graph = self._reserved_graph(collection)
        return True

    def _reserved_graph(self, collection: Collection) -> Graph:
        """A graph with all the memory that it may have. There must be none of the collection's yet."""
        reserve = self._reserve(collection)
        self.memory.took(reserve * node_bytes(collection.dimensions))
        return Graph(collection.dimensions, collection.metric, reserve)

    def _reserve(self, collection: Collection) -> int:
        """Nodes for which there is memory, while the collection has no graph."""
        free = self._free_bytes() - int(SPARE_SHARE * self.memory_bytes)
        wanted = int(RESERVE * collection.table.live) + MERGE_ROWS
        return min(max(free // node_bytes(collection.dimensions), 0), wanted)

    def demote(self, collection: Collection, slots: Slots) -> None:
        """Rows become WARM: those that no shard has are written into new ones."""
        view = collection.table.view()
        known = view.group[slots] >= 0
        self._make_warm(collection, view.rows[slots[known]])
        unknown = slots[~known]
        most = self._shard_size(collection)
        for start in range(0, len(unknown), most):
            rows = view.rows[unknown[start : start + most]]
            content = self._shard_rows(collection, rows)
            meta = ShardMeta(collection.name, collection.published, collection.dimensions, collection.metric)
            if not len(content):
                continue
            groups = collection.shards.demote(content, meta)
            with collection.lock:
                found = collection.table.view().slots_of(content.rownums)
                collection.table.set_groups(found[found >= 0], groups[found >= 0])
            self._make_warm(collection, content.rownums)
            del content
            allocator.give_back()

    def _shard_size(self, collection: Collection) -> int:
        """Rows of a shard, all of which are in memory while it is written."""
        rows = int(self.memory_bytes * SHARD_SHARE) // _row_bytes(collection)
        return min(max(rows, LEAST_SHARD_ROWS), SHARD_ROWS)

    def _make_warm(self, collection: Collection, rows: NDArray[np.uint64]) -> None:
        with collection.lock:
            view = collection.table.view()
            slots = view.slots_of(rows)
            slots = slots[slots >= 0]
            was_hot = slots[view.place[slots] == HOT]
            nodes = view.node[was_hot].tolist()
            collection.table.move(slots, WARM)
        collection.readers.wait_for_earlier()
        if collection.graph is not None:
            for node in nodes:
                collection.graph.end(node)
        self.counts.demoted += len(slots)

    def _shard_rows(self, collection: Collection, rows: NDArray[np.uint64]) -> ShardRows:
        """The stored content of rows; those that ended meanwhile are left out."""
        numbers = np.empty(len(rows), np.uint64)
        vectors = np.empty((len(rows), collection.dimensions), np.float32)
        count = 0
        ids: list[str] = []
        texts: list[str] = []
        attributes: list[bytes] = []
        expires: list[int] = []
        for start in range(0, len(rows), MERGE_ROWS):
            have, part = collection.stored_vectors(rows[start : start + MERGE_ROWS])
            found = collection.row_records(have.tolist())
            keep = np.array([record is not None for record in found], np.bool_)
            here = slice(count, count + int(keep.sum()))
            numbers[here], vectors[here] = have[keep], part[keep]
            count = here.stop
            for record in filter(None, found):
                ids.append(record.id)
                texts.append(record.text or "")
                attributes.append(msgspec.json.encode(record.attributes))
                expires.append(record.expires_ms or 0)
        return ShardRows(numbers[:count], vectors[:count], ids, texts, attributes, np.array(expires, np.int64))

    def _promote(self, collection: Collection, due: _Due) -> bool:
        """The hottest warm rows become hot, at most PROMOTE_ROWS a second; or the graph is built anew, if that is worth it."""
        now = time.monotonic()
        if now - due.promoted_at < PROMOTE_EVERY_S or not collection.counts()[WARM]:
            return False
        due.promoted_at = now
        with collection.lock:
            view, heat = collection.table.view(), collection.table.heat()
        warm = np.flatnonzero(view.alive & (view.place == WARM))
        hot = np.flatnonzero(view.alive & (view.place == HOT))
        wanted = warm
        if len(warm) > PROMOTE_ROWS:
            wanted = warm[np.argpartition(heat[warm], len(warm) - PROMOTE_ROWS)[-PROMOTE_ROWS:]]
        if len(hot):
            wanted = wanted[heat[wanted] > heat[hot].min() + CLEARLY]
        if len(wanted) and self._make_room(collection, len(wanted), spare=0):
            rows, vectors = collection.stored_vectors(view.rows[wanted])
            self._into_graph(collection, rows, vectors, to_graph=True)
            self.counts.promoted += len(rows)
            return True
        if now - due.reshuffled_at < RESHUFFLE_EVERY_S:
            return False
        warm = warm[np.argsort(-heat[warm], kind="stable")]
        hot = hot[np.argsort(heat[hot], kind="stable")]
        pairs = min(len(warm), len(hot))
        drift = int(np.count_nonzero(heat[warm[:pairs]] > heat[hot[:pairs]] + CLEARLY))
        if drift < max(DRIFT_SHARE * len(hot), MERGE_ROWS):
            return False
        due.reshuffled_at = now
        self._reshuffle(collection, view.rows[warm[:drift]], view.rows[hot[:drift]])
        return True

    def _reshuffle(self, collection: Collection, hotter: NDArray[np.uint64], colder: NDArray[np.uint64]) -> None:
        """Exchange warm rows with hot ones, as many, by building the graph anew."""
        self.demote(collection, collection.table.view().slots_of(colder))
        with collection.lock:
            slots = collection.table.view().slots_of(hotter)
            collection.table.move(slots[slots >= 0], LOOSE)
        self._drop_graph(collection)
        collection.graph = self._reserved_graph(collection)
        self.counts.promoted += len(hotter)

    def _discard(self, collection: Collection, due: _Due) -> bool:
        """The first shard of which most rows have ended."""
        now = time.monotonic()
        if now - due.discarded_at < DISCARD_EVERY_S and collection.scope not in self._hurry:
            return False
        due.discarded_at = now
        view = collection.table.view()
        groups = view.group[view.alive & (view.group >= 0)]
        for entry in collection.shards.entries:
            numbers = collection.shards.numbers_of(entry.name)
            live = np.count_nonzero((groups >= numbers.start) & (groups < numbers.stop))
            if live < (1 - DEAD_SHARE) * entry.rows:
                self.abandon_shard(collection, entry.name, "")
                return True
        return False

    def _expire(self, collection: Collection, due: _Due) -> bool:
        now = time.monotonic()
        if now - due.expired_at < EXPIRE_EVERY_S and collection.scope not in self._hurry:
            return False
        due.expired_at = now
        now_ms = int(time.time() * 1000)
        view = collection.table.view()
        over = np.flatnonzero(view.alive & (view.expires_ms <= now_ms))[: 32 * EXPIRE_ROWS]
        for start in range(0, len(over), EXPIRE_ROWS):
            self._submit(Expire(collection, view.rows[over[start : start + EXPIRE_ROWS]].tolist(), now_ms))
        self.counts.expired += len(over)
        return False

    def _trim(self, collection: Collection, due: _Due) -> bool:
        """`dead` entries that neither the full text nor the archive needs any more are removed, by commands."""
        now = time.monotonic()
        if now - due.trimmed_at < TRIM_EVERY_S and collection.scope not in self._hurry:
            return False
        due.trimmed_at = now
        first = collection.rocks.first_key("dead", collection.scope)
        if first is None:
            return False
        through = collection.published if collection.text is None else collection.text.index.sync()
        if archive_position.load(collection.rocks) is not None:  # there is an archive
            number = collection.record.number
            through = min(through, archive_position.archived_seq(collection.rocks, collection.tenant, number))
        last = collection.scope + keys.number(through)
        if first > last:
            return False
        with contextlib.closing(collection.rocks.scan("dead", collection.scope)) as found:
            ended = list(itertools.takewhile(last.__ge__, (key for key, _ in itertools.islice(found, TRIM_ROWS))))
        for start in range(0, len(ended), EXPIRE_ROWS):
            self._submit(Forget(collection, ended[start : start + EXPIRE_ROWS]))
        if len(ended) == TRIM_ROWS:
            due.trimmed_at = now - TRIM_EVERY_S + PROMOTE_EVERY_S  # there is more
        return False

    def _snapshot(self, collection: Collection, due: _Due) -> bool:
        graph, seq = collection.graph, collection.published
        if graph is None or due.snapshot_seq == seq:
            return False
        now = time.monotonic()
        changed = max(len(graph) - due.snapshot_nodes, seq - due.snapshot_seq)
        enough = changed > SNAPSHOT_SHARE * len(graph) and now - due.snapshot_at > SNAPSHOT_EVERY_S
        idle = now - collection.changed_at > SNAPSHOT_IDLE_S and now - due.snapshot_at > SNAPSHOT_IDLE_S
        if not (enough or idle or collection.scope in self._hurry):
            return False
        self.save_snapshot(collection)
        return True

    def save_snapshot(self, collection: Collection) -> None:
        """Write a snapshot of graph and heat as they are."""
        due = self._due_of(collection)
        seq = collection.published
        with collection.lock:
            view = collection.table.view()
            accesses, hours = collection.table.accessed()
            live = np.flatnonzero(view.alive)
            heat = np.empty((3, len(live)), np.float64)
            heat[0], heat[1], heat[2] = view.rows[live], accesses[live], hours[live]
        saved = snapshot.save(collection.folder, seq, collection.graph, heat)
        due.snapshot_seq, due.snapshot_nodes, due.snapshot_at = seq, saved.nodes, time.monotonic()
        self.counts.snapshots += 1


def _row_bytes(collection: Collection) -> int:
    """About what a row takes in memory while its shard is written."""
    return 4 * collection.dimensions + RECORD_BYTES

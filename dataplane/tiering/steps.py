"""Steps: what is due for a collection now, and the one step of it that comes first.

    adopt      LOOSE -> WARM     rows that a shard already has, after a start
    tidy                         slots of rows that ended are forgotten; never twice in succession
    shrink     HOT -> WARM       when more memory is taken than there may be
    merge      FRESH -> HOT      the delta's oldest rows, once there are some or they are a moment old
    mend       WARM -> LOOSE     the rows of a shard that a search found damaged; the shard is removed
    spill      FRESH -> LOOSE    the same, for collections that are too small for a graph
    gather     LOOSE -> HOT      rows that are in RocksDB only, the hottest first: after a start, a rebuild, or a burst
               LOOSE -> WARM     when the graph has no room for them, or enough copies, and they have become many
    rebuild    HOT -> LOOSE      when too many nodes of the graph are masked; `gather` builds it anew
    give_way   HOT -> WARM       when nobody reads the collection, and one that is read has no room
    promote    WARM -> HOT       the hottest while there is room, and in the spare share of it those that are clearly hotter
    exchange   WARM <-> HOT      when many are on the wrong side: the graph is built anew of the hottest
    discard    WARM -> LOOSE     the rows of a shard of which most have ended; the shard is removed
    expire                       rows whose time has come are deleted, by a command
    trim                         what RocksDB notes of rows that ended is removed, once full text and archive have it
    snapshot                     when enough has changed and some time has passed

`tidy` and `shrink` come before `merge`, which is always due while rows come without a pause: what ends and what is taken would
grow without bound. After either of them, merging has its turn.

A graph whose array would have to move to a larger one, without the memory for both, is built anew with all the memory that it
may have, if it would have many more rows. What it had to give back it does not take again for a while: until then it leaves a
margin, and rows without room stay LOOSE. To leave the graph costs a rebuild sooner or later, so a row that is in it stays until
another is clearly hotter (`CLEARLY`).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dataplane import clock
from dataplane.cold import archive_position
from dataplane.collections.collection import FLAT_ROWS, Collection
from dataplane.collections.commands import Expire, Forget
from dataplane.errors import Closed
from dataplane.hot.graph import node_bytes
from dataplane.hot.table import FRESH, HOT, KEPT_OUT, LOOSE, WARM
from dataplane.tiering.due import Dues, KeeperCounts
from dataplane.tiering.heats import heated, leading
from dataplane.tiering.moves import MASKED_SHARE, SHRUNK_S, Moves
from dataplane.tiering.room import MARGIN_SHARE, MERGE_ROWS, SHARD_ROWS, SPARE_SHARE, Room
from dataplane.truth import keys
from dataplane.truth.writer import Command

MERGE_FROM = 64
MERGE_AFTER_S = 0.2
OVERFLOW_ROWS = 4096  # loose rows are found by their sketches; a shard of fewer is not worth its file
CLEARLY = 0.4  # of heat: half as many accesses again
GATHERED = 4096  # rows whose order is found at a time
PROMOTE_ROWS = 512
PROMOTE_EVERY_S = 1.0
COMPARE_EVERY_S = 10.0
EXCHANGE_EVERY_S = 60.0
EXCHANGED_SHARE = 0.1  # of the graph, from which it is built anew for an exchange
IDLE_EXCHANGED_SHARE = 0.01  # the same while nobody searches or writes
IDLE_S = 5.0  # since the last search, and the last change
REBUILT_ROWS_S = 2000.0  # about, in a graph that is built anew
REBUILDING_SHARE = 0.1  # of the time, at most, in which a graph may be in the making for an exchange
IDLE_REBUILDING_SHARE = 0.3
DEAD_SHARE = 0.5  # of a shard
DISCARD_EVERY_S = 30.0
LEFT_SHARE = 0.1  # of its rows that a collection which nobody reads keeps in the graph
GIVE_WAY_EVERY_S = 60.0
SNAPSHOT_SHARE = 0.1  # of the graph that has changed
SNAPSHOT_EVERY_S = 60.0
SNAPSHOT_IDLE_S = 5.0
EXPIRE_EVERY_S = 5.0
EXPIRE_ROWS = 128
TRIM_EVERY_S = 60.0
TRIM_ROWS = 4096


class Steps:
    """Each step returns whether it did something: nothing where it is not due. `submit` hands a command to the writer."""

    def __init__(
        self, moves: Moves, room: Room, due: Dues, counts: KeeperCounts, submit: Callable[[Command], None]
    ) -> None:
        self._moves = moves
        self._room = room
        self._due = due
        self._counts = counts
        self._submit = submit

    def settled(self, collection: Collection) -> bool:
        """Whether nothing is left to be moved, and the snapshot is of now."""
        due = self._due.of(collection)
        counts, graph = collection.counts(), collection.graph
        if graph is None and collection.table.live <= FLAT_ROWS:
            return due.adopted and not (counts[LOOSE] and self._room.for_delta(collection))
        fresh, loose = counts[FRESH], counts[LOOSE]
        waits = loose > 0 and collection.table.view().any_waits()
        waits = waits and (self._room.for_nodes(collection, MERGE_ROWS) or self._moves.worth_anew(collection) > 0)
        over = counts[HOT] and graph is not None and self._room.free_bytes() < 0
        saved = graph is None or due.snapshot_seq == collection.published
        return not fresh and loose < OVERFLOW_ROWS and not waits and not over and due.adopted and saved

    def take_one(self, collection: Collection) -> bool:
        """One step of what is due; False if nothing is."""
        return (
            self.adopt(collection)
            or self.tidy(collection)
            or self.shrink(collection)
            or self.merge(collection)
            or self.mend(collection)
            or self.spill(collection)
            or self.gather(collection)
            or self.rebuild_if_masked(collection)
            or self.give_way(collection)
            or self.promote(collection)
            or self.exchange(collection)
            or self.discard(collection)
            or self.expire(collection)
            or self.trim(collection)
            or self.snapshot(collection)
        )

    def merge(self, collection: Collection) -> bool:
        """The oldest new rows become hot, or loose where there is no room; not in a collection that is small."""
        waiting = len(collection.delta)
        if not waiting or (collection.graph is None and collection.table.live <= FLAT_ROWS):
            return False
        idle = time.monotonic() - collection.changed_at > MERGE_AFTER_S or self._due.hurried(collection)
        if waiting < MERGE_FROM and not idle:
            return False
        with collection.lock:
            delta = collection.delta.view(MERGE_ROWS)
        fits = self._moves.make_room(collection, len(delta))
        self._moves.into_graph(collection, delta.rows, delta.vectors, to_graph=fits)
        with collection.lock:
            collection.delta.drop(len(delta))
        self._counts.merged += len(delta)
        return True

    def adopt(self, collection: Collection) -> bool:
        """What shards have, once after a start."""
        due = self._due.of(collection)
        if due.adopted:
            return False
        due.adopted = True
        self._moves.adopt(collection)
        return True

    def mend(self, collection: Collection) -> bool:
        """A shard that a search could not read."""
        if not collection.damaged:
            return False
        group, why = collection.damaged.popitem()
        with contextlib.suppress(Closed):  # with another of its groups it has gone already
            self._moves.abandon_shard(collection, collection.shards.shard_of(group), why)
        return True

    def shrink(self, collection: Collection) -> bool:
        """With more memory taken than may be, the coldest hot rows become warm, and the graph is built anew of the others.

        A margin is left. What deltas take comes back by `merge`, and what small collections' take of the margin by `spill`.
        """
        over = -self._room.free_bytes() - self._room.delta_bytes(large=True)
        if over <= 0 or collection.graph is None or not collection.counts()[HOT]:
            return False
        lately = time.monotonic() - self._due.of(collection).shrunk_at < SHRUNK_S
        if lately and over <= self._room.delta_bytes(large=False):
            return False
        self._shrink_to(collection, int(self._room.nodes(collection, MARGIN_SHARE) / (1 + SPARE_SHARE)))
        return True

    def _shrink_to(self, collection: Collection, kept: int) -> None:
        """The graph is built anew for so many of its rows, the hottest."""
        view, heat = heated(collection)
        hot = np.flatnonzero(view.alive & (view.place == HOT))
        coldest = np.sort(hot[np.argsort(heat[hot], kind="stable")[: max(len(hot) - kept, 0)]])
        del view, heat, hot  # a table that grows meanwhile would be in memory twice
        self._moves.shrink(collection, coldest, int(kept * (1 + SPARE_SHARE)) + 1)

    def give_way(self, collection: Collection) -> bool:
        """Others that are read lack memory, and nobody reads this one: its coldest rows become warm, to a tenth at the least."""
        due, now = self._due.of(collection), time.monotonic()
        hot = collection.counts()[HOT]
        if now - due.gave_way_at < GIVE_WAY_EVERY_S or not hot or collection.graph is None:
            return False
        due.gave_way_at = now
        lacking = self._room.lacking_elsewhere(collection)
        kept = max(hot - lacking // node_bytes(collection.dimensions), int(LEFT_SHARE * collection.table.live))
        if hot - kept < MERGE_ROWS:
            return False
        self._shrink_to(collection, kept)
        return True

    def spill(self, collection: Collection) -> bool:
        """Too much memory is taken, and this is the small collection that was not changed for longest: its rows become loose."""
        if collection.graph is not None or not len(collection.delta) or self._room.free_bytes() >= 0:
            return False
        flat = [one for one in self._room.collections() if one.graph is None and len(one.delta)]
        if collection is not min(flat, key=lambda one: one.changed_at):
            return False
        self._moves.empty_delta(collection)
        return True

    def gather(self, collection: Collection) -> bool:
        """Loose rows become hot while there is room, the hottest first; else, or if only copies are left, many become warm.

        A collection that has become small is scanned as a whole instead, if there is memory for it.
        """
        count = collection.counts()[LOOSE]
        if not count or (collection.graph is None and collection.table.live <= FLAT_ROWS):
            if not count or not self._room.for_delta(collection):
                return False
            self._moves.empty_delta(collection)  # its rows rise: what is in it may be older than what is loose
            self._moves.into_delta(collection)
            return True
        fits = min(count, MERGE_ROWS) if collection.table.view().any_waits() else 0
        if fits and not self._moves.make_room(collection, fits):
            fits = min(fits, self._room.in_graph(collection))
        if not fits:
            if count < OVERFLOW_ROWS:
                return False
            self._moves.demote(collection, collection.table.view().first_at(LOOSE, SHARD_ROWS))
            return True
        loose = self._next_loose(collection, fits)
        rows, vectors = collection.stored_vectors(loose)
        self._moves.into_graph(collection, rows, vectors, to_graph=True)
        collection.leave_out(np.setdiff1d(loose, rows))
        return True

    def _next_loose(self, collection: Collection, count: int) -> NDArray[np.uint64]:
        """Loose rows, the hottest first: while a graph is built anew, what is asked for most is back in it soonest."""
        due = self._due.of(collection)
        while True:
            if not len(due.gathered):
                view, heat = heated(collection)
                loose = np.flatnonzero(view.alive & (view.place == LOOSE) & (view.node != KEPT_OUT))
                due.gathered = view.rows[leading(loose, -heat, GATHERED)]
            rows, due.gathered = due.gathered[:count], due.gathered[count:]
            view = collection.table.view()
            slots = view.slots_of(rows)
            still = (slots >= 0) & (view.place[slots] == LOOSE) & view.alive[slots] & (view.node[slots] != KEPT_OUT)
            if still.any() or not view.any_waits():
                found: NDArray[np.uint64] = rows[still]
                return found

    def rebuild_if_masked(self, collection: Collection) -> bool:
        """The graph, once too many of its nodes are of rows that ended or left it."""
        graph = collection.graph
        if graph is None or graph.masked < FLAT_ROWS or graph.masked < MASKED_SHARE * len(graph):
            return False
        del graph  # its memory is needed while the table is made anew
        self._moves.drop_graph(collection)
        self._moves.compact_table(collection)
        return True

    def tidy(self, collection: Collection) -> bool:
        """Where many slots are of rows that ended; not if this was the last step too, so that the others have their turn."""
        table, due = collection.table, self._due.of(collection)
        due.tidied = not due.tidied and table.ended >= max(FLAT_ROWS, MASKED_SHARE * len(table))
        if not due.tidied:
            return False
        self._moves.compact_table(collection)
        return True

    def promote(self, collection: Collection) -> bool:
        """The hottest warm rows become hot, at most PROMOTE_ROWS a second: in the spare share those that are clearly hotter."""
        due = self._due.of(collection)
        now = time.monotonic()
        if now - due.promoted_at < PROMOTE_EVERY_S or not collection.counts()[WARM]:
            return False
        due.promoted_at = now
        view, heat = heated(collection)
        warm = np.flatnonzero(view.alive & (view.place == WARM) & (view.node != KEPT_OUT))
        hot = np.flatnonzero(view.alive & (view.place == HOT))
        wanted = leading(warm, -heat, PROMOTE_ROWS)
        if not self._moves.make_room(collection, len(wanted), rebuild=False):
            if len(hot):
                wanted = wanted[heat[wanted] > heat[hot].min() + CLEARLY]
            if not len(wanted):
                return False
            if not self._moves.make_room(collection, len(wanted), spare=0, rebuild=False):
                wanted = wanted[: 0 if collection.graph is None else collection.graph.spare]
        if not len(wanted):
            return False
        rows, vectors = collection.stored_vectors(view.rows[wanted])
        del view, heat, warm, hot  # a table that grows meanwhile would be in memory twice
        self._counts.promoted += self._moves.into_graph(collection, rows, vectors, to_graph=True)
        return True

    def exchange(self, collection: Collection) -> bool:
        """The graph is built anew with the hottest rows, where that brings a share of it: see EXCHANGED_SHARE.

        As many hot rows become warm as warm ones are clearly hotter; and where there is memory for more nodes, but not to
        have a larger graph beside this one, more warm rows become hot.
        """
        due = self._due.of(collection)
        now = time.monotonic()
        counts = collection.counts()
        if now - due.compared_at < COMPARE_EVERY_S or not counts[WARM] or not counts[HOT]:
            return False
        due.compared_at = now
        idle = now - max(collection.searched_at, collection.changed_at) > IDLE_S
        rebuilding_s = counts[HOT] / REBUILT_ROWS_S
        pause_s = max(EXCHANGE_EVERY_S, rebuilding_s / (IDLE_REBUILDING_SHARE if idle else REBUILDING_SHARE))
        if now - due.exchanged_at < pause_s:
            return False
        view, heat = heated(collection)
        warm = np.flatnonzero(view.alive & (view.place == WARM) & (view.node != KEPT_OUT))
        more = min(self._moves.worth_anew(collection), len(warm))
        pairs = min(len(warm), counts[HOT])
        warm = leading(warm, -heat, pairs + more)
        hot = leading(np.flatnonzero(view.alive & (view.place == HOT)), heat, pairs)
        pairs = min(len(warm), len(hot))  # some may have ended since they were counted
        count = int(np.count_nonzero(heat[warm[:pairs]] > heat[hot[:pairs]] + CLEARLY))
        worth = max((IDLE_EXCHANGED_SHARE if idle else EXCHANGED_SHARE) * counts[HOT], MERGE_ROWS)
        if count < worth and more < max(EXCHANGED_SHARE * counts[HOT], MERGE_ROWS):
            return False
        due.exchanged_at = now
        hotter, colder = view.rows[warm[: count + more]], view.rows[hot[:count]]
        del view, heat, warm, hot  # a table that grows meanwhile would be in memory twice
        self._moves.exchange(collection, hotter, colder)
        return True

    def discard(self, collection: Collection) -> bool:
        """The first shard of which most rows have ended."""
        due = self._due.of(collection)
        now = time.monotonic()
        if now - due.discarded_at < DISCARD_EVERY_S and not self._due.hurried(collection):
            return False
        due.discarded_at = now
        view = collection.table.view()
        groups = view.group[view.alive & (view.group >= 0)]
        for entry in collection.shards.entries:
            numbers = collection.shards.numbers_of(entry.name)
            live = np.count_nonzero((groups >= numbers.start) & (groups < numbers.stop))
            if live < (1 - DEAD_SHARE) * entry.rows:
                self._moves.abandon_shard(collection, entry.name, "")
                return True
        return False

    def expire(self, collection: Collection) -> bool:
        """Rows whose time has come, some thousands at a time. The commands are on their way when this returns."""
        due = self._due.of(collection)
        now = time.monotonic()
        if now - due.expired_at < EXPIRE_EVERY_S and not self._due.hurried(collection):
            return False
        due.expired_at = now
        now_ms = clock.now_ms()
        view = collection.table.view()
        over = np.flatnonzero(view.alive & (view.expires_ms <= now_ms))[: 32 * EXPIRE_ROWS]
        for start in range(0, len(over), EXPIRE_ROWS):
            self._submit(Expire(collection, view.rows[over[start : start + EXPIRE_ROWS]].tolist(), now_ms))
        self._counts.expired += len(over)
        return False

    def trim(self, collection: Collection) -> bool:
        """`dead` entries that neither the full text nor the archive needs any more are removed, by commands."""
        due = self._due.of(collection)
        now = time.monotonic()
        if now - due.trimmed_at < TRIM_EVERY_S and not self._due.hurried(collection):
            return False
        due.trimmed_at = now
        if collection.text is not None and not collection.text.is_usable:
            return False  # what it lacks is known when there is one
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

    def snapshot(self, collection: Collection) -> bool:
        """Of the graph, when enough of it has changed, it is quiet, or somebody waits."""
        due = self._due.of(collection)
        graph, seq = collection.graph, collection.published
        if graph is None or due.snapshot_seq == seq:
            return False
        now = time.monotonic()
        changed = max(len(graph) - due.snapshot_nodes, seq - due.snapshot_seq)
        enough = changed > SNAPSHOT_SHARE * len(graph) and now - due.snapshot_at > SNAPSHOT_EVERY_S
        idle = now - collection.changed_at > SNAPSHOT_IDLE_S and now - due.snapshot_at > SNAPSHOT_IDLE_S
        if not (enough or idle or self._due.hurried(collection)):
            return False
        self._moves.save_snapshot(collection)
        return True

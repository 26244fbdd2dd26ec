"""Table: what memory holds of every live row of a collection, in numpy columns by slot.

Slots are in the order of row numbers, so a row's slot is found by bisection. A row that ended keeps its slot, with `alive`
false, until the table is made anew (`kept`). Where a row's vector is:

    FRESH   in the delta                  HOT    in the graph, at `node`
    LOOSE   read from RocksDB             WARM   read from a shard, where it is in row group `group`

and RocksDB has all of them. Rows that are LOOSE, WARM or HOT have a sketch. A row that was promoted keeps its `group` (a
shard never changes, and neither does a row), so that to demote it again is a change of `place` alone; -1: it is in no shard.

Heat is access count x 0.99^(hours since the last access). All heats decay alike, so rows are ordered by
ln(count) - ln(0.99) x (hour of the last access), which never needs to be computed again (`heat_of`).

A table is made anew aside, without the lock: `kept` and `follow` copy while the writer goes on, the old table notes which
rows end from `watch` on, and `end_late` ends them in the new one, under the lock, before that takes the old one's place. Places,
nodes and groups of rows that are copied must stay meanwhile; accesses that come after a row was copied are lost.

Large columns have room for four times the rows: what is not used yet takes addresses and no memory, for the kernel gives pages
when they are first written. To grow, each column is copied; views of before keep the old ones until they are done, so that for
a moment all may be there twice (`growing`, which is kept back shortly before). That is rare.

Threads: the writer's thread appends and ends rows, the keeper's moves them, and views are taken, all under the collection's
lock. A view is read without it: arrays are replaced by copies when they grow, and what is appended lies beyond the view. Places
in a view stay what they were at its moment (`move` works on a copy), so that a search looks for each row at one place, with
the delta and the graph of the same moment; only `alive` goes on to tell which rows have ended since.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane import allocator

FRESH, HOT, LOOSE, WARM = 0, 1, 2, 3
KEPT_OUT = -2  # the node of a row that is not HOT because the graph has enough of its copies; else -1
NEVER_MS = int(np.iinfo(np.int64).max)
_DECAY = -math.log(0.99)
_FIRST = 256
SCANNED = 65_536
LARGE, HUGE = 4 << 20, 2 << 20  # an array of so many bytes gets pages of so many, where the kernel has them
PAGE = 4096
WIDE_FROM = 32_768  # slots, whose columns the C library gets from the kernel each by itself
SOON = 64  # when all but such a part of the slots are used, the table grows soon
_COLUMNS = np.dtype(
    [
        ("rows", np.uint64),
        ("alive", np.bool_),
        ("place", np.uint8),
        ("node", np.int32),
        ("group", np.int32),
        ("expires_ms", np.int64),
        ("factors", np.float32),  # of the sketch
        ("bases", np.float32),  # of the sketch too
        ("accesses", np.float32),
        ("hour", np.float32),  # of the last access, since 1970
        ("id_end", np.int64),
    ]
)

Slots = NDArray[np.int64]
Floats = NDArray[np.float32]
Rows = NDArray[np.uint64]


class TableView(Struct, frozen=True, kw_only=True):
    """The columns of the first n slots, as searches read them."""

    rows: Rows
    alive: NDArray[np.bool_]
    place: NDArray[np.uint8]
    node: NDArray[np.int32]
    group: NDArray[np.int32]
    expires_ms: NDArray[np.int64]
    sketches: NDArray[np.uint64]  # shape [n, words]
    factors: Floats
    bases: Floats
    counts: tuple[int, ...]  # live rows by place

    def __len__(self) -> int:
        return len(self.rows)

    def live(self, now_ms: int) -> NDArray[np.bool_]:
        """Which slots hold a row that has neither ended nor expired."""
        live: NDArray[np.bool_] = self.alive & (self.expires_ms > now_ms)
        return live

    def live_slots(self) -> Slots:
        """The slots of rows that have not ended, rising."""
        # Of a copy: numpy counts first and collects then, and gives what it finds in memory for rows that ended meanwhile.
        return np.flatnonzero(self.alive.copy())

    def live_of(self, slots: Slots, now_ms: int) -> NDArray[np.bool_]:
        """The same for some slots, shape [n]; false for -1."""
        live: NDArray[np.bool_] = (slots >= 0) & self.alive[slots] & (self.expires_ms[slots] > now_ms)
        return live

    def first_at(self, place: int, count: int) -> Slots:
        """The first `count` slots of live rows at a place, rising."""
        found, have = [np.empty(0, np.int64)], 0
        for start in range(0, len(self.rows), SCANNED):
            part = slice(start, start + SCANNED)
            found.append(start + np.flatnonzero((self.place[part] == place) & self.alive[part]))
            have += len(found[-1])
            if have >= count:
                break
        return np.concatenate(found)[:count]

    def any_waits(self) -> bool:
        """Whether some live row that is LOOSE may become HOT: it is none of those that are kept out."""
        for start in range(0, len(self.rows), SCANNED):
            loose = start + np.flatnonzero(self.place[start : start + SCANNED] == LOOSE)
            if (self.alive[loose] & (self.node[loose] != KEPT_OUT)).any():
                return True
        return False

    def slots_of(self, rows: Rows) -> Slots:
        """The slots of row numbers, shape [n]; -1 for those that have none."""
        if not len(self.rows):
            return np.full(len(rows), -1, np.int64)
        slots = np.searchsorted(self.rows, rows)
        found = self.rows.take(slots, mode="clip") == rows
        return slots if found.all() else np.where(found, slots, -1)


class Table:
    """Columns of a collection whose sketches have `words` 64-bit words."""

    def __init__(self, words: int) -> None:
        self._count = 0
        self._columns = {name: np.empty(0, _COLUMNS[name]) for name in _COLUMNS.names or ()}
        self._sketches = np.empty((0, words), np.uint64)
        self._ids = bytearray()
        self._counts = [0, 0, 0, 0]
        self._version = 0  # other when rows have come, ended or moved
        self._view: tuple[int, TableView] | None = None
        self._places_seen = False  # whether some view shares the column of places
        self._late: list[Slots] | None = None  # slots whose row has ended since `watch`
        self.ended = 0  # slots whose row has ended

    def __len__(self) -> int:
        return self._count

    @property
    def live(self) -> int:
        """Rows that have not ended."""
        return self._count - self.ended

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken."""
        return sum(_taken(column, self._count) for column in (*self._columns.values(), self._sketches)) + len(self._ids)

    def view(self) -> TableView:
        """The columns as they are now."""
        version, cached = self._version, self._view
        if cached is not None and cached[0] == version:
            return cached[1]
        count = self._count
        columns = self._columns
        self._places_seen = True
        view = TableView(
            rows=columns["rows"][:count],
            alive=columns["alive"][:count],
            place=columns["place"][:count],
            node=columns["node"][:count],
            group=columns["group"][:count],
            expires_ms=columns["expires_ms"][:count],
            sketches=self._sketches[:count],
            factors=columns["factors"][:count],
            bases=columns["bases"][:count],
            counts=tuple(self._counts),
        )
        self._view = version, view  # who asks without the lock may come too late: then it is nobody else's
        return view

    def growth(self, count: int) -> int:
        """About how many bytes of memory `count` more rows take, ids aside."""
        return count * self._row_bytes

    @property
    def growing(self) -> int:
        """Bytes of memory that it will soon take for a moment, to grow."""
        room = len(self._columns["rows"])
        return self._count * self._row_bytes if room - self._count <= room // SOON else 0

    @property
    def _row_bytes(self) -> int:
        return _COLUMNS.itemsize + 8 * self._sketches.shape[1]

    def _size_for(self, needed: int) -> int:
        return 4 * needed if needed >= WIDE_FROM else max(_FIRST, needed + needed // 8)

    def append(self, rows: Rows, ids: Sequence[str], expires_ms: Sequence[int | None], hour: float) -> Slots:
        """Add rows, whose numbers rise above all that are here, as FRESH. Returns their slots."""
        start, end = self._count, self._count + len(rows)
        if end > len(self._columns["rows"]):
            self._grow(end)
        columns, new = self._columns, slice(start, end)
        columns["rows"][new] = rows
        columns["alive"][new] = True
        columns["place"][new] = FRESH
        columns["node"][new] = -1
        columns["group"][new] = -1
        columns["expires_ms"][new] = [NEVER_MS if at is None else at for at in expires_ms]
        columns["accesses"][new] = 1
        columns["hour"][new] = hour
        for slot, id_ in enumerate(ids, start):
            self._ids += id_.encode()
            columns["id_end"][slot] = len(self._ids)
        self._count = end
        self._counts[FRESH] += len(rows)
        self._version += 1
        return np.arange(start, end)

    def _grow(self, needed: int) -> None:
        self._take_size(self._size_for(needed))

    def _take_size(self, size: int) -> None:
        self._view, self._places_seen = None, False
        self._sketches = self._larger(self._sketches, size)
        for name, column in self._columns.items():
            self._columns[name] = self._larger(column, size)  # `ids` reads it without the lock

    def _larger(self, column: NDArray[Any], size: int) -> NDArray[Any]:
        grown = np.zeros((size, *column.shape[1:]), column.dtype)
        grown[: self._count] = column[: self._count]
        return grown

    def ids(self, slots: Slots) -> list[str]:
        """The ids of the rows at `slots`."""
        ends, ids = self._columns["id_end"], self._ids
        starts = np.where(slots > 0, ends[slots - 1], 0).tolist()
        return [ids[start:end].decode() for start, end in zip(starts, ends[slots].tolist(), strict=True)]

    def end(self, slots: Slots) -> None:
        """Rows ended. They were alive."""
        self._count_out(slots)
        self._columns["alive"][slots] = False
        self.ended += len(slots)
        if self._late is not None:
            self._late.append(slots)

    def move(self, slots: Slots, place: int) -> None:
        """Rows have another place."""
        self._count_out(slots)
        if self._places_seen:
            self._columns["place"] = self._larger(self._columns["place"], len(self._columns["place"]))
            self._places_seen = False
        self._columns["place"][slots] = place
        self._counts[place] += int(np.count_nonzero(self._columns["alive"][slots]))
        self._version += 1

    def _count_out(self, slots: Slots) -> None:
        """Live rows leave the places where they are counted."""
        places = self._columns["place"][slots][self._columns["alive"][slots]]
        for place, count in enumerate(np.bincount(places, minlength=4).tolist()):
            self._counts[place] -= count
        self._version += 1

    def set_nodes(self, slots: Slots, nodes: NDArray[np.int64] | int) -> None:
        """The nodes of rows in the graph; KEPT_OUT or -1 of others."""
        self._columns["node"][slots] = nodes

    def set_groups(self, slots: Slots, groups: NDArray[np.int64] | int) -> None:
        """The row groups in which rows are; -1: in none."""
        self._columns["group"][slots] = groups

    def accessed(self) -> tuple[Floats, Floats]:
        """Of each slot, how often its row was read, and the hour of the last time; shape [n]. Views: rows may be read on."""
        return self._columns["accesses"][: self._count], self._columns["hour"][: self._count]

    def set_accessed(self, slots: Slots, accesses: Floats, hours: Floats) -> None:
        """What `accessed` gave, for some slots."""
        self._columns["accesses"][slots] = accesses
        self._columns["hour"][slots] = hours

    def set_sketches(self, slots: Slots, sketches: NDArray[np.uint64], factors: Floats, bases: Floats) -> None:
        """The sketches [n, words] of rows, with their factors [n] and bases [n]."""
        self._sketches[slots] = sketches
        self._columns["factors"][slots] = factors
        self._columns["bases"][slots] = bases

    def touch(self, slots: Slots, hour: float) -> None:
        """Rows were read."""
        np.add.at(self._columns["accesses"], slots, 1)
        self._columns["hour"][slots] = hour

    # To be made anew

    def watch(self) -> None:
        """Note the rows that end from now on, for `end_late`."""
        self._late = []

    def unwatch(self) -> None:
        """Note them no more."""
        self._late = None

    def kept(self, slots: Slots) -> Table:
        """A table of these slots alone, rising. Without the lock."""
        table = Table(self._sketches.shape[1])
        table._take_size(table._size_for(len(slots)))
        table._copy(self, slots)
        return table

    def follow(self, old: Table, start: int, end: int) -> None:
        """Add the slots of `old` from `start` to `end`, which are beyond those that it was made of. Without the lock."""
        self._copy(old, np.arange(start, end))

    def end_late(self, old: Table) -> None:
        """The rows end that ended in `old` since `watch`. Under the lock."""
        for late in old._late or ():
            slots = self.view().slots_of(old._columns["rows"][late])
            slots = slots[slots >= 0]
            self.end(slots[self._columns["alive"][slots]])  # those that were copied after they ended are not

    def _copy(self, old: Table, slots: Slots) -> None:
        """Add slots of `old`, a range of it at a time: little is there twice, and nothing as large as all ids."""
        for first in range(0, int(slots[-1]) + 1 if len(slots) else 0, SCANNED):
            lower, upper = np.searchsorted(slots, (first, first + SCANNED))
            if lower < upper:
                self._copy_range(old, slots[lower:upper])

    def _copy_range(self, old: Table, slots: Slots) -> None:
        start, end = self._count, self._count + len(slots)
        if end > len(self._columns["rows"]):
            self._grow(end)
        new = slice(start, end)
        for name, column in self._columns.items():
            column[new] = old._columns[name][slots]
        self._sketches[new] = old._sketches[slots]
        lengths = self._take_ids(old, slots)
        self._columns["id_end"][new] = len(self._ids) - int(lengths.sum()) + np.cumsum(lengths)
        alive = self._columns["alive"][new]
        self.ended += int(len(slots) - np.count_nonzero(alive))
        for place, count in enumerate(np.bincount(self._columns["place"][new][alive], minlength=4).tolist()):
            self._counts[place] += count
        self._count = end
        self._version += 1

    def _take_ids(self, old: Table, slots: Slots) -> Slots:
        """Add the ids of slots that lie near each other. Returns the length of each, bytes."""
        first, last = int(slots[0]), int(slots[-1])
        ends = old._columns["id_end"]
        bounds = np.concatenate([ends[first - 1 : first] if first else np.zeros(1, np.int64), ends[first : last + 1]])
        # A copy: bytes that numpy looks at could not grow.
        letters = np.frombuffer(old._ids[int(bounds[0]) : int(bounds[-1])], np.uint8)
        lengths = np.diff(bounds)
        wanted = np.zeros(len(lengths), np.bool_)
        wanted[slots - first] = True
        self._ids += letters[np.repeat(wanted, lengths)].tobytes()
        taken: Slots = lengths[wanted]
        return taken


def _taken(column: NDArray[Any], count: int) -> int:
    """Bytes of memory that a column of zeros takes of which `count` entries were written."""
    page = HUGE if column.nbytes >= LARGE else PAGE
    return (
        column.nbytes
        if column.nbytes < allocator.LARGE
        else min(column.nbytes, -(-count * column[:1].nbytes // page) * page)
    )


def heat_of(accesses: Floats, hours: Floats) -> NDArray[np.float64]:
    """What orders rows from the coldest to the hottest, shape [n], by what `accessed` gave.

    Takes milliseconds for a million rows: not under the lock.
    """
    order: NDArray[np.float64] = np.log(accesses, dtype=np.float64)
    order += _DECAY * hours
    return order

"""The nearest rows to a vector, over all places where a collection's vectors are.

Every score is computed from a stored vector; sketches and the graph only say which vectors to look at:

    FRESH   all of the delta                       HOT    the graph; with a filter that few rows match, those rows alone
    LOOSE   the best by sketch, from RocksDB       WARM   the row groups that hold the best by sketch, whole

What is loose and what is warm is looked for as one: of few rows at either place, few are read. Where the graph gives fewer rows
than there are, its answer is not taken: the way to the others is cut off, and the best of them by sketch are compared.

With `exact`, all rows that are allowed are compared. Reads one moment's view; runs in a thread; does not hold the GIL for
long. When the deadline passes, what was not read is left out and the answer says that it is not complete.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane.collections.view import CollectionView
from dataplane.hot.graph import EF_SEARCH, Graph, exact_scores
from dataplane.hot.table import FRESH, HOT, LOOSE, WARM

Slots = NDArray[np.int64]
Rows = NDArray[np.uint64]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

EXACT_ROWS = 4096  # hot rows that match a filter and are all compared: two milliseconds at 256 dimensions
GRAPH_SHARE = 0.3  # from this share of matching rows on, the graph is searched and its answer filtered
MOSTLY_MASKED = 0.5  # of the graph: the way to what is left leads through too many that have ended
CANDIDATES = 20  # rows a hit that the sketches propose
LEAST_CANDIDATES = 200
WARM_CANDIDATES = 5  # less: their whole groups are read
LEAST_WARM_CANDIDATES = 50
SURE_BITS = 256  # of a sketch; with fewer, as many more candidates
CHUNK = 1024
FEW = 4  # times as many rows as are wanted
SCANNED = 16_384  # slots that are looked at in one step, so that what a search takes for a moment stays small


@dataclass(slots=True)
class Found:
    """Slots and their scores, best first."""

    slots: Slots
    scores: Floats
    places: set[int] = field(default_factory=set)
    warm_rows_read: int = 0
    complete: bool = True
    missed: bool = False  # whether a row that is there had no stored vector: it is being replaced, or is damaged

    @classmethod
    def nothing(cls) -> Found:
        """No rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.float32))


class Wanted(Struct, frozen=True, kw_only=True):
    """What is looked for. `matching`: slots that a filter lets through, None: all; `deadline`: of time.monotonic()."""

    vector: Floats
    k: int
    matching: Mask | None
    exact: bool
    now_ms: int
    deadline: float


class _Search:
    """One search on its way."""

    def __init__(self, view: CollectionView, wanted: Wanted) -> None:
        self.view = view
        self.wanted = wanted
        self.vector, self.k = wanted.vector, wanted.k
        self.found = Found.nothing()
        self.slots: list[Slots] = []
        self.scores: list[Floats] = []

    def add(self, place: int, slots: Slots, scores: Floats, good: Mask | None = None) -> None:
        """Take the best `k` of some rows; slots below 0 and rows that are not allowed (`good`, if known) are left out."""
        self.found.places.add(place)
        good = self.allowed(slots) if good is None else good
        if not good.all():
            slots, scores = slots[good], scores[good]
        if len(slots) > self.k:
            best = np.argpartition(-scores, self.k - 1)[: self.k]
            slots, scores = slots[best], scores[best]
        self.slots.append(slots)
        self.scores.append(scores)

    def add_rows(self, place: int, rows: Rows, scores: Floats) -> None:
        """The same by row numbers. Where most may be in the answer, the slots of the best alone are looked up."""
        if self.wanted.matching is None and len(rows) > FEW * self.k:
            best = np.argpartition(-scores, FEW * self.k)[: FEW * self.k]
            slots = self.view.table.slots_of(rows[best])
            good = self.allowed(slots)
            if np.count_nonzero(good) >= self.k:
                self.add(place, slots, scores[best], good)
                return
        self.add(place, self.view.table.slots_of(rows), scores)

    def allowed(self, slots: Slots) -> Mask:
        """Which slots hold a row that may be in the answer, shape [n]; false for -1."""
        live = self.view.table.live_of(slots, self.wanted.now_ms)
        if self.wanted.matching is not None and len(self.wanted.matching):
            live &= self.wanted.matching[slots]
        return live

    def at(self, place: int) -> Slots:
        """All slots at a place that hold a row that may be in the answer."""
        places, found = self.view.table.place, [np.empty(0, np.int64)]
        for start in range(0, len(places), SCANNED):
            slots = start + np.flatnonzero(places[start : start + SCANNED] == place)
            found.append(slots[self.allowed(slots)])
        return np.concatenate(found)

    def near(self, count: int) -> Slots:
        """The `count` loose or warm slots that hold a row that may be in the answer and are probably the best, best first."""
        places, best = self.view.table.place, Best(self.view, self.vector, count)
        for start in range(0, len(places), SCANNED):
            part = places[start : start + SCANNED]
            slots = start + np.flatnonzero((part == LOOSE) | (part == WARM))
            best.add(slots[self.allowed(slots)])
        return best.slots()

    def candidates(self, a_hit: int, least: int) -> int:
        """How many rows the sketches should propose."""
        return max(a_hit * self.k, least) * max(SURE_BITS // len(self.vector), 1)

    def late(self) -> bool:
        """Whether the deadline has passed."""
        if time.monotonic() < self.wanted.deadline:
            return False
        self.found.complete = False
        return True


def nearest(view: CollectionView, wanted: Wanted) -> Found:
    """The `k` allowed rows with the best scores."""
    search = _Search(view, wanted)
    counts = view.table.counts
    if len(view.delta):
        _fresh(search)
    if view.graph is not None and counts[HOT]:
        _hot(search, view.graph)
    if counts[LOOSE] or counts[WARM]:
        _far(search)
    return _merged(search)


def _fresh(search: _Search) -> None:
    view, rows = search.view, search.view.delta.rows
    scores = np.concatenate([exact_scores(search.vector, vectors, view.metric) for _, vectors in view.delta.parts])
    search.add_rows(FRESH, rows, scores)


def _hot(search: _Search, graph: Graph) -> None:
    view, few = search.view, search.wanted.matching is not None
    matching = len(graph)
    thin = graph.masked > MOSTLY_MASKED * len(graph)  # until the keeper has built it anew
    if few or thin or search.wanted.exact:
        slots = search.at(HOT)
        matching = len(slots)
        if search.wanted.exact or matching < max(EXACT_ROWS, GRAPH_SHARE * len(graph)):
            _hot_by_sketch(search, graph, slots)
            return
    wanted = min(int(search.k * len(graph) / matching * 1.5) + 8 if few else search.k, len(graph))
    while True:
        rows, scores = graph.search(search.vector, wanted, ef=max(EF_SEARCH, 2 * wanted if few else wanted))
        slots = view.table.slots_of(rows)
        good = search.allowed(slots)
        enough = np.count_nonzero(good) >= min(search.k, matching)
        if enough or len(rows) < wanted or wanted >= len(graph):
            break
        wanted = min(4 * wanted, len(graph))  # many that are near have ended or do not match
    if not enough and np.count_nonzero(good) < min(search.k, len(hot := search.at(HOT))):
        _hot_by_sketch(search, graph, hot)  # from where the search ended, no link leads to the others
        return
    search.add(HOT, slots, scores, good)


def _hot_by_sketch(search: _Search, graph: Graph, slots: Slots) -> None:
    """Hot rows: all of a few, with `exact` of any number, or the best by sketch."""
    if not search.wanted.exact and len(slots) > EXACT_ROWS:
        slots = best_by_sketch(search.view, search.vector, slots, search.candidates(CANDIDATES, LEAST_CANDIDATES))
    for start in range(0, len(slots), SCANNED):
        if start and search.late():
            return
        part = slots[start : start + SCANNED]
        search.add(HOT, part, graph.score(search.vector, search.view.table.node[part].astype(np.int64)))


def _far(search: _Search) -> None:
    """What is not in memory: the rows at both places are one list, of which the best are read."""
    if search.wanted.exact or search.view.sketcher is None:
        loose, warm = search.at(LOOSE), search.at(WARM)
    else:
        near = search.near(search.candidates(CANDIDATES, LEAST_CANDIDATES))
        places = search.view.table.place[near]
        loose = np.sort(near[places == LOOSE])
        warm = near[places == WARM][: search.candidates(WARM_CANDIDATES, LEAST_WARM_CANDIDATES)]
    _loose(search, loose)
    _warm(search, warm)


def _loose(search: _Search, slots: Slots) -> None:
    view = search.view
    for start in range(0, len(slots), CHUNK):
        if search.late():
            return
        rows, vectors = view.stored_vectors(view.table.rows[slots[start : start + CHUNK]])
        search.found.missed |= len(rows) < len(slots[start : start + CHUNK])
        search.add_rows(LOOSE, rows, exact_scores(search.vector, vectors, view.metric))


def _warm(search: _Search, slots: Slots) -> None:
    view = search.view
    found: list[tuple[Rows, Floats]] = []
    waiting = 0

    def add_found() -> None:
        if found:
            search.add_rows(WARM, *map(np.concatenate, zip(*found, strict=True)))
            found.clear()

    for group in np.unique(view.table.group[slots]).tolist():
        if search.late():
            break
        rows, vectors = view.group_vectors(group)
        found.append((rows, exact_scores(search.vector, vectors, view.metric)))
        waiting += len(rows)
        search.found.warm_rows_read += len(rows)
        if waiting >= SCANNED:
            add_found()
            waiting = 0
    add_found()


class Best:
    """Keeps the `count` slots that are probably the best of those that are added, a part at a time."""

    def __init__(self, view: CollectionView, vector: Floats, count: int) -> None:
        assert view.sketcher is not None
        self._table, self._count = view.table, count
        self._query = view.sketcher.query(vector)
        self._slots: list[Slots] = [np.empty(0, np.int64)]
        self._estimates: list[Floats] = [np.empty(0, np.float32)]
        self._waiting = 0
        self._least: float | None = None  # of the best of those that were compared, once they were `count`

    def add(self, slots: Slots) -> None:
        """Look at some slots more."""
        table = self._table
        sketches = table.sketches.take(slots, axis=0)
        estimates = self._query.estimate(sketches, table.factors[slots], table.bases[slots])
        if self._least is not None:
            better = estimates > self._least
            slots, estimates = slots[better], estimates[better]
        self._slots.append(slots)
        self._estimates.append(estimates)
        self._waiting += len(self._slots[-1])
        if self._waiting > 2 * self._count:
            self._reduce()

    def _reduce(self) -> None:
        slots, estimates = np.concatenate(self._slots), np.concatenate(self._estimates)
        if len(slots) > self._count:
            best = np.argpartition(-estimates, self._count - 1)[: self._count]
            slots, estimates = slots[best], estimates[best]
            self._least = float(estimates.min())
        self._slots, self._estimates, self._waiting = [slots], [estimates], 0

    def slots(self) -> Slots:
        """The best of all, best first."""
        self._reduce()
        return self._slots[0][np.argsort(-self._estimates[0], kind="stable")]


def best_by_sketch(view: CollectionView, vector: Floats, slots: Slots, count: int) -> Slots:
    """The `count` of `slots` that are probably the best, best first. All, as they came, if there are no more, or no sketches."""
    if len(slots) <= count or view.sketcher is None:
        return slots
    best = Best(view, vector, count)
    for start in range(0, len(slots), SCANNED):
        best.add(slots[start : start + SCANNED])
    return best.slots()


def _merged(search: _Search) -> Found:
    """The best of all places. A row that was on its way from one to another may have been found twice."""
    found = search.found
    if not search.slots:
        return found
    slots, scores = search.slots[0], search.scores[0]
    if len(search.slots) > 1:
        slots, first = np.unique(np.concatenate(search.slots), return_index=True)
        scores = np.concatenate(search.scores)[first]
    best = np.argsort(-scores, kind="stable")[: search.k]
    found.slots, found.scores = slots[best], scores[best]
    return found

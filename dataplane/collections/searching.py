"""A search of a collection: filter, nearest vectors, full text, fusion, and the hits with their content. Runs in a thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane import clock
from dataplane.collections.collection import Collection
from dataplane.collections.fusion import reciprocal_rank
from dataplane.collections.meanwhile import ATTEMPTS, caught_up, ended_since, followed
from dataplane.collections.nearest import Found, Wanted, best_by_sketch, nearest
from dataplane.collections.rowcodec import stored_rows
from dataplane.collections.view import CollectionView
from dataplane.errors import InvalidInput
from dataplane.filters import Filter, matches
from dataplane.hot.attributes import AttributeColumns
from dataplane.hot.table import FRESH, HOT, LOOSE, WARM
from dataplane.rows import Hit, Location, SearchQuery, SearchResult, Tier
from dataplane.truth import keys
from dataplane.truth.records import RowRecord

Rows = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Slots = NDArray[np.int64]
Floats = NDArray[np.float32]

TIERS: Mapping[tuple[bool, bool], tuple[Tier, ...]] = MappingProxyType(
    {
        (False, False): (),
        (True, False): ("hot",),
        (False, True): ("warm",),
        (True, True): ("hot", "warm"),
    }
)
_TIER: Mapping[int, Tier] = MappingProxyType({FRESH: "hot", HOT: "hot", LOOSE: "warm", WARM: "warm"})
FUSED = 4  # times as many rows of each list are fused as are wanted
LOCATED = 50


class Searched(Struct, frozen=True):
    """The answer, and the rows that were in it."""

    result: SearchResult
    rows: Rows


def search(collection: Collection, query: SearchQuery) -> Searched:
    """Answer a query. Raises InvalidInput, Damaged."""
    began = time.monotonic()
    words = query.text or None
    found, text, up_to_date, wanted = Found.nothing(), list[tuple[int, float]](), True, None
    if words is not None:  # it may wait for the index, and needs nothing that the keeper would take away
        text, up_to_date = _text(collection, collection.view(), query, _wide(query))
    turn = collection.readers.enter()
    try:
        view = collection.view()
        if query.vector is not None:
            wanted = Wanted(
                vector=collection.ready_one(query.vector),
                k=_wide(query),
                matching=None if query.filter is None else view.attributes.mask(query.filter, len(view.table)),
                exact=query.exact,
                now_ms=clock.now_ms(),
                deadline=began + query.deadline_s,
            )
            view, found = caught_up(collection, wanted, query.filter, view, nearest(view, wanted))
    finally:
        collection.readers.leave(turn)
    if words is not None:
        view, found, text = _together(collection, query, view, wanted, found, text)
    slots, scores = _ranked(view, query, found, text)
    hits = _hits(collection, view, query, slots, scores)
    result = SearchResult(
        hits=tuple(hits),
        tiers=TIERS[bool(found.places & {FRESH, HOT}), bool(found.places & {LOOSE, WARM})],
        complete=found.complete and up_to_date,
        warm_rows_read=found.warm_rows_read,
        took_ms=(time.monotonic() - began) * 1000,
    )
    if not found.warm_rows_read and words is None:
        collection.searched(result.took_ms / 1000)
    return Searched(result, view.table.rows[slots])


def _wide(query: SearchQuery) -> int:
    """How many rows of each list."""
    return FUSED * query.k if query.text and query.vector is not None else query.k


def _together(
    collection: Collection,
    query: SearchQuery,
    view: CollectionView,
    wanted: Wanted | None,
    found: Found,
    text: list[tuple[int, float]],
) -> tuple[CollectionView, Found, list[tuple[int, float]]]:
    """What both found, in a view of one moment, and that view."""
    for _ in range(ATTEMPTS):
        now, text = followed(collection, query.filter, text)
        if wanted is None:
            return now, found, text
        with collection.readers.inside():
            view, found = caught_up(collection, wanted, query.filter, view, found)
        if view.ends == now.ends:
            break
    return view, found, text


def locate(collection: Collection, query: SearchQuery, *, prewarm: bool) -> Location:
    """Where the best rows for a query's vector probably are; with `prewarm`, those on the disk begin to be read."""
    if query.vector is None:
        raise InvalidInput("to locate an answer takes a vector.", param="vector")
    turn = collection.readers.enter()
    try:
        view = collection.view()
        vector = collection.ready_one(query.vector)
        allowed = view.table.live(clock.now_ms()) & (view.table.place != FRESH)
        if query.filter is not None:
            allowed &= view.attributes.mask(query.filter, len(allowed))
        best = best_by_sketch(view, vector, np.flatnonzero(allowed), max(LOCATED, 5 * query.k))
        places = view.table.place[best]
        groups = np.unique(view.table.group[best[places == WARM]]).tolist()
        size = collection.shards.head_bytes(groups)
        if prewarm:
            collection.shards.prewarm(groups)
    finally:
        collection.readers.leave(turn)
    hot = int(np.count_nonzero(places == HOT))
    return Location(hot_rows=hot + len(view.delta), warm_rows=len(best) - hot, warm_groups=len(groups), warm_bytes=size)


def _text(
    collection: Collection, view: CollectionView, query: SearchQuery, limit: int
) -> tuple[list[tuple[int, float]], bool]:
    """The rows that have words of the query's text, and whether that was all. Some may have ended since the view was taken."""
    if collection.text is None:
        raise InvalidInput(f"{collection.name} has no full text: it was made with text=False.", param="text")

    passing = _Passing(query.filter) if query.filter is not None else None

    def known(found: NDArray[np.int64]) -> Mask:
        rows, now = found.astype(np.uint64), collection.view()
        slots = now.table.slots_of(rows)
        there = now.table.live_of(slots, clock.now_ms())
        there |= (slots >= 0) & np.isin(rows, ended_since(collection, view))
        if passing is not None and len(now.table):
            there &= passing.mask(now)[slots]
        return there

    deadline = time.monotonic() + query.deadline_s
    return collection.text.search(query.text or "", limit, known, deadline)


class _Passing:
    """Which slots of a view pass a filter. The full text asks for it many times in a search, mostly of the same rows."""

    __slots__ = ("_attributes", "_filter", "_mask")

    def __init__(self, filter_: Filter) -> None:
        self._filter = filter_
        self._attributes: AttributeColumns | None = None
        self._mask: Mask = np.empty(0, np.bool_)

    def mask(self, view: CollectionView) -> Mask:
        """Shape [slots]. Made again only where the view has more rows, or columns that were made anew: no row changes."""
        if view.attributes is not self._attributes or len(view.table) != len(self._mask):
            self._attributes, self._mask = view.attributes, view.attributes.mask(self._filter, len(view.table))
        return self._mask


def _ranked(
    view: CollectionView, query: SearchQuery, found: Found, text: list[tuple[int, float]]
) -> tuple[Slots, Floats]:
    """Slots and scores, best first."""
    if not query.text:
        return found.slots[: query.k], found.scores[: query.k]
    ranked = text
    if query.vector is not None:
        vectors = zip(view.table.rows[found.slots].tolist(), found.scores.tolist(), strict=True)
        ranked = reciprocal_rank(list(vectors), text)
    rows = np.array([row for row, _ in ranked[: query.k]], np.uint64)
    return view.table.slots_of(rows), np.array([score for _, score in ranked[: query.k]], np.float32)


def _hits(collection: Collection, view: CollectionView, query: SearchQuery, slots: Slots, scores: Floats) -> list[Hit]:
    """With their content. A row that was deleted meanwhile is left out; one that was replaced has its new content."""
    ranked = zip(scores.tolist(), [_TIER[place] for place in view.table.place[slots].tolist()], strict=True)
    if not query.fetch:
        ids = view.ids_of(slots)
        return [Hit(id=id_, score=score, tier=tier) for id_, (score, tier) in zip(ids, ranked, strict=True)]
    found = collection.row_records(view.table.rows[slots].tolist())
    if gone := [at for at, record in enumerate(found) if record is None]:
        wanted = [collection.scope + keys.name(id_) for id_ in view.ids_of(slots[gone])]
        for at, row in zip(gone, stored_rows(collection, wanted, vectors=False), strict=True):
            if row is not None and (query.filter is None or matches(query.filter, row.attributes)):
                found[at] = RowRecord(row.id, row.text, row.attributes, row.created_ms, row.expires_ms)
    return [
        Hit(id=record.id, score=score, tier=tier, text=record.text, attributes=record.attributes)
        for record, (score, tier) in zip(found, ranked, strict=True)
        if record is not None
    ]

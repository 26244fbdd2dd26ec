"""Rows that are replaced while a search goes on.

A search reads one moment's view, and leaves out what has ended since: of a row that was replaced, it would find neither the
old version nor the new one. So where rows have ended since the view was taken, it looks at the rows that have come since, too,
until nothing ends any more (`caught_up`); and a row that the full text names and that has ended is followed to the row with
its id (`followed`). A row that is there all the time is thus found, in one version.
"""

from __future__ import annotations

import itertools
import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from dataplane.collections.collection import Collection
from dataplane.collections.nearest import Found, Wanted, nearest
from dataplane.collections.rowcodec import stored_rows
from dataplane.collections.view import CollectionView
from dataplane.filters import Filter, matches
from dataplane.hot.graph import exact_scores
from dataplane.hot.table import FRESH
from dataplane.truth import keys

MOST_COME = 1024  # rows that came meanwhile: with more, it is searched anew
ATTEMPTS = 10
PUBLISHED_S = 0.2
MISSED_S = 0.0005


def caught_up(
    collection: Collection, wanted: Wanted, wanted_filter: Filter | None, view: CollectionView, found: Found
) -> tuple[CollectionView, Found]:
    """What was found in `view`, and a view of now. The answer says that it is not complete when rows go on ending."""
    full = len(found.slots)
    for _ in range(ATTEMPTS):
        if collection.ends == view.ends and not found.missed:
            return view, found
        now = collection.view()
        if now.ends == view.ends:  # it is being replaced: written, and not in memory yet
            time.sleep(MISSED_S)
            now = collection.view()
        matching = None if wanted_filter is None else now.attributes.mask(wanted_filter, len(now.table))
        new = msgspec.structs.replace(wanted, matching=matching)
        found = _with_what_came(view, now, new, found) or nearest(now, new)
        if len(found.slots) < min(full, sum(now.table.counts)):  # what was found has been deleted: others are next
            found = nearest(now, new)
        view = now
    found.complete = False
    return view, found


def _with_what_came(view: CollectionView, now: CollectionView, wanted: Wanted, found: Found) -> Found | None:
    """The best of what was found and is still there, and of the rows since. None: they are too many, or have new slots."""
    before, count = len(view.table), len(now.table)
    if count < before or count - before > MOST_COME:
        return None
    if before and now.table.rows[before - 1] != view.table.rows[before - 1]:
        return None
    if found.missed:
        return None
    come = now.table.rows[before:]
    fresh, fresh_vectors = now.delta.since(int(come[0]) if len(come) else 2**63)  # all numbers are below
    others, vectors = now.stored_vectors(np.setdiff1d(come, fresh))
    rows, vectors = np.concatenate([fresh, others]), np.concatenate([fresh_vectors, vectors])
    slots = np.concatenate([found.slots, now.table.slots_of(rows)])
    scores = np.concatenate([found.scores, exact_scores(wanted.vector, vectors, now.metric)])
    good = now.table.live_of(slots, wanted.now_ms)
    if wanted.matching is not None:
        good &= wanted.matching[slots]
    slots, scores = slots[good], scores[good]
    best = np.argsort(-scores, kind="stable")[: wanted.k]
    places = found.places | {FRESH} if len(rows) else found.places
    missed = len(rows) < len(come)
    return Found(slots[best], scores[best], places, found.warm_rows_read, found.complete, missed)


def ended_since(collection: Collection, view: CollectionView) -> NDArray[np.uint64]:
    """The rows that have ended since the view was taken, the latest thousands of them."""
    with collection.lock:
        count = min(collection.ends - view.ends, len(collection.ended))
        return np.array([collection.ended[-at] for at in range(1, count + 1)], np.uint64)


def followed(
    collection: Collection, wanted_filter: Filter | None, text: list[tuple[int, float]]
) -> tuple[CollectionView, list[tuple[int, float]]]:
    """The rows of the full text that are there in a view of now: those that were replaced, as what replaced them."""
    now = collection.view()
    rows = np.array([row for row, _ in text], np.uint64)
    slots = now.table.slots_of(rows)
    there = (slots >= 0) & now.table.alive[slots]
    if there.all():
        return now, text
    ended = ~there & (slots >= 0)
    gone = np.flatnonzero(ended).tolist()
    wanted = [collection.scope + keys.name(id_) for id_ in now.ids_of(slots[ended])]
    numbers = collection.rocks.get_many("index", wanted)
    contents = stored_rows(collection, wanted, vectors=False) if wanted_filter is not None else [None] * len(gone)
    places: dict[int, int] = {at: row for at, (row, _) in enumerate(text) if there[at]}
    for at, number, content in zip(gone, numbers, contents, strict=True):
        fits = wanted_filter is None or (content is not None and matches(wanted_filter, content.attributes))
        if number is not None and fits:
            places[at] = int.from_bytes(number, "big")
    best: dict[int, float] = {}
    for at, (_, score) in enumerate(text):
        if at in places:
            best.setdefault(places[at], score)
    now = _with_all(collection, max(best, default=0))
    known = now.table.slots_of(np.array(list(best), np.uint64)) >= 0
    return now, list(itertools.compress(best.items(), known))


def _with_all(collection: Collection, row: int) -> CollectionView:
    """A view that has a row which is in the database: what was written a moment ago comes into memory a moment later."""
    until = time.monotonic() + PUBLISHED_S
    while collection.published < row and time.monotonic() < until:
        time.sleep(PUBLISHED_S / 1000)
    return collection.view()

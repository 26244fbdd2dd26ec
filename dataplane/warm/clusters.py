"""Groups of similar vectors, each small enough for one row group of a shard, most of them nearly full. Pure numpy.

A search that knows its candidates reads the groups that hold them. It reads few when similar rows lie together, so what
counts is how many groups hold the nearest rows of a query; groups of equal size bound what one read costs.

The algorithm, for n rows of d dimensions and groups of at most r rows:

1. *Halve* (only above LARGEST_CELL rows): cut the rows along the axis between two means, at a multiple of r, until each cell
   is small enough. Flat k-means costs the square of its cell's rows; this keeps the whole at n x LARGEST_CELL.
2. *k-means* of each cell: a few rounds of Lloyd's on a sample, with SLACK more centroids than full groups would need.
3. *Fill*: rows choose among their CHOICES nearest centroids, in rounds; a centroid takes the nearest that ask, up to r.
4. *Tidy*: the rows of groups under a quarter full, and those that found no room, choose once more among the groups with
   room; what is still left is halved into full groups of its own.

The distance is Euclidean. That serves every metric: rows that are near each other have near scores to any query. Rows
that are equal, or all zero, are cut by position, and nothing is divided by a length, so no NaN arises. Rows that are not
finite, or so long that their squares are not, have no meaningful place, but are grouped all the same.

The same vectors, size and seed give the same groups on the same machine. Every numpy call works on at most CHUNK rows, so
that none takes long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataplane.errors import InvalidInput

Floats = npt.NDArray[np.float32]
Slots = npt.NDArray[np.int64]

LARGEST_CELL = 1024  # groups of a cell
SLACK = 1.1
CHOICES = 12
ROUNDS = 6
SAMPLE = 48  # rows a centroid that k-means looks at
CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Clusters:
    """Groups of rows, and the mean vector of each."""

    groups: tuple[Slots, ...]  # positions in the input, rising within a group; every position in exactly one
    centroids: Floats  # (groups, d)


def cluster(vectors: Floats, rows_per_group: int, seed: int = 0) -> Clusters:
    """Group `vectors` (float32 (n, d)) into groups of 1 to `rows_per_group` similar rows. Raises InvalidInput."""
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise InvalidInput("Vectors to group are a float32 array of shape (rows, dimensions).", param="vectors")
    if rows_per_group < 1:
        raise InvalidInput("A group holds at least 1 row.", param="rows_per_group")
    rng = np.random.default_rng(seed)
    groups: list[Slots] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for cell in _halve(vectors, np.arange(len(vectors)), LARGEST_CELL * rows_per_group, rows_per_group, rng):
            groups += _group_cell(vectors, cell, rows_per_group, rng)
        return Clusters(tuple(groups), _means(vectors, groups))


def _group_cell(vectors: Floats, cell: Slots, size: int, rng: np.random.Generator) -> list[Slots]:
    """The groups of one cell, whose rows are few enough for flat k-means."""
    if len(cell) <= size:
        return [cell] if len(cell) else []
    count = min(len(cell), int(np.ceil(len(cell) / size * SLACK)))
    centroids = _kmeans(vectors, cell, count, rng)
    owner = np.full(len(cell), -1, dtype=np.int64)  # which centroid a row of the cell belongs to
    _fill(vectors, cell, centroids, owner, size)
    sizes = np.bincount(owner[owner >= 0], minlength=count)
    small = sizes * 4 < size
    owner[np.isin(owner, np.flatnonzero(small))] = -1
    if not small.all():
        _fill(vectors, cell, np.where(small[:, None], np.float32(np.inf), centroids), owner, size)
    order = np.argsort(owner, kind="stable")
    left = int(np.searchsorted(owner[order], 0))
    groups = [np.sort(group) for group in _halve(vectors, np.sort(cell[order[:left]]), size, size, rng)]
    borders = np.flatnonzero(np.diff(owner[order[left:]])) + 1
    return groups + [np.sort(cell[part]) for part in np.split(order[left:], borders) if len(part)]


def _kmeans(vectors: Floats, cell: Slots, count: int, rng: np.random.Generator) -> Floats:
    """`count` centroids of the cell's rows: Lloyd's rounds on a sample. A centroid that loses all rows moves to a row."""
    sample = cell
    if len(cell) > count * SAMPLE:
        sample = np.sort(rng.choice(cell, count * SAMPLE, replace=False))
    centroids: Floats = vectors[np.sort(rng.choice(sample, count, replace=False))]  # a copy
    for _ in range(ROUNDS):
        sums = np.zeros(centroids.shape, dtype=np.float64)
        sizes = np.zeros(count, dtype=np.int64)
        for start in range(0, len(sample), CHUNK):
            rows = vectors[sample[start : start + CHUNK]]
            nearest = np.argmin(_distances(rows, centroids), axis=1)
            order = np.argsort(nearest, kind="stable")
            owners, firsts = np.unique(nearest[order], return_index=True)
            sums[owners] += np.add.reduceat(rows[order], firsts, axis=0)
            sizes += np.bincount(nearest, minlength=count)
        held = sizes > 0
        centroids[held] = sums[held] / sizes[held, None]
        centroids[~held] = vectors[rng.choice(sample, int((~held).sum()))]
    return centroids


def _fill(vectors: Floats, cell: Slots, centroids: Floats, owner: Slots, size: int) -> None:
    """Give rows of the cell that have no owner one that has room (at most `size` rows), nearest first, in rounds.

    A centroid that is not finite takes none. Rows whose choices are all full keep -1.
    """
    rows = np.flatnonzero(owner < 0)
    room = size - np.bincount(owner[owner >= 0], minlength=len(centroids))
    room[~np.isfinite(centroids).all(axis=1)] = 0
    open_ = np.flatnonzero(room > 0)
    if not len(open_) or not len(rows):
        return
    choices, distances = _nearest(vectors, cell[rows], centroids[open_])
    for rank in range(choices.shape[1]):
        asking = np.flatnonzero(owner[rows] < 0)
        wanted = open_[choices[asking, rank]]
        order = np.lexsort((distances[asking, rank], wanted))
        asking, wanted = asking[order], wanted[order]
        place = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)  # 0 for the nearest that asks a centroid
        taken = place < room[wanted]
        owner[rows[asking[taken]]] = wanted[taken]
        room -= np.bincount(wanted[taken], minlength=len(room))


def _nearest(vectors: Floats, rows: Slots, centroids: Floats) -> tuple[Slots, Floats]:
    """Each row's nearest centroids, nearest first, and distances comparable among rows: two arrays (rows, choices)."""
    count = min(CHOICES, len(centroids))
    choices = np.empty((len(rows), count), dtype=np.int64)
    distances = np.empty((len(rows), count), dtype=np.float32)
    for start in range(0, len(rows), CHUNK):
        chunk = vectors[rows[start : start + CHUNK]]
        away = _distances(chunk, centroids)
        found = (
            np.argpartition(away, count - 1, axis=1)[:, :count] if count < len(centroids) else np.argsort(away, axis=1)
        )
        near = np.take_along_axis(away, found, axis=1)
        order = np.argsort(near, axis=1, kind="stable")
        choices[start : start + CHUNK] = np.take_along_axis(found, order, axis=1)
        lengths = np.einsum("ij,ij->i", chunk, chunk)[:, None] / 2
        distances[start : start + CHUNK] = np.take_along_axis(near, order, axis=1) + lengths
    return choices, distances


def _distances(rows: Floats, centroids: Floats) -> Floats:
    """Half the squared distances, less a constant of each row: (rows, centroids)."""
    away: Floats = np.einsum("ij,ij->i", centroids, centroids) / 2 - rows @ centroids.T
    return away


def _halve(vectors: Floats, rows: Slots, most: int, size: int, rng: np.random.Generator) -> list[Slots]:
    """Cut `rows` into parts of at most `most` (a multiple of `size`), all but one of them a multiple of `size` long."""
    done: list[Slots] = []
    waiting = [rows]
    while waiting:
        part = waiting.pop()
        if len(part) <= most:
            done += [part] if len(part) else []
            continue
        axis = _axis(vectors, part, rng)
        along = np.concatenate([vectors[part[i : i + CHUNK]] @ axis for i in range(0, len(part), CHUNK)])
        order = np.argsort(along, kind="stable")
        cut = -(-len(part) // size) // 2 * size
        waiting += [part[order[cut:]], part[order[:cut]]]
    return done


def _axis(vectors: Floats, part: Slots, rng: np.random.Generator) -> Floats:
    """The direction between two means of the part's rows."""
    low, high = _kmeans(vectors, part, 2, rng)
    axis: Floats = high - low
    return axis


def _means(vectors: Floats, groups: list[Slots]) -> Floats:
    means = np.zeros((len(groups), vectors.shape[1]), dtype=np.float32)
    for number, group in enumerate(groups):
        means[number] = vectors[group].mean(axis=0, dtype=np.float64)
    return means

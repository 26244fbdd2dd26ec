"""CollectionView: what a search sees of a collection, taken at one moment under its lock, and read without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane.hot.attributes import AttributeColumns
from dataplane.hot.delta import DeltaView
from dataplane.hot.graph import Graph
from dataplane.hot.sketch import Sketcher
from dataplane.hot.table import TableView
from dataplane.rows import Metric

Rows = NDArray[np.uint64]
Floats = NDArray[np.float32]
Slots = NDArray[np.int64]


class CollectionView(Struct, frozen=True, kw_only=True):
    """`stored_vectors(rows)` reads RocksDB, `group_vectors(group)` a shard: row numbers, shape [n], and vectors, shape
    [n, dimensions]. `ids_of(slots)` are ids of rows of `table`. `ends` counts the rows that had ended.
    """

    metric: Metric
    ends: int
    table: TableView
    attributes: AttributeColumns
    delta: DeltaView
    graph: Graph | None
    sketcher: Sketcher | None
    ids_of: Callable[[Slots], list[str]]
    stored_vectors: Callable[[Rows], tuple[Rows, Floats]]
    group_vectors: Callable[[int], tuple[Rows, Floats]]

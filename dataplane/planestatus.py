"""How the data plane is, as values: what `acu data status` and the metrics show."""

from __future__ import annotations

from msgspec import Struct

from dataplane.collection import Collection
from dataplane.keeper import KeeperCounts
from dataplane.rows import Metric
from dataplane.table import FRESH, HOT, LOOSE, WARM


class CollectionStatus(Struct, frozen=True, kw_only=True):
    """One collection. Rows by place: `fresh` in the delta, `hot` in the graph, `loose` and `warm` on the disk."""

    tenant: str
    name: str
    dimensions: int
    metric: Metric
    seq: int
    rows: int
    fresh: int
    hot: int
    loose: int
    warm: int
    memory_bytes: int
    shards: int
    shard_bytes: int
    graph_masked: int
    problems: tuple[str, ...]


class PlaneStatus(Struct, frozen=True, kw_only=True):
    """All of it. `failed`: why no writes are taken; `last_error`: what is being tried again."""

    collections: tuple[CollectionStatus, ...]
    memory_bytes: int
    memory_cap_bytes: int
    ring_rows: int
    writes: int
    syncs: int
    keeper: KeeperCounts
    failed: str | None
    last_error: str | None


def collection_status(tenant: str, collection: Collection) -> CollectionStatus:
    """What one collection has, and where."""
    counts = collection.counts()
    graph = collection.graph
    return CollectionStatus(
        tenant=tenant,
        name=collection.name,
        dimensions=collection.dimensions,
        metric=collection.metric,
        seq=collection.seq,
        rows=sum(counts),
        fresh=counts[FRESH],
        hot=counts[HOT],
        loose=counts[LOOSE],
        warm=counts[WARM],
        memory_bytes=collection.nbytes,
        shards=len(collection.shards.entries),
        shard_bytes=collection.shards.bytes,
        graph_masked=0 if graph is None else graph.masked,
        problems=(*collection.shards.problems, *collection.problems),
    )

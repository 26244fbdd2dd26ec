"""How the data plane is, as values: what `acu data status` and the metrics show."""

from __future__ import annotations

from msgspec import Struct

from dataplane.cold.tier import ColdStatus
from dataplane.collections.collection import Collection
from dataplane.hot.table import FRESH, HOT, LOOSE, WARM
from dataplane.rows import Metric, SearchResult
from dataplane.state.oldevents import HistoryStatus
from dataplane.tiering.due import KeeperCounts
from dataplane.truth.rocks import FAMILIES, Rocks


class SearchCounts(Struct, kw_only=True):
    """Searches since the start, and which tier their hits came from. `with_warm`: those that read the disk for vectors."""

    searches: int = 0
    with_warm: int = 0
    incomplete: int = 0
    slow: int = 0
    seconds: float = 0.0
    hits_hot: int = 0
    hits_warm: int = 0
    warm_rows_read: int = 0

    def add(self, result: SearchResult, *, slow: bool) -> None:
        """Count one. A few microseconds at most, for it happens on the loop."""
        found = len(result.hits)
        warm = sum(hit.tier == "warm" for hit in result.hits) if "warm" in result.tiers else 0
        self.searches += 1
        self.with_warm += "warm" in result.tiers
        self.incomplete += not result.complete
        self.slow += slow
        self.seconds += result.took_ms / 1000
        self.hits_hot += found - warm
        self.hits_warm += warm
        self.warm_rows_read += result.warm_rows_read


class StateStatus(Struct, frozen=True, kw_only=True):
    """The state store, and RocksDB's files by family (bytes). Keys are estimates; what is only in the log is not in bytes."""

    records: int
    events: int
    swept: int
    disk_bytes: dict[str, int]


class Figures(Struct, frozen=True):
    """What is not at hand of a collection, but measured now and then (gauges.py)."""

    text_bytes: int = 0
    heat_hot: float = 0.0
    heat_warm: float = 0.0


class CollectionStatus(Struct, frozen=True, kw_only=True):
    """One collection. Rows by place: `fresh` in the delta, `hot` in the graph, `warm` in shards, `loose` in RocksDB alone.

    `shards` and `shard_bytes` are of warm rows, and none of loose ones; to searches both are the tier warm. `heat_hot`,
    `heat_warm`: mean of accesses x 0.99^(hours since) over a sample of rows in memory and on the disk. These and `text_bytes`
    are some seconds old.
    """

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
    text_bytes: int
    text_behind: int
    heat_hot: float
    heat_warm: float
    problems: tuple[str, ...]


class PlaneStatus(Struct, frozen=True, kw_only=True):
    """All of it. `failed`: why no writes are taken, for a defect or damage; `last_error`: what is being tried again."""

    collections: tuple[CollectionStatus, ...]
    cold: ColdStatus
    state: StateStatus
    history: HistoryStatus
    searches: SearchCounts
    memory_bytes: int
    memory_cap_bytes: int
    ring_rows: int
    writes: int
    syncs: int
    keeper: KeeperCounts
    failed: str | None
    last_error: str | None


def collection_status(collection: Collection, figures: Figures) -> CollectionStatus:
    """What one collection has, and where."""
    counts = collection.counts()
    graph, text = collection.graph, collection.text
    return CollectionStatus(
        tenant=collection.tenant,
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
        text_bytes=figures.text_bytes,
        text_behind=0 if text is None else max(collection.seq - text.index.seq, 0),
        heat_hot=figures.heat_hot,
        heat_warm=figures.heat_warm,
        problems=(*collection.shards.problems, *collection.problems),
    )


def state_status(rocks: Rocks, swept: int) -> StateStatus:
    """The state store, and what RocksDB has on the disk. Asks RocksDB for figures that it has at hand."""
    return StateStatus(
        records=rocks.key_count("state"),
        events=rocks.key_count("events"),
        swept=swept,
        disk_bytes={family: rocks.disk_bytes(family) for family in FAMILIES},
    )

"""The data plane: vectors, texts, records and their tiers, in the process that uses them.

    care          verify, repair, back up, erase
    store         DataPlane: opens and closes everything, in order; planestatus and gauges: how it is
    tiering       the keeper: what moves between the tiers, and when
    cold          the archive in a bucket
    collections   one collection with its tiers, the commands that change it, the searches in it
    state         versioned records, logs of events, their history
    hot           delta, graph, sketches, table, attributes, snapshots
    warm          Parquet shards of vectors
    words         full text
    truth         RocksDB, the ring and the one writer

Each may import those below it, and what lies beside them: errors, configuration, values, threads, memory. import-linter looks.

`DataPlane.open` is the door. What goes in and comes out are the values of `rows`, and every error is of `errors`' tree.

The names below are imported when they are first asked for: RocksDB, faiss and Arrow take 300 ms, and a process that reads
nothing but the configuration's section needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataplane.config import DataPlaneConfig
    from dataplane.filters import Attribute, Filter, check_attributes, parse_filter
    from dataplane.rows import CollectionSpec, Hit, Location, Row, SearchQuery, SearchResult, StoredRow
    from dataplane.state.store import StateStore
    from dataplane.store import DataPlane
    from dataplane.truth.records import EventRecord

_PLACES = {
    "Attribute": "filters",
    "CollectionSpec": "rows",
    "DataPlane": "store",
    "DataPlaneConfig": "config",
    "EventRecord": "truth.records",
    "Filter": "filters",
    "Hit": "rows",
    "Location": "rows",
    "Row": "rows",
    "SearchQuery": "rows",
    "SearchResult": "rows",
    "StateStore": "state.store",
    "StoredRow": "rows",
    "check_attributes": "filters",
    "parse_filter": "filters",
}

__all__ = [
    "Attribute",
    "CollectionSpec",
    "DataPlane",
    "DataPlaneConfig",
    "EventRecord",
    "Filter",
    "Hit",
    "Location",
    "Row",
    "SearchQuery",
    "SearchResult",
    "StateStore",
    "StoredRow",
    "check_attributes",
    "parse_filter",
]


def __getattr__(name: str) -> Any:
    try:
        place = _PLACES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(importlib.import_module(f"{__name__}.{place}"), name)

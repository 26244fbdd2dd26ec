"""How a collection is told to be: rows by place, bytes, shards and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from dataplane.planestatus import Figures, SearchCounts, collection_status, state_status
from dataplane.rows import Hit, SearchResult
from tests.dataplane.planes import DIMENSIONS, NAME, TENANT, vectors
from tests.dataplane.stilled import stilled


def test_rows_are_counted_by_place_and_bytes_by_what_takes_them(tmp_path: Path) -> None:
    with stilled(tmp_path, DIMENSIONS, metric="l2", text=True) as still:
        still.upsert(vectors(1200))
        still.work()
        still.keeper.moves.demote(still.collection, np.arange(200))
        still.upsert(vectors(30, seed=2), 5000)
        still.delete(["r1199"])
        told = collection_status(still.collection, Figures(text_bytes=9, heat_hot=2.5, heat_warm=0.5))
        assert (told.tenant, told.name, told.dimensions, told.metric) == (TENANT, NAME, DIMENSIONS, "l2")
        assert (told.rows, told.fresh, told.hot, told.loose, told.warm) == (1229, 30, 999, 0, 200)
        assert told.memory_bytes == still.collection.nbytes > 1200 * 4 * DIMENSIONS
        assert (told.shards, told.graph_masked) == (1, 201)
        assert told.shard_bytes == sum(path.stat().st_size for path in still.collection.folder.glob("*.parquet"))
        assert (told.text_bytes, told.heat_hot, told.heat_warm) == (9, 2.5, 0.5)
        assert told.seq == told.text_behind == 1231, "no text is indexed yet"
        still.index_text()
        assert collection_status(still.collection, Figures()).text_behind == 0
        still.collection.problems.append("of memory")
        still.collection.shards.problems.append("of a shard")
        assert set(collection_status(still.collection, Figures()).problems) == {"of memory", "of a shard"}
        assert msgspec.json.decode(msgspec.json.encode(told))["hot"] == 999


def test_an_empty_collection_has_nothing(tmp_path: Path) -> None:
    with stilled(tmp_path, 4) as still:
        told = collection_status(still.collection, Figures())
        assert (told.rows, told.shards, told.shard_bytes, told.graph_masked, told.problems) == (0, 0, 0, 0, ())
        state = state_status(still.rocks, 3)
        assert (state.records, state.events, state.swept) == (0, 0, 3)
        assert set(state.disk_bytes) >= {"rows", "vectors", "state"}


def test_searches_are_counted_with_the_tiers_that_their_hits_came_from() -> None:
    counts = SearchCounts()
    hits = tuple(Hit(id=f"r{n}", score=0.0, tier="warm" if n < 2 else "hot") for n in range(5))
    counts.add(
        SearchResult(hits=hits, tiers=("hot", "warm"), complete=True, warm_rows_read=64, took_ms=500.0), slow=True
    )
    counts.add(SearchResult(hits=hits[2:], tiers=("hot",), complete=False, took_ms=500.0), slow=False)
    assert counts == SearchCounts(
        searches=2, with_warm=1, incomplete=1, slow=1, seconds=1.0, hits_hot=6, hits_warm=2, warm_rows_read=64
    )

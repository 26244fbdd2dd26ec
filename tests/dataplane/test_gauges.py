"""What the status measures now and then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dataplane import gauges
from dataplane.rows import CollectionSpec, SearchQuery
from dataplane.store import opened
from tests.dataplane.keeping import demote_for_good
from tests.dataplane.planes import DIMENSIONS, NAME, TENANT, config, filled, only, rows, vectors


async def test_text_bytes_and_heat_are_those_of_the_last_measuring(tmp_path: Path) -> None:
    stored = vectors(1600)
    async with opened(config(tmp_path / "data")) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
        (collection,) = plane.open_collections()
        with plane.keeper.held():
            demote_for_good(plane.keeper, collection, np.arange(100))
        await plane.gauges.measure()
        status = only(plane)
        assert status.text_bytes > 10_000
        assert status.heat_hot == pytest.approx(1, abs=0.01)
        assert status.heat_warm == pytest.approx(1, abs=0.01)
        for _ in range(200):
            await plane.search(TENANT, NAME, SearchQuery(vector=stored[800], k=10))
        await plane.settle(TENANT, NAME)
        assert only(plane).heat_hot == status.heat_hot
        await plane.upsert(TENANT, NAME, rows(vectors(1), start=1600))
        await plane.gauges.measure()
        assert only(plane).heat_hot == pytest.approx(1 + 200 * 10 / 1501, rel=0.05)


async def test_of_many_collections_the_last_measuring_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "FRESH", 2)
    async with opened(config(tmp_path / "data")) as plane:
        for number in range(3):
            await plane.create_collection(TENANT, f"c{number}", CollectionSpec(dimensions=DIMENSIONS))
        assert [one.rows for one in plane.status().collections] == [0, 0, 0]
        await plane.gauges.measure()
        await plane.upsert(TENANT, "c1", rows(vectors(5)))
        assert [one.rows for one in plane.status().collections] == [0, 0, 0]
        await plane.gauges.measure()
        assert [one.rows for one in plane.status().collections] == [0, 5, 0]
        await plane.drop_collection(TENANT, "c1")
        assert [one.name for one in plane.status().collections] == ["c0", "c2"]


async def test_searches_are_counted_by_the_tier_of_their_hits(tmp_path: Path) -> None:
    stored = vectors(1600)
    async with opened(config(tmp_path / "data")) as plane:
        await filled(plane, stored)
        await plane.settle(TENANT, NAME)
        await plane.search(TENANT, NAME, SearchQuery(vector=stored[3], k=7))
        (collection,) = plane.open_collections()
        with plane.keeper.held():
            demote_for_good(plane.keeper, collection, np.arange(1600))
        await plane.search(TENANT, NAME, SearchQuery(vector=stored[3], k=5))
        await plane.search(TENANT, NAME, SearchQuery(text="note"))
        counts = plane.status().searches
        assert (counts.searches, counts.with_warm) == (3, 1)
        assert counts.hits_warm >= 5
        assert counts.hits_hot + counts.hits_warm == 22
        assert counts.warm_rows_read > 5

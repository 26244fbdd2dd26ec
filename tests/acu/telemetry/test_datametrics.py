"""acu.telemetry.datametrics: what a status becomes for Prometheus."""

from __future__ import annotations

from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from acu.telemetry.datametrics import DataCollector
from dataplane.planestatus import PlaneStatus
from dataplane.rows import SearchQuery
from dataplane.store import opened
from dataplane.truth.records import EventRecord
from tests.dataplane.planes import NAME, TENANT, config, filled, vectors


def samples(status: PlaneStatus | None) -> dict[str, float]:
    """The exposition as a table: series with labels -> value."""
    registry = CollectorRegistry()
    registry.register(DataCollector(lambda: status))
    text = generate_latest(registry).decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


async def test_a_real_data_plane_feeds_every_family(tmp_path: Path) -> None:
    async with opened(msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)) as plane:
        await filled(plane, vectors(30))
        for _ in range(3):
            await plane.search(TENANT, NAME, SearchQuery(vector=vectors(1)[0], k=5))
        await plane.cold.archive_now()
        await plane.delete(TENANT, NAME, ["r1"])
        await plane.state.put(TENANT, "session", "one", b"x")
        await plane.state.append(TENANT, "s", [EventRecord("e", 1, b"x")] * 7)
        await plane.mover.round()
        await plane.state.trim(TENANT, "s", 2)
        await plane.mover.round()
        found = samples(plane.status())
    assert found["acu_data_open"] == 1
    assert found['acu_data_rows{tier="fresh"}'] == 29
    assert found['acu_data_rows{tier="cold"}'] == 30
    assert found['acu_data_bytes{tier="cold"}'] > 30 * 48 * 4
    assert found["acu_data_memory_cap_bytes"] == 64 << 20
    assert 0 < found["acu_data_memory_bytes"] < 64 << 20
    assert found['acu_data_searches_total{tier="hot"}'] == 3
    assert found['acu_data_hits_total{tier="hot"}'] == 15
    assert found['acu_data_hits_total{tier="warm"}'] == 0
    assert found["acu_data_search_seconds_total"] > 0
    assert found["acu_data_archive_backlog_rows"] == 1
    assert found["acu_data_archive_runs_total"] == 1
    assert found["acu_data_archive_damaged_files"] == 0
    assert found["acu_data_archive_time_seconds"] > 1_700_000_000
    assert (found["acu_data_history_events"], found["acu_data_history_shards"]) == (5, 1)
    assert found["acu_data_history_bytes"] > 0
    assert (found["acu_data_history_moved_total"], found["acu_data_history_removed_total"]) == (7, 2)
    assert found["acu_data_history_problems"] == 0
    assert found["acu_data_failed"] == found["acu_data_trouble"] == 0
    assert found["acu_data_writes_total"] >= 3
    assert not any(TENANT in series or NAME in series for series in found)


async def test_files_that_the_archive_found_damaged_are_a_gauge(tmp_path: Path) -> None:
    async with opened(msgspec.structs.replace(config(tmp_path / "data"), archive_every_s=None)) as plane:
        status = plane.status()
    found = samples(msgspec.structs.replace(status, cold=msgspec.structs.replace(status.cold, damaged_files=3)))
    assert found["acu_data_archive_damaged_files"] == 3


def test_a_data_plane_that_is_not_open_says_only_that() -> None:
    assert samples(None) == {"acu_data_open": 0}

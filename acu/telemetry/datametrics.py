"""Metrics of the data plane: gauges and counters that a scrape reads off its status, at no cost to reads and writes.

Register a `DataCollector` with the full family: how much a tenant stores is nobody else's business, so no label names one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:  # it brings the whole data plane with it, which may not be open
    from dataplane.planestatus import PlaneStatus

Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


class DataCollector(Collector):
    """`status` gives the data plane's status, or None while it is not open: then there is `acu_data_open 0`, and nothing else."""

    def __init__(self, status: Callable[[], PlaneStatus | None]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        status = self._status()
        yield GaugeMetricFamily("acu_data_open", "1 while the data plane is open.", value=float(status is not None))
        if status is not None:
            yield from data_metrics(status)


def data_metrics(status: PlaneStatus) -> Iterator[Metric]:
    """Every family, of one status."""
    yield from _tiers(status)
    yield from _writing(status)
    yield from _searching(status)
    yield from _keeping(status)
    yield from _history(status)
    yield from _archiving(status)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=float(value))


def _labelled(family: Family, name: str, text: str, label: str, values: dict[str, float]) -> Metric:
    metric = family(name, text, labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric


def _tiers(status: PlaneStatus) -> Iterator[Metric]:
    found, cold = status.collections, status.cold
    rows = {
        "fresh": float(sum(one.fresh for one in found)),
        "hot": float(sum(one.hot for one in found)),
        "loose": float(sum(one.loose for one in found)),
        "warm": float(sum(one.warm for one in found)),
    }
    sizes = {"hot": float(status.memory_bytes), "warm": float(sum(one.shard_bytes for one in found))}
    sizes["text"] = float(sum(one.text_bytes for one in found))
    if cold.rows is not None and cold.bytes is not None:
        rows["cold"], sizes["cold"] = float(cold.rows), float(cold.bytes)
    text = "Rows by place: in the delta, the graph, the database alone, shards, the archive."
    yield _labelled(GaugeMetricFamily, "acu_data_rows", text, "tier", rows)
    yield _labelled(
        GaugeMetricFamily, "acu_data_bytes", "Bytes by tier: memory, shards, full text, archive.", "tier", sizes
    )
    disk = {family: float(size) for family, size in status.state.disk_bytes.items()}
    yield _labelled(GaugeMetricFamily, "acu_data_database_bytes", "Bytes of table files.", "family", disk)
    yield _gauge("acu_data_collections", "Collections.", len(found))
    yield _gauge("acu_data_shards", "Warm shards.", sum(one.shards for one in found))
    yield _gauge("acu_data_memory_bytes", "Memory that the data plane takes.", status.memory_bytes)
    yield _gauge("acu_data_memory_cap_bytes", "Memory that it may take.", status.memory_cap_bytes)
    yield _gauge("acu_data_problems", "Damage that was found and made anew.", sum(len(one.problems) for one in found))


def _writing(status: PlaneStatus) -> Iterator[Metric]:
    yield _gauge("acu_data_ring_rows", "Rows that wait for the writer.", status.ring_rows)
    yield _counter("acu_data_writes", "Commands written.", status.writes)
    yield _counter("acu_data_syncs", "Times that the log was synced.", status.syncs)
    yield _gauge("acu_data_failed", "1 while no writes are taken, for a defect or damage.", status.failed is not None)
    yield _gauge("acu_data_trouble", "1 while something fails and is tried again.", status.last_error is not None)
    behind = sum(one.text_behind for one in status.collections)
    yield _gauge("acu_data_text_backlog", "Changes that the full text does not have yet.", behind)
    yield _gauge("acu_data_state_records", "Records of state, about.", status.state.records)
    yield _gauge("acu_data_events", "Events in logs, about.", status.state.events)
    yield _counter("acu_data_state_swept", "Expired records of state that were removed.", status.state.swept)


def _searching(status: PlaneStatus) -> Iterator[Metric]:
    counts = status.searches
    searches = {"hot": float(counts.searches - counts.with_warm), "warm": float(counts.with_warm)}
    text = "Searches by the coldest tier that they read."
    yield _labelled(CounterMetricFamily, "acu_data_searches", text, "tier", searches)
    hits = {"hot": float(counts.hits_hot), "warm": float(counts.hits_warm)}
    yield _labelled(CounterMetricFamily, "acu_data_hits", "Rows found, by their tier.", "tier", hits)
    yield _counter("acu_data_search_seconds", "Time that searches took.", counts.seconds)
    yield _counter("acu_data_slow_searches", "Searches over data_plane.slow_search_ms.", counts.slow)
    yield _counter("acu_data_incomplete_searches", "Searches whose deadline cut them short.", counts.incomplete)
    yield _counter("acu_data_warm_rows_read", "Rows read from shards by searches.", counts.warm_rows_read)


def _keeping(status: PlaneStatus) -> Iterator[Metric]:
    keeper = status.keeper
    moved = {
        "merged": float(keeper.merged),
        "demoted": float(keeper.demoted),
        "promoted": float(keeper.promoted),
        "expired": float(keeper.expired),
    }
    yield _labelled(CounterMetricFamily, "acu_data_moved_rows", "Rows that the keeper moved.", "how", moved)
    yield _counter("acu_data_graph_rebuilds", "Graphs built anew.", keeper.rebuilds)
    yield _counter("acu_data_snapshots", "Snapshots written.", keeper.snapshots)
    yield _counter("acu_data_keeper_failures", "Steps of the keeper that failed.", keeper.failures)


def _history(status: PlaneStatus) -> Iterator[Metric]:
    history = status.history
    yield _gauge("acu_data_history_events", "Events in the history, beside the database.", history.rows)
    yield _gauge("acu_data_history_bytes", "Bytes of its files.", history.bytes)
    yield _gauge("acu_data_history_shards", "Its files.", history.shards)
    yield _gauge("acu_data_history_problems", "What keeps some of it from being read or moved.", len(history.problems))
    yield _counter("acu_data_history_moved", "Events moved into it.", history.moved)
    yield _counter(
        "acu_data_history_removed", "Events removed from it: dropped, trimmed or too old.", history.forgotten
    )


def _archiving(status: PlaneStatus) -> Iterator[Metric]:
    cold = status.cold
    yield _gauge("acu_data_archive_backlog_rows", "Changes of rows that are not archived.", cold.backlog_rows)
    yield _gauge("acu_data_archive_backlog_bytes", "About their size in the archive.", cold.backlog_bytes)
    yield _counter("acu_data_archive_runs", "Runs that ended well.", cold.runs)
    yield _counter("acu_data_archive_failures", "Runs that failed.", cold.failures)
    yield _counter("acu_data_archive_sent_bytes", "Bytes put into the archive.", cold.sent_bytes)
    text = "Files that the last run found damaged and did not archive."
    yield _gauge("acu_data_archive_damaged_files", text, cold.damaged_files)
    if cold.archived_ms is not None:
        yield _gauge(
            "acu_data_archive_time_seconds", "When the last run ended well, Unix time.", cold.archived_ms / 1000
        )

"""Metrics of the daemon's own process (its engines are processes of their own), and of the certificate that it shows."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class CertificateCollector(Collector):
    """The TLS certificate, where there is one."""

    def __init__(self, until: Callable[[], float | None]) -> None:
        self._until = until

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        if (until := self._until()) is not None:
            text = "Until when the TLS certificate is valid, Unix time."
            yield GaugeMetricFamily("acu_tls_certificate_end_seconds", text, value=until)


class ProcessCollector(Collector):
    """What the kernel and the logs say."""

    def __init__(self, dropped_logs: Callable[[], int], dropped_audits: Callable[[], int]) -> None:
        self._dropped_logs = dropped_logs
        self._dropped_audits = dropped_audits
        self._page = resource.getpagesize()
        self._ticks = os.sysconf("SC_CLK_TCK")

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        cpu = (int(stat[11]) + int(stat[12])) / self._ticks
        yield CounterMetricFamily("process_cpu_seconds", "User and system CPU time.", value=cpu)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory.", value=int(stat[21]) * self._page)
        yield GaugeMetricFamily(
            "process_open_fds", "Open file descriptors.", value=len(list(Path("/proc/self/fd").iterdir()))
        )
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield GaugeMetricFamily("process_max_fds", "Most file descriptors that may be open.", value=limit)
        yield CounterMetricFamily(
            "acu_log_records_dropped", "Log records lost to a slow reader.", value=self._dropped_logs()
        )
        yield CounterMetricFamily(
            "acu_audit_lines_dropped", "Audit lines lost to a slow or full disk.", value=self._dropped_audits()
        )

"""What the daemon measures: one Prometheus registry, vLLM's and OpenTelemetry's names where they have one, `acu_` elsewhere.

Histograms and counters are fed once when a run ends (`on_run_end`), never once a token. Gauges are not kept: a scrape
reads them off the service's snapshot, at no cost to requests.

Two families. Basic (anybody who may ask at all): whether the daemon is ready, how much runs and waits, how it was built. Full
(administrators): everything, since names of models, sizes of prompts and the rhythm of work tell about other tenants.

Its traces, where a collector is configured: the same ends, given to otlp.py.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acu.telemetry.agentmetrics import AgentMetrics
from acu.telemetry.datametrics import DataCollector
from acu.telemetry.memorymetrics import MemoryCollector
from acu.telemetry.processmetrics import CertificateCollector, ProcessCollector
from agentflow.agents.watch import Watched
from agentflow.run import Run, RunStatus
from agentflow.status import EngineStatus, ModelStatus, ServiceStatus

if TYPE_CHECKING:
    from acu.hardware.cardkeeper import CardStatus
    from acu.telemetry.otlp import Tracing
    from dataplane.planestatus import PlaneStatus

# vLLM's own buckets, so that its dashboards fit.
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
TPOT_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
# The buckets that OpenTelemetry's semantic conventions for generative AI ask for.
OTEL_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
OTEL_TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
OTEL_DURATION_BUCKETS = tuple(0.01 * 2**power for power in range(14))
OTEL_TOKEN_BUCKETS = tuple(float(4**power) for power in range(14))
LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Telemetry:
    """The registry, and the places where the daemon's parts report. Used on the event loop."""

    def __init__(
        self,
        version: str,
        *,
        dropped_logs: Callable[[], int],
        dropped_audits: Callable[[], int],
        tracing: Tracing | None = None,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a counter, which nothing reads
        self.full = CollectorRegistry(auto_describe=False)
        self.basic = CollectorRegistry(auto_describe=False)
        build = Gauge("acu_build_info", "The running version.", ["version", "python"], registry=self.full)
        build.labels(version, platform.python_version()).set(1)
        self.basic.register(build)
        self.full.register(ProcessCollector(dropped_logs, dropped_audits))
        self._runs = _RunMetrics(self.full)
        self._agents = AgentMetrics(self.full)
        self._tracing = tracing
        if tracing is not None:
            self.full.register(_Spans(tracing))
        self._requests = Counter(
            "acu_http_requests", "Requests answered, by route and status.", ["route", "status"], registry=self.full
        )
        self.loop_lag = Histogram(
            "acu_loop_lag_seconds", "How late the event loop woke.", buckets=LAG_BUCKETS, registry=self.full
        )

    def watch(
        self,
        status: Callable[[], ServiceStatus],
        connections: Callable[[], tuple[int, int, int]],
        local_shares: Callable[[], dict[str, float]] = dict,
        card: Callable[[], CardStatus | None] = lambda: None,
        tls_until: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Read the gauges off these at every scrape. Called once.

        `connections`: how many clients' there are now, how many idle ones were closed to make room, and how many that did
        not read their answer. `local_shares`: how much of each process's memory lies on its NUMA node, 0 to 1. `card`:
        the GPU's memory. `tls_until`: when the TLS certificate ends, in Unix time; None where there is none.
        """
        self.basic.register(_Readiness(status))
        self.full.register(_Readiness(status))
        self.full.register(_Engines(status))
        self.full.register(_Locality(local_shares))
        self.full.register(MemoryCollector(status, card))
        self.full.register(_Connections(connections))
        self.full.register(CertificateCollector(tls_until))

    def watch_data(self, status: Callable[[], PlaneStatus | None]) -> None:
        """Read the data plane's metrics off this at every scrape. Called once."""
        self.full.register(DataCollector(status))

    def on_run_end(self, run: Run) -> None:
        """Count a run that has ended. Called exactly once a run."""
        self._runs.observe(run)
        if self._tracing is not None:
            self._traced(self._tracing.on_request, run)

    def on_part(self, part: Watched) -> None:
        """Count and trace a part of a run that is over."""
        self._traced(self._agents.observe, part)
        if self._tracing is not None:
            self._traced(self._tracing.on_part, part)

    def _traced(self, take: Callable[[T], None], ended: T) -> None:
        """No run fails because it cannot be measured."""
        try:
            take(ended)
        except Exception:  # noqa: BLE001 - a defect of ours, and not the run's
            _log.exception("what ended cannot be measured")

    async def close(self) -> None:
        """Send the traces that wait, for at most two seconds."""
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def on_response(self, route: str, status: int) -> None:
        """Count an answered request. `route` is a pattern and not a path, so that labels stay few."""
        self._requests.labels(route, str(status)).inc()

    def render(self, *, full: bool) -> bytes:
        """The exposition text: the basic family, or everything."""
        return generate_latest(self.full if full else self.basic)


class _RunMetrics:
    """What is learnt from a run at its end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        model, otel = "model_name", ("gen_ai_operation_name", "gen_ai_request_model")
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS, model)
        self.tpot = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time a token after the first.", TPOT_BUCKETS, model
        )
        self.latency = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", LATENCY_BUCKETS, model)
        self.queue = histogram("vllm:request_queue_time_seconds", "Arrival to engine.", LATENCY_BUCKETS, model)
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of runs that an engine took.", model)
        self.generation_tokens = counter("vllm:generation_tokens", "Tokens generated.", model)
        self.cached_tokens = counter("acu_cached_prompt_tokens", "Prompt tokens found in the prefix cache.", model)
        self.success = counter("vllm:request_success", "Runs that finished.", model, "finished_reason")
        self.aborted = counter("acu_runs_aborted", "Runs ended before they finished.", model, "reason")
        self.failed = counter("acu_runs_failed", "Runs that an engine failed under.", model, "reason")
        self.rejected = counter("acu_runs_rejected", "Runs that no engine took.", model, "reason")
        self.otel_ttft = histogram(
            "gen_ai_server_time_to_first_token_seconds", "Time to first token.", OTEL_TTFT_BUCKETS, *otel
        )
        self.otel_tpot = histogram(
            "gen_ai_server_time_per_output_token_seconds", "Time per output token.", OTEL_TPOT_BUCKETS, *otel
        )
        self.otel_duration = histogram(
            "gen_ai_server_request_duration_seconds",
            "Duration of a request.",
            OTEL_DURATION_BUCKETS,
            *otel,
            "error_type",
        )
        self.otel_tokens = histogram(
            "gen_ai_client_token_usage", "Tokens of a request.", OTEL_TOKEN_BUCKETS, *otel, "gen_ai_token_type"
        )

    def observe(self, run: Run) -> None:
        """Feed every instrument that this run says something about."""
        model, reason = run.model, run.reason or run.finish_reason or "unknown"
        otel = (operation(run), model)
        ended = run.finished_at if run.finished_at is not None else time.monotonic()
        error = "" if run.status is RunStatus.FINISHED else reason
        self.otel_duration.labels(*otel, error).observe(ended - run.arrived_at)
        if run.status is RunStatus.REJECTED:
            self.rejected.labels(model, reason).inc()
            return
        if run.admitted_at is not None:
            self.queue.labels(model).observe(run.admitted_at - run.arrived_at)
            self.prompt_tokens.labels(model).inc(len(run.prompt_token_ids))
            self.generation_tokens.labels(model).inc(run.completion_tokens)
            self.cached_tokens.labels(model).inc(run.cached_tokens)
        if run.first_token_at is not None:
            self.ttft.labels(model).observe(run.first_token_at - run.arrived_at)
            self.otel_ttft.labels(*otel).observe(run.first_token_at - run.arrived_at)
        if run.status is RunStatus.ABORTED:
            self.aborted.labels(model, reason).inc()
        elif run.status is RunStatus.FAILED:
            self.failed.labels(model, reason).inc()
        else:
            self._finished(run, otel, ended)

    def _finished(self, run: Run, otel: tuple[str, str], ended: float) -> None:
        model = run.model
        self.success.labels(model, run.finish_reason or "stop").inc()
        last = run.last_token_at if run.last_token_at is not None else ended
        self.latency.labels(model).observe(last - run.arrived_at)
        self.otel_tokens.labels(*otel, "input").observe(len(run.prompt_token_ids))
        self.otel_tokens.labels(*otel, "output").observe(run.completion_tokens)
        if run.first_token_at is not None and run.completion_tokens > 1:
            per_token = (last - run.first_token_at) / (run.completion_tokens - 1)
            self.tpot.labels(model).observe(per_token)
            self.otel_tpot.labels(*otel).observe(per_token)


def operation(run: Run) -> str:
    """OpenTelemetry's word for what was asked; the ids of requests begin with what OpenAI's API calls their kind."""
    if run.kind == "embed":
        return "embeddings"
    return "chat" if run.request_id.startswith("chatcmpl-") else "text_completion"


class _Readiness(Collector):
    """The basic family's gauges, read off the service at scrape time."""

    def __init__(self, status: Callable[[], ServiceStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        status = self._status()
        yield GaugeMetricFamily("acu_ready", "1 while every model takes work.", value=float(status.ready))
        yield GaugeMetricFamily("acu_draining", "1 while the daemon is going down.", value=float(status.draining))
        running = GaugeMetricFamily("vllm:num_requests_running", "Runs on an engine.", labels=["model_name"])
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Runs that wait for an engine.", labels=["model_name"])
        for model in status.models:
            running.add_metric([model.name], model.running)
            waiting.add_metric([model.name], model.queued)
        yield running
        yield waiting


class _Sample(Protocol):
    def __call__(self, model: ModelStatus, engine: EngineStatus) -> float: ...


class _Engines(Collector):
    """One sample an engine of each figure that its snapshot has."""

    GAUGES: tuple[tuple[str, str, _Sample], ...] = (
        (
            "vllm:kv_cache_usage_perc",
            "Share of the KV pool in use, 0 to 1.",
            lambda model, engine: engine.stats.kv_cache_usage,
        ),
        ("acu_engine_ready", "1 while the engine takes work.", lambda model, engine: float(engine.state == "ready")),
        ("acu_engine_uptime_seconds", "Time since the engine was ready.", lambda model, engine: engine.uptime_s),
        (
            "acu_engine_outstanding",
            "Sequences that the engine has not finished.",
            lambda model, engine: engine.stats.outstanding,
        ),
    )
    COUNTERS: tuple[tuple[str, str, _Sample], ...] = (
        (
            "vllm:prefix_cache_queries",
            "Tokens looked up in the prefix cache.",
            lambda model, engine: engine.stats.prefix_cache_queries,
        ),
        (
            "vllm:prefix_cache_hits",
            "Tokens found in the prefix cache.",
            lambda model, engine: engine.stats.prefix_cache_hits,
        ),
        ("vllm:num_preemptions", "Sequences preempted.", lambda model, engine: engine.stats.preemptions),
        ("acu_engine_restarts", "Times that the engine was started again.", lambda model, engine: engine.restarts),
    )

    def __init__(self, status: Callable[[], ServiceStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        status = self._status()
        for family, rows in ((GaugeMetricFamily, self.GAUGES), (CounterMetricFamily, self.COUNTERS)):
            for name, text, sample in rows:
                metric = family(name, text, labels=["model_name", "engine"])
                for model in status.models:
                    for engine in model.engines:
                        metric.add_metric([model.name, engine.id], sample(model, engine))
                yield metric
        starts = GaugeMetricFamily(
            "acu_engine_start_seconds",
            "What each stage of the engine's latest start took.",
            labels=["model_name", "engine", "stage"],
        )
        for model in status.models:
            for engine in model.engines:
                for stage, seconds in engine.start_s.items():
                    starts.add_metric([model.name, engine.id, stage], seconds)
        yield starts
        yield GaugeMetricFamily("acu_queued_tokens", "Prompt tokens that wait.", value=status.queued_tokens)
        idle = "Prompts that engines keep for runs that wait or have ended."
        yield GaugeMetricFamily("acu_agent_idle_prefixes", idle, value=status.idle_prefixes)


class _Connections(Collector):
    """Clients' connections."""

    def __init__(self, connections: Callable[[], tuple[int, int, int]]) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        now, closed, unread = self._connections()
        yield GaugeMetricFamily("acu_open_connections", "Client connections now.", value=now)
        text = "Idle connections closed to make room for new ones, at network.max_connections."
        yield CounterMetricFamily("acu_idle_connections_closed", text, value=closed)
        text = "Connections cut off because their answer was not read, in scheduler.slow_reader_s."
        yield CounterMetricFamily("acu_unread_connections_cut", text, value=unread)


class _Spans(Collector):
    """Traces on their way."""

    def __init__(self, tracing: Tracing) -> None:
        self._figures = tracing.figures

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        yield CounterMetricFamily("acu_spans_sent", "Spans that the collector took.", value=self._figures.sent)
        yield CounterMetricFamily(
            "acu_spans_lost", "Spans that it did not, or that were too many.", value=self._figures.lost
        )
        yield GaugeMetricFamily("acu_spans_waiting", "Spans that wait to be sent.", value=self._figures.waiting)


class _Locality(Collector):
    """Where the memory of the daemon and of its engines lies, once it was looked at (see hardware/locality.py)."""

    def __init__(self, shares: Callable[[], dict[str, float]]) -> None:
        self._shares = shares

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks here."""
        text = "Share of a process's own memory that lies on the NUMA node to which it is bound, 0 to 1."
        ratio = GaugeMetricFamily("acu_numa_local_ratio", text, labels=["process"])
        for name, share in self._shares().items():
            ratio.add_metric([name], share)
        yield ratio

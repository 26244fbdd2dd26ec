"""Otlp: spans on their way to a collector that speaks OTLP over HTTP. The only module that imports OpenTelemetry.

A span is put into the SDK's queue of QUEUE_SPANS; the SDK's thread sends what is there every SEND_EVERY_S seconds, or once
BATCH_SPANS wait. The event loop never waits for it. A collector that is away or hangs costs that thread EXPORT_S a batch, and
then those spans: they are lost, and counted, as are those that find the queue full; one log line a minute says so.

`close` sends what is queued, for at most CLOSE_S seconds; a crash loses it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from acu import __version__
from acu.config import TelemetryConfig
from acu.telemetry.spans import SpanData, SpanForm
from agentflow.agents.watch import Watched
from agentflow.run import Run

QUEUE_SPANS = 4096
BATCH_SPANS = 512
SEND_EVERY_S = 2.0
EXPORT_S = 5.0
CLOSE_S = 2.0
LOG_EVERY_S = 60.0

_log = logging.getLogger("acu.tracing")


class Sent:
    """How many spans were given, taken for sending, sent and lost. Written by the event loop and the sending thread, each
    its own figures: `given` and `dropped` there, `taken`, `sent` and `failed` here.
    """

    def __init__(self) -> None:
        self.given = 0
        self.dropped = 0
        self.taken = 0
        self.sent = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        """How many lie in the queue."""
        return self.given - self.taken

    @property
    def lost(self) -> int:
        """How many nobody will see."""
        return self.dropped + self.failed


class Tracing:
    """The queue and its thread. `add` on the event loop; close it."""

    def __init__(self, config: TelemetryConfig, headers: Mapping[str, str]) -> None:
        assert config.otlp_endpoint is not None
        # What the SDK says of a failure, once a batch and once a span, is said by us, once a minute.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self.figures = Sent()
        self._form = SpanForm(config.sample_share, config.content)
        self._resource = Resource({"service.name": config.service_name, "service.version": __version__})
        exporter = OTLPSpanExporter(
            endpoint=config.otlp_endpoint.rstrip("/") + "/v1/traces", headers=dict(headers), timeout=EXPORT_S
        )
        self._processor = BatchSpanProcessor(
            _Counted(exporter, self.figures, config.otlp_endpoint),
            max_queue_size=QUEUE_SPANS,
            schedule_delay_millis=SEND_EVERY_S * 1000,
            max_export_batch_size=BATCH_SPANS,
        )
        self._closed = False

    def on_part(self, part: Watched) -> None:
        """A part of a run is over."""
        self._add(self._form.of_part(part))

    def on_request(self, run: Run) -> None:
        """A plain request's answer is over."""
        self._add(self._form.of_request(run))

    def _add(self, span: SpanData | None) -> None:
        if span is None or self._closed:
            return
        if self.figures.waiting >= QUEUE_SPANS:
            self.figures.dropped += 1
            return
        self.figures.given += 1
        self._processor.on_end(_readable(span, self._resource))

    def close(self) -> None:
        """Send what is queued, for at most CLOSE_S seconds. Blocks so long: call it in a thread."""
        self._closed = True
        # The SDK waits for half a minute; its threads and this one are daemon threads, and end with the process.
        closing = threading.Thread(target=self._processor.shutdown, name="tracing-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            left = self.figures.given - self.figures.sent - self.figures.failed
            _log.warning("the collector of traces is too slow; spans are lost", extra={"spans": left})


class _Counted(SpanExporter):
    """`exporter`, whose batches are counted in `figures`, and whose failures are told. Called by the SDK's thread."""

    def __init__(self, exporter: SpanExporter, figures: Sent, endpoint: str) -> None:
        self._exporter = exporter
        self._figures = figures
        self._endpoint = endpoint
        self._told_at: float | None = None
        self._told_of = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the SDK wants it."""
        figures = self._figures
        figures.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                figures.sent += len(spans)
            else:
                figures.failed += len(spans)
            self._tell()
        return result

    def _tell(self) -> None:
        """At most once a minute, what was lost since the last time."""
        now, lost = time.monotonic(), self._figures.lost
        if lost == self._told_of or (self._told_at is not None and now - self._told_at < LOG_EVERY_S):
            return
        _log.warning("traces are lost", extra={"collector": self._endpoint, "spans": lost - self._told_of})
        self._told_at, self._told_of = now, lost

    def shutdown(self) -> None:
        """As the SDK wants it."""
        self._exporter.shutdown()


def _readable(span: SpanData, resource: Resource) -> ReadableSpan:
    """The SDK's form of a span."""
    place, flags = span.place, TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(place.trace_id, place.parent_id, is_remote=place.remote, trace_flags=flags)
    return ReadableSpan(
        span.name,
        context=SpanContext(place.trace_id, place.span_id, is_remote=False, trace_flags=flags),
        parent=parent if place.parent_id else None,
        resource=resource,
        attributes=span.attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error or None) if span.failed else Status(StatusCode.UNSET),
        start_time=span.began_ns,
        end_time=span.ended_ns,
        instrumentation_scope=InstrumentationScope("acu", __version__),
    )

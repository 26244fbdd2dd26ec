"""A collector of traces: an OTLP server on a port of its own, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What came in: `spans` by name, in their order, and the last request's `headers`. `hold` keeps requests unanswered."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Any] = []
        self.resource: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.asked = 0
        self.status = 200
        self.hold = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[Any]:
        """All spans of a name."""
        return [span for span in self.spans if span.name == name]

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked += 1
        while self.hold.is_set():
            await asyncio.sleep(0.01)
        if self.status != 200:
            return web.Response(status=self.status)
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = attributes(group.resource)
            for scope in group.scope_spans:
                self.spans += scope.spans
        return web.Response(body=b"", content_type="application/x-protobuf")


def attributes(holder: Any) -> dict[str, Any]:
    """A span's, or a resource's, attributes."""
    return {each.key: _value(each.value) for each in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()
    listening, over = threading.Event(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/traces", collector.take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        collector.port = runner.addresses[0][1]
        listening.set()
        while not over.is_set():
            await asyncio.sleep(0.01)
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert listening.wait(30)
        yield collector
    finally:
        collector.hold.clear()
        over.set()
        thread.join(30)

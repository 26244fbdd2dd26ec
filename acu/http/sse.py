"""Server-sent events: writing a run's events to a connection as they come.

The events' bytes go straight to the transport with chunked framing of our own; the response object is used for the
headers and the end only. Per event there is no timer, no task and no allocation besides the bytes.

Backpressure: when the transport's buffer is above its high-water mark (64 KiB) the protocol says so, and the next event is
not asked for until it has drained. A client that does not read meanwhile loses its connection (connection.py), and the
cancellation of the handler that follows closes the run.

A failure after the headers have gone becomes an error event and `[DONE]`, and the connection is closed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Protocol

from aiohttp import web
from aiohttp.http import HttpVersion11

from acu.http.chunks import DONE
from acu.http.errors import translate
from acu.http.exchange import Exchange
from agentflow.events import Event, Usage
from agentflow.service import EventStream

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Chunks(Protocol):
    """What an endpoint's stream looks like: ChatChunks, CompletionChunks."""

    def opening(self) -> bytes: ...

    def encode(self, event: Event) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...


class EventWriter:
    """The open body of one streamed response."""

    def __init__(self, exchange: Exchange, response: web.StreamResponse) -> None:
        transport = exchange.request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        self._transport = transport
        self._exchange = exchange
        self._protocol = exchange.request.protocol
        self._writer = exchange.request.writer
        self._response = response
        self._chunked = exchange.request.version >= HttpVersion11

    @classmethod
    async def open(cls, exchange: Exchange) -> EventWriter:
        """Send the headers."""
        response = web.StreamResponse(headers={**HEADERS, **exchange.response_headers()})
        if exchange.closing or exchange.request.version < HttpVersion11:  # whose streams end with the connection
            response.force_close()
        await response.prepare(exchange.request)
        exchange.status = 200
        return cls(exchange, response)

    def write(self, data: bytes) -> bool:
        """Hand bytes (not none) to the transport. True when the caller must `drain` before it writes again."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return self._protocol.writing_paused

    async def drain(self) -> None:
        """Wait until the client has read."""
        await self._writer.drain()

    async def close(self, *, broken: bool = False) -> web.StreamResponse:
        """End the body; after a failure the connection too."""
        if broken:
            # Decided after the headers were sent, so that it is the connection that has to be told.
            self._response.force_close()
            self._exchange.request.protocol.keep_alive(False)
        if self._protocol.writing_paused:
            await self.drain()
        await self._response.write_eof()
        return self._response


async def stream_events(
    exchange: Exchange, events: EventStream, chunks: Chunks, *, include_usage: bool
) -> web.StreamResponse:
    """Answer with a stream of `events`. What fails before the first of them is raised, and gets a status of its own."""
    iterator = aiter(events)
    first = await anext(iterator, None)
    out = await EventWriter.open(exchange)
    opening = chunks.opening() + (chunks.encode(first) if first is not None else b"")
    broken = False
    try:
        if opening:
            out.write(opening)
        await _pump(iterator, chunks, out)
        out.write(chunks.usage(events.usage) + DONE if include_usage else DONE)
    except Exception as error:
        if isinstance(error, ConnectionError):
            raise
        broken = True
        out.write(_error_event(exchange, error) + DONE)
    return await out.close(broken=broken)


async def _pump(iterator: AsyncIterator[Event], chunks: Chunks, out: EventWriter) -> None:
    encode, write = chunks.encode, out.write
    async for event in iterator:
        data = encode(event)
        if data and write(data):
            await out.drain()


def _error_event(exchange: Exchange, error: Exception) -> bytes:
    refusal = translate(error)
    if refusal.status == 500:
        logging.getLogger(__name__).error("stream failed", extra={"request_id": exchange.id}, exc_info=error)
    exchange.error_code = refusal.code
    exchange.end_reason = "failed"
    return b"data: %b\n\n" % refusal.body()

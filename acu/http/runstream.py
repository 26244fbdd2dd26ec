"""A run's events as server-sent events: what was, what comes, until the run is over.

    id: 12
    data: {"sequence_number":12,"type":"call_ended",...}

and `data: [DONE]` at the end. Who comes back after a break gives the last number that it saw, as `after` or in the header
Last-Event-ID, and gets what followed. While nothing happens, a comment every HEARTBEAT_S tells that the connection lives.

The run does not wait for its followers, and they hold nothing of it: events are read where the run has them, or from the disk,
page by page, and the next is asked for only when the client has taken those before it. A failure becomes an error event and
`[DONE]`, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from acu.http.chunks import DONE
from acu.http.errors import translate
from acu.http.exchange import Exchange
from acu.http.sse import EventWriter
from acu.http.wire.runs import event_object
from agentflow.agents.record import Event

HEARTBEAT_S: Final = 15.0
HEARTBEAT: Final = b": the run goes on\n\n"
EVENTS_A_TURN: Final = 50  # before others have theirs: a client on this machine reads as fast as is written


async def stream_run(
    exchange: Exchange, events: AsyncGenerator[tuple[int, Event], None], heartbeat_s: float = HEARTBEAT_S
) -> web.StreamResponse:
    """Answer with a stream of a run's events, and close them, whatever happens."""
    exchange.streamed = True
    async with aclosing(events):
        out = await EventWriter.open(exchange)
        heart = Heart(out, exchange, heartbeat_s)
        broken = False
        try:
            await _pump(events, out, heart)
            out.write(DONE)
        except Exception as error:
            if isinstance(error, ConnectionError):
                raise
            broken = True
            out.write(_error_event(exchange, error) + DONE)
        finally:
            heart.stop()
        return await out.close(broken=broken)


class Heart:
    """Writes a comment whenever nothing else was written for a while. Made on the event loop; `stop` it."""

    def __init__(self, out: EventWriter, exchange: Exchange, every_s: float) -> None:
        self.busy = False  # whether something was written since the last beat
        self._out = out
        self._request = exchange.request
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(every_s, self._beat)

    def stop(self) -> None:
        """No more of them."""
        self._timer.cancel()

    def _beat(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        if not self.busy and not self._request.protocol.writing_paused:
            self._out.write(HEARTBEAT)
        self.busy = False
        self._timer = self._loop.call_later(self._every_s, self._beat)


async def _pump(events: AsyncGenerator[tuple[int, Event], None], out: EventWriter, heart: Heart) -> None:
    turn = 0
    async for number, event in events:
        data = msgspec.json.encode(event_object(number, event))
        heart.busy = True
        if out.write(b"id: %d\ndata: %b\n\n" % (number, data)):
            await out.drain()
        turn += 1
        if turn % EVENTS_A_TURN == 0:
            await asyncio.sleep(0)


def _error_event(exchange: Exchange, error: Exception) -> bytes:
    refusal = translate(error)
    if refusal.status == 500:
        logging.getLogger(__name__).error("stream failed", extra={"request_id": exchange.id}, exc_info=error)
    exchange.error_code = refusal.code
    exchange.end_reason = "failed"
    return b"data: %b\n\n" % refusal.body()

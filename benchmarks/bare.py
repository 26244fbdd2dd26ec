"""The least that a server can do: constant chunks at a fixed pace, written by one timer to keep-alive connections.

No HTTP parser, no JSON, no task, no engine: what is left is the kernel, the event loop and this machine's noise. It is
the control beside which ACU's lag and CPU are to be read.

    python -m benchmarks.bare --port 8000 [--pace 20]

Answers `GET /lag` with the p99 of its loop's lag over the last ten seconds in milliseconds, as JSON, and each POST with a
stream of `max_tokens` chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import re
from typing import cast

import uvloop

from acu.process.pulse import RecentLag, beat
from acu.process.systemd import Notifier

TICK_S = 0.001
GOLDEN = 0.6180339887498949
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"scripted","choices":[{"index":0,"delta":{"content":"t"},"logprobs":null,"finish_reason":null}],'
    b'"usage":null}\n\n'
)
END = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Pacer:
    """Writes to each open stream what is due."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.loop = asyncio.get_running_loop()
        self.due: list[tuple[float, int, Connection]] = []
        self.opened = 0
        self.lag = RecentLag()

    def add(self, stream: Connection) -> None:
        """A stream begins, out of phase with the others."""
        self.opened += 1
        heapq.heappush(self.due, (self.loop.time() + self.opened * GOLDEN % 1.0 * self.interval_s, self.opened, stream))

    def tick(self) -> None:
        """Write what is due by now, for ever."""
        horizon = self.loop.time() + TICK_S
        while self.due and self.due[0][0] <= horizon:
            at, number, stream = heapq.heappop(self.due)
            if stream.write_next():
                heapq.heappush(self.due, (at + self.interval_s, number, stream))
        self.loop.call_later(TICK_S, self.tick)


class Connection(asyncio.Protocol):
    """A client, which sends one request at a time, whole."""

    CHUNK = chunk(EVENT)

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.left = self.total = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if data.startswith(b"GET /"):
            body = json.dumps(self.pacer.lag.p99_ms()).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        elif (asked := MAX_TOKENS.search(data)) is not None:
            self.left = self.total = int(asked[1])
            self.transport.write(HEAD)
            self.pacer.add(self)

    def write_next(self) -> bool:
        """Write one chunk. False when it was the last, or nobody is there."""
        if self.transport is None:
            return False
        self.left -= 1
        if self.left > 0:
            self.transport.write(self.CHUNK)
            return True
        self.transport.write(self.CHUNK + chunk(END % self.total) + b"0\r\n\r\n")
        return False


async def serve(port: int, pace: float) -> None:
    """Serve for ever on the loopback, `pace` chunks a second to each stream."""
    pacer = Pacer(1 / pace)
    await pacer.loop.create_server(lambda: Connection(pacer), "127.0.0.1", port, backlog=4096)
    pacer.tick()
    await beat(pacer.lag.observe, Notifier(None), None)


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pace", type=float, default=20.0, help="chunks a second of a stream")
    args = parser.parse_args()
    uvloop.run(serve(args.port, args.pace))


if __name__ == "__main__":
    main()

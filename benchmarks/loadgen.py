"""A client load: streaming chat completions over keep-alive connections, timed at the socket.

It runs as a process of its own (`python -m benchmarks.loadgen`), so that its CPU is never counted as a server's. The
parser is as thin as honesty allows: it finds each `data:` line, tells whether it carries content, and takes the clock
once a read. What came in one read came at one time.

Prints one JSON object: see `Result`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop

DONE = b"data: [DONE]"


@dataclass
class Result:
    """What a round of load saw. Times in seconds; `itl` are gaps between reads that carried chunks."""

    requests: int = 0
    errors: int = 0
    chunks: int = 0  # data lines with a choice, the role's and the finish's included
    content_chunks: int = 0  # data lines with non-empty content
    tokens: int = 0  # from the usage chunk
    wall_s: float = 0.0
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)


class Stream(asyncio.Protocol):
    """One connection; `ask` sends a request, and its future resolves when [DONE] was read."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.buffer = b""
        self.done: asyncio.Future[None] | None = None
        self.started = self.last = 0.0
        self.first = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("closed in mid-stream"))

    def ask(self, request: bytes) -> asyncio.Future[None]:
        assert self.transport is not None
        self.done = asyncio.get_running_loop().create_future()
        self.buffer = b""
        self.first = True
        self.last = 0.0
        self.started = time.perf_counter()
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        lines = (self.buffer + data).split(b"\n")
        self.buffer = lines.pop()
        result = self.result
        content = False
        for line in lines:
            if not line.startswith(b"data: "):
                if line.startswith(b"HTTP/1.1 ") and not line.startswith(b"HTTP/1.1 200"):
                    self._fail(line)
                continue
            if b'"content":"' in line:
                result.chunks += 1
                if b'"content":""' not in line:
                    result.content_chunks += 1
                    content = True
            elif b'"choices":[{' in line:
                result.chunks += 1
            elif b'"usage":{' in line:
                result.tokens += json.loads(line[6:])["usage"]["completion_tokens"]
            elif line.startswith(DONE) and self.done is not None and not self.done.done():
                self.done.set_result(None)
            elif line.startswith(b'data: {"error"'):
                self._fail(line)
        if content:
            if self.first:
                self.first = False
                result.ttft.append(now - self.started)
            else:
                result.itl.append(now - self.last)
            self.last = now

    def _fail(self, line: bytes) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(RuntimeError(line.decode(errors="replace")))


def request(host: str, model: str, prompt: str, max_tokens: int) -> bytes:
    """One streaming request, ready for the wire."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(host: str, port: int, model: str, concurrency: int, requests: int, max_tokens: int) -> Result:
    """Keep `concurrency` streams open until `requests` have been answered."""
    result = Result()
    loop = asyncio.get_running_loop()
    left = iter(range(requests))

    async def worker(number: int) -> None:
        _, stream = await loop.create_connection(lambda: Stream(result), host, port)
        for turn in left:
            prompt = f"Write about number {number * 7919 + turn * 104729} at length, please."
            try:
                await stream.ask(request(f"{host}:{port}", model, prompt, max_tokens))
                result.requests += 1
            except (ConnectionError, RuntimeError) as error:
                result.errors += 1
                print(error, flush=True)
                _, stream = await loop.create_connection(lambda: Stream(result), host, port)
        assert stream.transport is not None
        stream.transport.close()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(concurrency):
            group.create_task(worker(number))
    result.wall_s = time.perf_counter() - started
    return result


def main() -> None:
    """Run one round of load and print what it saw as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    result = uvloop.run(load(args.host, args.port, args.model, args.concurrency, args.requests, args.max_tokens))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()

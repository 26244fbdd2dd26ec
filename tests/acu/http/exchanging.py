"""The connection of a client whose request is answered by a function of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from acu.http.exchange import Exchange, Peer

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def exchanging(
    answer: Callable[[Exchange], Awaitable[web.StreamResponse]],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Behind the head of the answer."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return await answer(Exchange(request, Peer("tcp", loopback=True), closing=False))

    runner = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2], limit=1 << 16)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
    finally:
        writer.transport.abort()
        await runner.cleanup()

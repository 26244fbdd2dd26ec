"""Handshakes: TLS connections on their way in, so few at a time that they starve nobody.

A connection is one of the server's (server.py) once its handshake is done. Until then it holds a file descriptor, and
nobody knows whether there is a client that will ever say anything. So sockets are accepted here one by one: at most
HANDSHAKES of them at a time, each for `header_timeout_s`; the next ones wait in the kernel's listen queue, where they
cost the process nothing. While some wait there, a handshake has PATIENCE_S only, so that the silent keep nobody out for long:
the oldest gives way. A connection that the server then refuses keeps its place until it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from acu.http.errors import HttpError
from acu.http.exchange import Peer

if TYPE_CHECKING:
    from acu.http.server import FaceServer

HANDSHAKES = 64
PATIENCE_S = 2.0
GOODBYE_S = 1.0  # for a client to read that there is no room; it is cut off then
RETRY_S = 0.1

TOO_SLOW = HttpError(408, "The TLS handshake took too long.", code="handshake_timeout")

log = logging.getLogger(__name__)


class TlsSite(web.BaseSite):
    """One listening socket whose connections speak TLS."""

    def __init__(
        self,
        runner: web.BaseRunner,
        server: FaceServer,
        sock: socket.socket,
        context: Callable[[], ssl.SSLContext],
        *,
        backlog: int,
    ) -> None:
        """`context` is asked for each handshake."""
        super().__init__(runner, ssl_context=context(), backlog=backlog)
        self._connections = server
        self._sock = sock
        self._context = context
        self._room = asyncio.Semaphore(HANDSHAKES)
        self._begun: dict[
            asyncio.Task[None], float
        ] = {}  # of each that has a place, the oldest first: when, on the loop's clock
        self._gave_way: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Where it listens."""
        host, port = self._sock.getsockname()[:2]
        return f"https://{host}:{port}"

    async def start(self) -> None:
        """Begin to accept."""
        await super().start()
        self._sock.listen(self._backlog)
        self._sock.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self) -> None:
        """Accept nothing more, give up the handshakes, and close the socket."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        self._sock.close()
        await super().stop()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as handshakes:
            while True:
                await self._find_room()
                try:
                    sock, address = await loop.sock_accept(self._sock)
                except OSError as error:  # its client has gone again, or there is no descriptor left
                    self._room.release()
                    log.debug("a connection could not be accepted", extra={"why": error.strerror})
                    await asyncio.sleep(RETRY_S)
                else:
                    admitted = handshakes.create_task(self._admit(sock, address[0]))
                    self._begun[admitted] = loop.time()
                    admitted.add_done_callback(self._leave)

    async def _find_room(self) -> None:
        """Return with a place for one more."""
        clock = asyncio.get_running_loop().time
        while True:
            oldest, since = next(iter(self._begun.items()), (None, 0.0))
            if oldest is not None and self._room.locked() and clock() - since >= PATIENCE_S and self._somebody_waits():
                del self._begun[oldest]
                self._gave_way.add(oldest)
                oldest.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._room.acquire()
                    return

    def _somebody_waits(self) -> bool:
        queue = select.poll()
        queue.register(self._sock, select.POLLIN)
        return bool(queue.poll(0))

    def _leave(self, admitted: asyncio.Task[None]) -> None:
        self._begun.pop(admitted, None)
        self._gave_way.discard(admitted)
        self._room.release()

    async def _admit(self, sock: socket.socket, address: str) -> None:
        peer = Peer("tcp", loopback=False, address=address)
        try:
            await self._shake_hands(sock)
        except asyncio.CancelledError:
            if asyncio.current_task() in self._gave_way:
                self._connections.face.cut(TOO_SLOW, peer)
            raise
        except OSError as error:  # which TLS's errors are, too
            self._connections.face.cut(handshake_error(error), peer)
        except Exception:
            log.exception("a TLS connection could not be let in")

    async def _shake_hands(self, sock: socket.socket) -> None:
        connection = self._connections()
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection,
            sock,
            ssl=self._context(),
            ssl_handshake_timeout=self._connections.face.settings.header_timeout_s,
            ssl_shutdown_timeout=self._connections.face.settings.slow_reader_s,
        )
        if connection.line is None:
            try:
                await asyncio.sleep(GOODBYE_S)
            finally:
                transport.abort()


def handshake_error(error: OSError) -> HttpError:
    """What is told of a handshake that came to nothing."""
    if isinstance(error, ConnectionAbortedError):  # the loop's word for its time being over
        return TOO_SLOW
    return HttpError(400, "The TLS handshake failed.", code="handshake_failed")

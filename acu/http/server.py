"""The server: makes the connections, counts them, and ends them.

Ending: `begin_drain` makes every answer the last of its connection; `settled` waits until all have been read by their
clients; `cleanup` cancels what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from aiohttp import web
from aiohttp.http import HttpVersion, HttpVersion10, HttpVersion11, RawRequestMessage

from acu.http.app import Face
from acu.http.connection import MAX_HEADER_BYTES, TOO_MANY, Connection, waits
from acu.http.errors import HttpError
from acu.http.exchange import Peer
from acu.http.handshakes import TlsSite
from acu.http.idle import Idle

SPOKEN = (HttpVersion10, HttpVersion11)
ODD_VERSION = web.RequestKey("odd_version", HttpVersion)
FLUSH_S = 1.0
SETTLE_EVERY_S = 0.02
RESERVE = 16  # connections of the unix socket beyond max_connections; these and the next: of descriptors.py's SPARE
GUESTS = 16  # at a time over TCP beyond max_connections, for a probe each
PROBE_EVERY_S = 10  # of a silent client, from three times that on
PROBES = frozenset({"/healthz", "/readyz"})
LINGER_S = 2.0  # how long a refused body is read away, so that the client gets to read the refusal


class Connections(NamedTuple):
    """How many there are now; how many were closed since the start: idle, for others, and with an answer unread."""

    open: int
    made_room: int
    unread: int


class FaceServer(web.Server):
    """Makes the connections and counts them."""

    def __init__(self, face: Face) -> None:
        super().__init__(self._handle, handler_cancellation=True)
        self.face = face
        self.idle: Idle[Connection] = Idle()
        self.guests: set[Connection] = set()
        self.unread = 0
        """How many connections were cut off because an answer was not read, since the start."""
        self._answering = 0
        settings = face.settings
        self._options = {
            "keepalive_timeout": settings.idle_timeout_s,
            "access_log": None,
            "max_line_size": MAX_HEADER_BYTES,
            "max_field_size": MAX_HEADER_BYTES,
            "max_headers": 100,
            "lingering_time": LINGER_S,
            "auto_decompress": False,
        }

    def place(self, peer: Peer) -> Literal["own", "guest"] | None:
        """What one more connection gets: a place of its own, a guest's, or None where it is one too many."""
        over = len(self._connections) - len(self.guests) - self.face.settings.max_connections
        if over < 0 or self._make_room() or (peer.kind == "unix" and over < RESERVE):
            return "own"
        return "guest" if peer.kind == "tcp" and len(self.guests) < GUESTS else None

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, for one that comes; False where none is to be closed."""
        idle = self.idle.give_way(asyncio.get_running_loop().time(), lambda connection: connection.quiet)
        if idle is None:
            return False
        line = idle.line
        idle.force_close()
        if line is not None:
            line.abort()  # nothing is on its way; over TLS it would wait for the client's goodbye
        return True

    @property
    def open_connections(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    @property
    def transports(self) -> list[asyncio.Transport]:
        """The transports of all connections, closing ones included."""
        return [c.line for c in self._connections if isinstance(c, Connection) and c.line is not None]

    @property
    def owes(self) -> bool:
        """Whether an answer is being made, or has not left this process for its reader."""
        return self._answering > 0 or any(line.get_write_buffer_size() for line in self.transports)

    def __call__(self) -> Connection:
        """A protocol for a connection that was just accepted."""
        return Connection(self, **self._options)

    def _make_request(self, message: RawRequestMessage, *rest: Any) -> web.BaseRequest:
        """A request; one of a version that is not spoken here carries it as ODD_VERSION, and is answered in 1.1."""
        if message.version in SPOKEN:
            return super()._make_request(message, *rest)
        request = super()._make_request(message._replace(version=HttpVersion11, should_close=True), *rest)
        request[ODD_VERSION] = message.version
        return request

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        if (version := request.get(ODD_VERSION)) is not None:
            return self.face.refuse(request, connection.peer, version_error(version))
        if (guest := connection in self.guests) and request.path not in PROBES:
            return self.face.refuse(request, connection.peer, TOO_MANY)
        self._answering += 1
        if connection.half_closed:
            asyncio.get_running_loop().call_soon(connection.hang_up)  # what needs no waiting is answered before that
        try:
            return await self.face.handle(request, connection.peer, last=guest)
        finally:
            self._answering -= 1
            connection.unanswered = connection.has_more
            if not guest and not connection.unanswered and connection.transport is not None:  # else it closes
                self.idle.rest(connection, asyncio.get_running_loop().time())
            if request.content.exception() is not None:
                connection.stop_lingering()


class FaceRunner(web.ServerRunner):
    """The life of the server: `setup`, `listen` on each socket, `begin_drain`, `settled`, `cleanup`."""

    __slots__ = ("_face",)

    def __init__(self, server: FaceServer, face: Face, *, shutdown_timeout: float) -> None:
        super().__init__(server, shutdown_timeout=shutdown_timeout)
        self._face = face

    @property
    def connections(self) -> Connections:
        """The account of the connections."""
        server = self.server
        if not isinstance(server, FaceServer):
            return Connections(0, 0, 0)
        return Connections(server.open_connections, server.idle.closed, server.unread)

    async def listen(
        self, sock: socket.socket, tls: Callable[[], ssl.SSLContext] | None = None, *, backlog: int = 4096
    ) -> None:
        """Serve a socket, TCP or unix, that is bound (and may listen already). `tls` is asked for each handshake."""
        if sock.family != socket.AF_UNIX:
            notice_vanished(sock, self._face.settings.slow_reader_s)
        if tls is None:
            await web.SockSite(self, sock, backlog=backlog).start()
        else:
            assert isinstance(self.server, FaceServer)
            await TlsSite(self, self.server, sock, tls, backlog=backlog).start()

    def begin_drain(self) -> None:
        """From now on every answer is the last of its connection."""
        self._face.draining = True

    async def settled(self) -> None:
        """Return when every answer that was begun has gone to its reader."""
        server = self.server
        while isinstance(server, FaceServer) and server.owes:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(SETTLE_EVERY_S)

    async def cleanup(self) -> None:
        """Close everything. What is written has `FLUSH_S` to reach its reader; who does not read is cut off then.

        An answer that waits for its reader is still being made, so that it is cut off while those in flight are
        waited for, and keeps nobody waiting.
        """
        server = self.server
        transports = server.transports if isinstance(server, FaceServer) else []
        cut = asyncio.get_running_loop().call_later(FLUSH_S, _abort_unread, transports)
        await super().cleanup()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(cut.when()):
                while any(map(waits, transports)):  # noqa: ASYNC110  # nothing tells
                    await asyncio.sleep(0.01)
        cut.cancel()
        for transport in transports:
            transport.abort()


def make_runner(face: Face, *, shutdown_timeout: float = 5.0) -> FaceRunner:
    """A runner for the daemon. `cleanup` waits `shutdown_timeout` seconds for what is in flight, then cancels it."""
    return FaceRunner(FaceServer(face), face, shutdown_timeout=shutdown_timeout)


def notice_vanished(sock: socket.socket, slow_reader_s: float) -> None:
    """Have the kernel end connections whose client left without a word. The sockets that `sock` accepts inherit it.

    A silent client is asked, and one that acknowledges nothing for six times PROBE_EVERY_S, or a little more than
    `slow_reader_s` if that is longer, is gone: who does acknowledge and does not read is connection.py's matter.
    """
    gone_s = max(6 * PROBE_EVERY_S, slow_reader_s + 5)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3 * PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(gone_s * 1000), 2**31 - 1))


def _abort_unread(transports: list[asyncio.Transport]) -> None:
    for transport in filter(waits, transports):
        transport.abort()


def version_error(version: HttpVersion) -> HttpError:
    """The refusal of another version than HTTP/1.0 and HTTP/1.1."""
    text = f"HTTP/{version.major}.{version.minor} is not spoken here; use HTTP/1.1."
    return HttpError(400, text, code="unsupported_version", close=True)

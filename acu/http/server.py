"""The connections: limits that hold before there is a request, and answers to what is none.

aiohttp's protocol is kept as it is but for these rules, in the order in which a connection meets them:

1. Above `max_connections` a connection is accepted, told 503 and closed, so that the listen queue never backs up.
2. From a request's first byte, its headers have `header_timeout_s`; then 408. The timer is armed only when a read ends
   within headers, so that a request that comes whole costs none. Their size is bounded: 431.
3. What the parser refuses gets 400 in OpenAI's error shape, and the connection is closed.
4. Bodies are bounded in size, time and number where they are read (bodies.py).
5. A connection with no request is closed after `idle_timeout_s` (aiohttp's keep-alive timer, from the accept on).

A client that closes its sending half within a request has truncated it: 400. One that closes it before its answer has
come counts as gone (`eof_received` says why). Ending: `begin_drain` makes every answer the last of its connection;
`settled` waits until all have been read by their clients; `cleanup` cancels what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from acu.http.app import Face
from acu.http.errors import HttpError, raw_response, translate
from acu.http.exchange import Peer

MAX_HEADER_BYTES = 32 * 1024  # of the request line, of a header, and of all headers that came in pieces
FLUSH_S = 1.0
SETTLE_EVERY_S = 0.02
LINGER_S = 2.0  # how long a refused body is read away, so that the client gets to read the refusal
NO_PEER = Peer("tcp", loopback=False)
HALF_CLOSED = HttpError(
    400, "The sending half of the connection was closed. Keep it open until the answer has come.", code="half_closed"
)


class Connection(RequestHandler):
    """One client connection."""

    __slots__ = (
        "_face",
        "_head_bytes",
        "_head_timer",
        "_payload",
        "_settings",
        "half_closed",
        "line",
        "peer",
        "unanswered",
    )

    def __init__(self, server: FaceServer, face: Face, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.peer = NO_PEER
        self.line: asyncio.Transport | None = None  # aiohttp forgets its own as soon as it closes it
        self.half_closed = False  # whether the client sends no more, and its last request has not been begun
        self.unanswered = False  # whether the last request that was read still waits for its answer
        self._face = face
        self._settings = face.settings
        self._payload: StreamReader = EMPTY_PAYLOAD
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or say that there is no room."""
        assert isinstance(self._manager, FaceServer)
        if self._manager.full:
            self.transport = transport  # type: ignore[assignment]
            self._cut(
                HttpError(503, "Too many connections.", code="too_many_connections", headers={"retry-after": "1"})
            )
            return
        self.peer = peer_of(transport)
        self.line = cast("asyncio.Transport", transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Parse, and watch over headers that do not come whole."""
        before = self._request_count
        in_body = not self._payload.is_eof()
        super().data_received(data)
        if self._request_count != before:
            if self._messages:
                self._payload = self._messages[-1][1]
                self.unanswered = True
            self._forget_head()
        elif data and not in_body and not self._force_close and not self._close:
            self._head_continues(len(data))

    def _head_continues(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEADER_BYTES:
            self._cut(HttpError(431, "The headers are too large.", code="headers_too_large"))
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(self._settings.header_timeout_s, self._head_overdue)

    def _forget_head(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_overdue(self) -> None:
        self._head_timer = None
        message = f"The headers did not arrive within {self._settings.header_timeout_s:g} seconds."
        self._cut(HttpError(408, message, code="header_timeout"))

    def _cut(self, error: HttpError) -> None:
        """Answer and close, with no request to answer to. A request still being answered keeps its answer."""
        self._forget_head()
        if self.transport is not None and not self._request_in_progress:
            self.transport.write(raw_response(error))
            self._face.cut(error, self.peer)
            self.force_close()
        else:
            self.close()

    def stop_lingering(self) -> None:
        """There is no more of the body to be read away."""
        self._lingering_time = 0.0

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp never keeps a connection, asyncio may
        """The client sends no more: it is gone, or has truncated its request. True keeps the connection for the answer.

        It could be a client that goes on reading: the network says the same of both, and to ask, by writing, reaches
        the next hop only: a tunnel or proxy takes bytes for a client that has left. Nearly all are gone, and an answer
        that nobody reads costs the engine seconds. So the end of what is sent ends the request, as it does in nginx and
        uvicorn. Who does read on is told so.
        """
        if self._head_bytes:
            self._cut(HttpError(400, "The request ends within its headers.", code="truncated_request"))
        elif self.unanswered and not self.ssl_context:
            if not self._payload.is_eof():
                self._payload.set_exception(web.RequestPayloadError("it ends too soon"))
                self.close()
                return True
            if self._current_request is None:
                self.half_closed = True  # the request came with it, and is begun first: what ends it leaves a record
                return True
            self.hang_up()
        return False

    def hang_up(self) -> None:
        """End the connection of a client that sends no more, and with it what is being done for it."""
        request = self._current_request
        if self.transport is not None and request is not None and not request.writer.output_size:
            self.transport.write(raw_response(HALF_CLOSED))
        self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nothing more will come."""
        self._forget_head()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the parser refused, in the shape that all errors have; anything else is a fault of ours."""
        del status, message
        if isinstance(exc, ConnectionError):
            raise exc  # the client is gone; aiohttp ends the connection
        if isinstance(exc, HttpProcessingError):
            return self._face.refuse(request, self.peer, parse_error(exc))
        self.logger.error("a request could not be answered", exc_info=exc)
        return self._face.refuse(request, self.peer, translate(exc if isinstance(exc, Exception) else RuntimeError()))


class FaceServer(web.Server):
    """Makes the connections and counts them."""

    def __init__(self, face: Face) -> None:
        super().__init__(self._handle, handler_cancellation=True)
        self._face = face
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

    @property
    def full(self) -> bool:
        """Whether one more connection is one too many."""
        return len(self._connections) >= self._face.settings.max_connections

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
        return Connection(self, self._face, **self._options)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        self._answering += 1
        if connection.half_closed:
            asyncio.get_running_loop().call_soon(connection.hang_up)  # what needs no waiting is answered before that
        try:
            return await self._face.handle(request, connection.peer)
        finally:
            self._answering -= 1
            connection.unanswered = False
            if request.content.exception() is not None:
                connection.stop_lingering()


class FaceRunner(web.ServerRunner):
    """The life of the server: `setup`, `listen` on each socket, `begin_drain`, `settled`, `cleanup`."""

    __slots__ = ("_face",)

    def __init__(self, server: FaceServer, face: Face, *, shutdown_timeout: float) -> None:
        super().__init__(server, shutdown_timeout=shutdown_timeout)
        self._face = face

    @property
    def open_connections(self) -> int:
        """How many connections there are."""
        server = self.server
        return server.open_connections if isinstance(server, FaceServer) else 0

    async def listen(self, sock: socket.socket, ssl_context: Any = None, *, backlog: int = 4096) -> None:
        """Serve a socket, TCP or unix, that is bound (and may listen already)."""
        await web.SockSite(self, sock, ssl_context=ssl_context, backlog=backlog).start()

    def begin_drain(self) -> None:
        """From now on every answer is the last of its connection."""
        self._face.draining = True

    async def settled(self) -> None:
        """Return when every answer that was begun has gone to its reader."""
        server = self.server
        while isinstance(server, FaceServer) and server.owes:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(SETTLE_EVERY_S)

    async def cleanup(self) -> None:
        """Close everything. What is written has `FLUSH_S` to reach its reader; who does not read is cut off then."""
        server = self.server
        transports = server.transports if isinstance(server, FaceServer) else []
        await super().cleanup()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while any(transport.get_write_buffer_size() for transport in transports):  # noqa: ASYNC110  # nothing tells
                    await asyncio.sleep(0.01)
        for transport in transports:
            transport.abort()


def make_runner(face: Face, *, shutdown_timeout: float = 5.0) -> FaceRunner:
    """A runner for the daemon. `cleanup` waits `shutdown_timeout` seconds for what is in flight, then cancels it."""
    return FaceRunner(FaceServer(face), face, shutdown_timeout=shutdown_timeout)


def parse_error(error: BaseException | None) -> HttpError:
    """The refusal for what the parser raised. Its own words may quote binary; they are not repeated."""
    if isinstance(error, LineTooLong):
        return HttpError(431, "The request line or a header is too long.", code="headers_too_large", close=True)
    if isinstance(error, BadHttpMethod):
        return HttpError(400, "This is not HTTP, or its method is none.", code="bad_request_line", close=True)
    text = str(getattr(error, "message", "")).partition("\n")[0][:120]
    if text.startswith("Too many headers"):
        return HttpError(431, "There are too many headers.", code="headers_too_large", close=True)
    printable = text if text.isascii() and text.isprintable() else "the request cannot be parsed"
    return HttpError(400, f"The request is not valid HTTP: {printable.rstrip(':.')}.", code="bad_request", close=True)


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Who is at the other end. A unix socket's uid is the kernel's word, not the client's."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        return Peer("unix", loopback=True, uid=uid, address="unix")
    name = transport.get_extra_info("peername")
    host = name[0] if name else ""
    loopback = host.startswith(("127.", "::ffff:127.")) or host == "::1"
    return Peer("tcp", loopback=loopback, address=host)

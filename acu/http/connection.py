"""Connection: limits that hold before there is a request, and answers to what is none.

aiohttp's protocol is kept as it is but for these rules, in the order in which a connection meets them:

1. Above `max_connections` the connection that has been idle for longest makes room for a new one (idle.py). Where none is
   idle a few more come in: RESERVE of the unix socket (the operator, the box's own agent), and over TCP GUESTS at a time,
   which have GUEST_S in all for one request, and get 503 unless it is one of PROBES. What comes beyond is accepted, told
   503 and closed, so that the listen queue never backs up.
2. From a request's first byte, its headers have `header_timeout_s`; then 408. The timer is armed only when a read ends
   within headers, so that a request that comes whole costs none. Their size is bounded: 431.
3. What the parser refuses gets 400 in OpenAI's error shape, and the connection is closed. It is given one message at a
   time, so that what comes in one read with a mistake, and before it, is answered.
4. Bodies are bounded in size, time and number where they are read (bodies.py).
5. Of an answer that waits for its reader, `LEAST_READ` bytes or all that is left must be taken every `slow_reader_s`;
   else the connection is aborted. The timer runs only while the transport's buffer is full, or is the last to close.
6. A connection with no request is closed after `idle_timeout_s` (aiohttp's keep-alive timer, from the accept on).
7. A client that vanished without closing is found out by the kernel, also while its answer is made (server.py).

A client that closes its sending half within a request has truncated it: 400. One that closes it before its answer has
come counts as gone (`eof_received` says why). TLS comes before all of this (handshakes.py), and server.py makes and ends
the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler

from acu.http.errors import HttpError, raw_response, translate
from acu.http.exchange import END_REASON, Peer

if TYPE_CHECKING:
    from acu.http.server import FaceServer

MAX_HEADER_BYTES = 32 * 1024  # of the request line, of a header, and of all headers that came in pieces
HEAD_END = b"\r\n\r\n"
LEAST_READ = 32 * 1024
GUEST_S = 2.0
TOO_MANY = HttpError(
    503, "Too many connections.", code="too_many_connections", headers={"retry-after": "1"}, close=True
)
NO_PEER = Peer("tcp", loopback=False)
HALF_CLOSED = HttpError(
    400, "The sending half of the connection was closed. Keep it open until the answer has come.", code="half_closed"
)


class Connection(RequestHandler):
    """One client connection."""

    __slots__ = (
        "_face",
        "_guest_timer",
        "_head_bytes",
        "_head_timer",
        "_length",
        "_payload",
        "_reader_timer",
        "_server",
        "_settings",
        "half_closed",
        "line",
        "peer",
        "unanswered",
    )

    def __init__(self, server: FaceServer, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.peer = NO_PEER
        self.line: asyncio.Transport | None = None  # aiohttp forgets its own as soon as it closes it
        self.half_closed = False  # whether the client sends no more, and its last request has not been begun
        self.unanswered = False  # whether the last request that was read still waits for its answer
        self._server = server
        self._face = server.face
        self._settings = server.face.settings
        self._payload: StreamReader = EMPTY_PAYLOAD  # of the last request that was read
        self._length = 0  # of that payload as it was announced, in bytes; 0 where it is chunked
        self._reader_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._guest_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    @property
    def has_more(self) -> bool:
        """Whether requests were read that are not begun yet."""
        return bool(self._messages)

    @property
    def quiet(self) -> bool:
        """Whether nothing is asked, being answered or on its way to the client here."""
        line = self.line
        busy = self._request_in_progress or self.unanswered or self._head_bytes or not self._payload.is_eof()
        return not busy and line is not None and not line.is_closing() and not waits(line)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or say that there is no room."""
        self.peer = peer_of(transport)
        place = self._server.place(self.peer)
        if place is None:
            self.transport = transport  # type: ignore[assignment]
            self._cut(TOO_MANY)
            return
        self.line = cast("asyncio.Transport", transport)
        super().connection_made(transport)
        if place == "guest":
            self._server.guests.add(self)
            self._guest_timer = self._loop.call_later(GUEST_S, self._guest_overdue)
        else:
            self._server.idle.rest(self, self._loop.time())
        if self._task_handler is not None:
            self._task_handler.add_done_callback(lambda _: self._watch_reader())  # it has closed the transport

    def data_received(self, data: bytes) -> None:
        """Parse one head or body at a time, and watch over headers that do not come whole."""
        self._server.idle.wake(self)
        at = 0
        while (end := self._part_end(data, at)) < len(data) and not self._buffer_paused:
            self._parse(data[at:end])
            at = end
        self._parse(data[at:] if at else data)

    def _part_end(self, data: bytes, at: int) -> int:
        """Where the head or body that goes on at `at` ends; at the latest where `data` does."""
        if not self._payload.is_eof():
            left = self._length - self._payload.total_bytes
            return min(at + left, len(data)) if left > 0 else len(data)  # of a chunked one only the parser knows
        end = data.find(HEAD_END, at)
        return len(data) if end < 0 else end + len(HEAD_END)

    def _parse(self, data: bytes) -> None:
        before = self._request_count
        in_body = not self._payload.is_eof()
        super().data_received(data)
        if self._request_count != before:
            if self._messages:
                self._take_up(*self._messages[-1], in_body=in_body)
            self._forget_head()
        elif data and not in_body and not self._force_close and not self._close:
            self._head_continues(len(data))

    def _take_up(self, message: object, payload: StreamReader, *, in_body: bool) -> None:
        """Go on with what the parser made of the latest head, or of a mistake."""
        if in_body and not self._payload.is_eof() and not isinstance(message, RawRequestMessage):
            self._messages.pop()  # it is the body that is broken: one answer is enough
            self._break_body("it is not chunked as HTTP has it")
            return
        self._payload = payload
        if isinstance(message, RawRequestMessage):
            self._length = int(message.headers.get("Content-Length", 0))
        self.unanswered = True

    def _break_body(self, why: str) -> None:
        """No more of the last request's body will come. Its answer, if it has none yet, is the connection's last."""
        if self.unanswered:
            self._payload.set_exception(web.RequestPayloadError(why))
        else:
            self._payload.feed_eof()
        self.close()

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

    def _guest_overdue(self) -> None:
        if self.quiet or self._head_bytes:
            self._cut(TOO_MANY)
        elif self.line is not None:
            self.line.abort()  # its body, or its reader, is slow

    def _cut(self, error: HttpError) -> None:
        """Answer and close, with no request to answer to. A request still being answered keeps its answer."""
        self._forget_head()
        if self.transport is not None and not self._request_in_progress and not self.unanswered:
            self.transport.write(raw_response(error))
            self._face.cut(error, self.peer)
            self.force_close()
        else:
            self.close()

    # Readers

    def pause_writing(self) -> None:
        """The transport's buffer is full: the client has to read now."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self.line is not None and not self.line.is_closing():
            self._forget_reader()

    def _watch_reader(self) -> None:
        if self._reader_timer is None and self.line is not None and waits(self.line):
            self._reader_timer = self._loop.call_later(
                self._settings.slow_reader_s, self._reader_overdue, unread(self.line)
            )

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _reader_overdue(self, before: int) -> None:
        """`slow_reader_s` ago there were `before` bytes to read."""
        assert self.line is not None
        self._reader_timer = None
        if before - unread(self.line) >= LEAST_READ:
            self._watch_reader()
            return
        self._server.unread += 1
        if self._current_request is not None:
            self._current_request[END_REASON] = "slow_reader"  # told of with the request
        else:
            self._face.cut(HttpError(408, "The answer was not read.", code="slow_reader"), self.peer)
        self.line.abort()

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
        if self._head_bytes and not self.unanswered:
            self._cut(HttpError(400, "The request ends within its headers.", code="truncated_request"))
        elif self.unanswered and not self.ssl_context:
            if not self._payload.is_eof():
                self._break_body("it ends too soon")
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
        self._forget_reader()
        if self._guest_timer is not None:
            self._guest_timer.cancel()
        self._server.guests.discard(self)
        self._server.idle.gone(self)
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


def unread(transport: asyncio.Transport) -> int:
    """How many of the bytes written to it a client has not taken yet, those in the kernel's queue included.

    That queue tells of room only when much of it is free: without it, who reads slowly would seem not to read at all.
    """
    queued = bytes(struct.calcsize("i"))
    with contextlib.suppress(OSError):
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + int(struct.unpack("i", queued)[0])


def waits(transport: asyncio.Transport) -> bool:
    """Whether something written has not even reached the kernel."""
    return transport.get_write_buffer_size() > 0


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

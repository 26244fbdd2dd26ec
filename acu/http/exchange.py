"""Exchange: the one mutable record of an HTTP request, from its headers to its audit line."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from typing import Literal

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from acu.http.errors import BadRequest
from acu.http.ratelimit import ratelimit_headers
from agentflow.events import Usage
from agentflow.messages import Caller
from agentflow.service import EventStream
from agentflow.status import Capacity

MAX_DEADLINE_MS = 86_400_000
ENCODED_INLINE = 4_000  # values of an answer: about a millisecond
END_REASON = web.RequestKey("end_reason", str)  # of a request, where the server knows why its connection ended
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_DIGITS = re.compile(r"[0-9]{1,9}")


class Peer(Struct, frozen=True):
    """Who is at the other end of a connection, as the kernel tells it. `uid` for unix sockets only."""

    kind: Literal["unix", "tcp"]
    loopback: bool
    uid: int | None = None
    address: str = ""


class RequestRecord(Struct, frozen=True):
    """What is kept of a request once it has ended: never its content, never a key.

    `status` is 499 when the client went away before the answer was complete. `reason` says why an answer that had
    begun did not end well (`client_gone`, `slow_reader`, `failed`). `duration_s` counts from the headers on; `queue_s` is
    the wait for an engine and `ttft_s` the time to the first token, both of the first answer and where there were any.
    """

    request_id: str
    method: str
    route: str
    path: str
    status: int
    code: str | None
    reason: str | None
    model: str | None
    streamed: bool
    tenant: str
    key: str
    admin: bool
    peer: str
    uid: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    duration_s: float
    queue_s: float | None = None
    ttft_s: float | None = None


class Exchange:
    """A request on its way. `id` is what the client may correlate by; `new_id` makes ids for what it starts."""

    __slots__ = (
        "body",
        "caller",
        "capacity",
        "closing",
        "end_reason",
        "error_code",
        "id",
        "model",
        "path_arguments",
        "peer",
        "queue_s",
        "request",
        "route",
        "run_id",
        "started_at",
        "status",
        "streamed",
        "ttft_s",
        "usage",
    )

    def __init__(self, request: web.BaseRequest, peer: Peer, *, closing: bool) -> None:
        self.request = request
        self.peer = peer
        self.closing = closing  # whether the connection must end with this answer
        self.started_at = time.monotonic()
        self.id = new_id("req_")
        self.caller = Caller(name="-")
        self.route = "-"
        self.path_arguments: dict[str, str] = {}
        self.capacity: Callable[[str | None], Capacity] | None = None  # of a rate limited route, once it is admitted
        self.body = b""
        self.model: str | None = None
        self.run_id: str | None = None  # of a run that answers, once it has begun
        self.streamed = False
        self.status = 0
        self.error_code: str | None = None
        self.end_reason: str | None = None
        self.usage = Usage()
        self.queue_s: float | None = None
        self.ttft_s: float | None = None

    def take_body(self) -> bytes:
        """The body, for whoever decodes it: nobody needs it afterwards, and an answer may take minutes."""
        body, self.body = self.body, b""
        return body

    def settle(self, events: EventStream) -> None:
        """Keep what was counted and measured of an answer that is over, whichever way."""
        self.usage, self.queue_s, self.ttft_s = events.usage, events.queue_s, events.ttft_s

    def take_request_id(self) -> None:
        """Adopt the client's x-request-id. Raises BadRequest for one that is no printable ASCII of at most 128."""
        given = self.request.headers.get("x-request-id")
        if given is None:
            return
        if not _REQUEST_ID.fullmatch(given):
            raise BadRequest(
                "The header 'x-request-id' must be 1 to 128 printable ASCII characters.", param="x-request-id"
            )
        self.id = given

    def take_trace(self) -> None:
        """Adopt the caller's place in a trace, from the header traceparent. One that is not well formed counts as none."""
        given = self.request.headers.get("traceparent")
        if given is not None and _TRACEPARENT.fullmatch(given):
            self.caller = replace(self.caller, trace=given)

    def deadline_s(self) -> float | None:
        """Seconds by which an engine must have taken the request, from the header x-acu-deadline-ms."""
        given = self.request.headers.get("x-acu-deadline-ms")
        if given is None:
            return None
        if not _DIGITS.fullmatch(given) or not 1 <= int(given) <= MAX_DEADLINE_MS:
            raise BadRequest(
                f"The header 'x-acu-deadline-ms' must be a number from 1 to {MAX_DEADLINE_MS}.",
                param="x-acu-deadline-ms",
            )
        return int(given) / 1000

    def response_headers(self) -> dict[str, str]:
        """Headers that every answer carries, and for an admitted caller of a rate limited route what is free now."""
        headers = {
            "x-request-id": self.id,
            "openai-processing-ms": str(int((time.monotonic() - self.started_at) * 1000)),
            "server": "acu",
        }
        if self.run_id is not None:
            headers["x-acu-run-id"] = self.run_id
        if self.capacity is not None:
            headers |= ratelimit_headers(self.capacity(self.model))
        return headers

    def json(self, body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
        """An answer with a JSON body."""
        return self.answer(body, "application/json", status=status, headers=headers)

    def answer(
        self, body: bytes, content_type: str, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> web.Response:
        """An answer with a body of any type."""
        self.status = status
        all_headers = {"content-type": content_type, **self.response_headers(), **(headers or {})}
        response = web.Response(body=body, status=status, headers=all_headers)
        if self.closing:
            response.force_close()
        return response

    def record(self) -> RequestRecord:
        """What is kept of it."""
        return RequestRecord(
            request_id=self.id,
            method=self.request.method,
            route=self.route,
            path=_target(self.request),
            status=self.status,
            code=self.error_code,
            reason=self.end_reason,
            model=self.model,
            streamed=self.streamed,
            tenant=self.caller.tenant,
            key=self.caller.name,
            admin=self.caller.admin,
            peer=self.peer.address or self.peer.kind,
            uid=self.peer.uid,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            completion_tokens=self.usage.completion_tokens,
            duration_s=time.monotonic() - self.started_at,
            queue_s=self.queue_s,
            ttft_s=self.ttft_s,
        )


def _target(request: web.BaseRequest) -> str:
    """The path as it was sent, percent signs and all, in ASCII: it ends up on terminals. The query is nobody's matter."""
    return request.raw_path.partition("?")[0][:256].encode("ascii", "backslashreplace").decode()


async def encoded(encode: Callable[[], bytes], size: int) -> bytes:
    """What `encode` makes of an answer of `size` values; in a thread where it would hold the loop for milliseconds."""
    return encode() if size <= ENCODED_INLINE else await asyncio.to_thread(encode)


def new_id(prefix: str) -> str:
    """An id that no other request has: `prefix` and 96 random bits."""
    return prefix + os.urandom(12).hex()

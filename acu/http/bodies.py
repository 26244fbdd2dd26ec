"""Bodies: request bodies are read within bounds of size, time, and memory for all of them together.

A body counts from its first byte until its request is answered, since what was decoded from it lives as long. What is
counted is what has come and not what a Content-Length promises: nobody takes room by announcing much and sending
nothing. When the room for all is used up, whoever sends more is told 503 and when to come again.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.http import HttpVersion11

from acu.http.errors import BadRequest, HttpError, retry_headers
from acu.http.settings import HttpSettings

LARGEST_AT_A_TIME = 16  # bodies of the largest size that have room together
RETRY_S = 1.0


class Bodies:
    """All bodies in memory. `held` is their size in bytes, `room` the most that it may be."""

    def __init__(self, settings: HttpSettings) -> None:
        self.held = 0
        self.room = LARGEST_AT_A_TIME * settings.max_body_bytes
        self._limit = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s

    def of(self, request: web.BaseRequest) -> Body:
        """The body of a request; it counts from `read` until the `with` block around it ends."""
        return Body(self, request, self._limit, self._timeout_s)

    def take(self, size: int) -> None:
        """Count `size` bytes more, or raise HttpError 503."""
        if self.held + size > self.room:
            raise HttpError(
                503,
                "The requests that are being served take all the memory there is for requests.",
                code="bodies_full",
                headers=retry_headers(RETRY_S),
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """`size` bytes are no longer needed."""
        self.held -= size


class Body:
    """The body of one request."""

    def __init__(self, bodies: Bodies, request: web.BaseRequest, limit: int, timeout_s: float) -> None:
        self._bodies = bodies
        self._request = request
        self._limit = limit
        self._timeout_s = timeout_s
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bodies.give_back(self._size)

    async def read(self) -> bytes:
        """The whole of it. Raises HttpError 400, 408, 413, 415, 417, 503."""
        request, content = self._request, self._request.content
        check_headers(request, "application/json")
        if request.content_length is not None and request.content_length > self._limit:
            raise too_large(self._limit)
        invite(request)
        if content.is_eof() and content.total_bytes <= self._limit:
            return await self._whole()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._whole()
        except TimeoutError:
            message = f"The body did not arrive within {self._timeout_s:g} seconds."
            raise HttpError(408, message, code="body_timeout", close=True) from None

    async def _whole(self) -> bytes:
        parts: list[bytes] = []
        content = self._request.content
        try:
            while part := await content.readany():
                if self._size + len(part) > self._limit:
                    raise too_large(self._limit)
                self._bodies.take(len(part))
                self._size += len(part)
                parts.append(part)
        except web.RequestPayloadError as error:
            raise BadRequest(f"The body is broken: {error}.", code="invalid_body") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)


def check_headers(request: web.BaseRequest, media_type: str) -> None:
    """Raise HttpError 400 or 415 for a body that is not of `media_type`, or not sent as it is."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise HttpError(415, "Send the body as it is: no Content-Encoding is supported.", code="unsupported_encoding")
    if ",".join(request.headers.getall("Transfer-Encoding", ["chunked"])).lower() != "chunked":
        raise HttpError(400, "The only Transfer-Encoding is 'chunked'.", code="unsupported_encoding", close=True)
    if request.content_type != media_type:
        raise HttpError(
            415, f"The Content-Type must be {media_type}.", code="unsupported_media_type", param="Content-Type"
        )


def invite(request: web.BaseRequest) -> None:
    """Tell a client that waits to be asked for its body to send it. Raises HttpError 417 for any other expectation."""
    expect = request.headers.get("Expect")
    if expect is None:
        return
    if expect.lower() != "100-continue" or request.version < HttpVersion11:
        raise HttpError(417, "Only 'Expect: 100-continue' is understood.", code="expectation_failed")
    if request.transport is not None and not request.content.is_eof():
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def too_large(limit: int) -> HttpError:
    """The refusal of a body of more than `limit` bytes."""
    return HttpError(413, f"The body is larger than {limit} bytes.", code="body_too_large")

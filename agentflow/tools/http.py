"""HTTP as tools use it: a client for one origin, that connects to checked addresses only, and whose answers are bounded.

`GuardedTransport` stands under every request, those of the MCP SDK too. The name is resolved by it and the address checked
(address.py); the connection then goes to that very address, with the name in `Host` and in TLS. It knows one origin, so that
no redirect and no connection that is kept leads anywhere else, and proxies of the environment are not used.

An answer that is compressed is refused: what it would become cannot be bounded.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import httpx2

from agentflow.tools.address import PORTS, Addresses, AddressRefused, Origin
from agentflow.tools.errors import ToolDied, ToolError, ToolFailed, ToolTimeout, ToolUnavailable
from agentflow.tools.secrets import Secrets

CONNECT_S: Final = 10.0
AGENT: Final = "acu"


async def resolve(host: str, port: int) -> Sequence[str]:
    """The system's resolver, in a thread. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class GuardedTransport(httpx2.AsyncBaseTransport):
    """To one origin. Raises ToolError besides what httpx2 raises.

    `most_bytes`: of one answer, or of no bound where it is a stream of events, which whoever reads it bounds.
    """

    def __init__(self, to: Origin, addresses: Addresses, context: ssl.SSLContext, most_bytes: int) -> None:
        self._to = to
        self._addresses = addresses
        self._most_bytes = most_bytes
        self._inner = httpx2.AsyncHTTPTransport(verify=context, trust_env=False, http2=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        host = url.raw_host.decode("ascii").strip("[]").lower()
        port = url.port or PORTS.get(url.scheme, 0)
        if Origin(url.scheme, host, port) != self._to or url.userinfo:
            raise AddressRefused(f"The server leads away from {self._to}, which is not followed.")
        request.headers["Accept-Encoding"] = "identity"
        failure: httpx2.TransportError | None = None
        for address in await self._addresses.checked(host, port):
            try:
                response = await self._inner.handle_async_request(_pinned(request, host, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
                continue
            return await self._bounded(response)
        assert failure is not None
        raise failure

    async def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            await response.aclose()
            raise ToolFailed("The server compressed its answer although it was asked not to.")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream, self._most_bytes)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """Ends with an error where more comes than may. A StreamError, which the MCP SDK takes as one answer's, and no end of all."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for block in self._stream:
                size += len(block)
                if size > self._most:
                    raise httpx2.StreamError(f"The answer is longer than {self._most:,} bytes.")
                yield block
        except httpx2.TransportError as error:
            raise httpx2.StreamError("The connection was lost in the middle of the answer.") from error

    async def aclose(self) -> None:
        await self._stream.aclose()


def _pinned(request: httpx2.Request, host: str, address: str) -> httpx2.Request:
    """The request as it goes to one address. Its `Host` header names the host still, and so does TLS."""
    extensions = dict(request.extensions)
    if host != address:
        extensions["sni_hostname"] = host
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=extensions,
    )


def client(transport: httpx2.AsyncBaseTransport, headers: Secrets, read_s: float) -> httpx2.AsyncClient:
    """Follows no redirects, and uses nothing of the environment. `read_s`: longest silence within an answer. Close it."""
    sent = httpx2.Headers({"User-Agent": AGENT})
    sent.update(headers.values())
    return httpx2.AsyncClient(
        transport=transport,
        headers=sent,
        timeout=httpx2.Timeout(CONNECT_S, read=read_s),
        follow_redirects=False,
        trust_env=False,
    )


async def body(response: httpx2.Response, secrets: Secrets) -> AsyncGenerator[bytes, None]:
    """The blocks of an answer, with secrets replaced wherever they are cut. Raises httpx2's errors."""
    kept = b""
    async with aclosing(response.aiter_raw()) as blocks:
        async for block in blocks:
            data, kept = secrets.hide_first(kept + block, is_last=False)
            if data:
                yield data
    data, _ = secrets.hide_first(kept, is_last=True)
    if data:
        yield data


def failure(error: Exception, name: str) -> ToolError:
    """What an error of httpx2 means for the call of the tool `name`. Its own words may hold secrets: they are not told."""
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.ConnectError):
        return ToolUnavailable(f"The server of {name} cannot be reached now.")
    if isinstance(error, httpx2.TimeoutException):
        return ToolTimeout(f"The server of {name} did not answer in time.")
    if isinstance(error, httpx2.StreamError):
        return (
            ToolDied(f"{name}: {error}")
            if isinstance(error.__cause__, httpx2.TransportError)
            else ToolFailed(f"{name}: {error}")
        )
    if isinstance(error, httpx2.TransportError):
        return ToolDied(f"The server of {name} ended the connection before it answered.")
    return ToolFailed(f"The server of {name} gave an answer that is no HTTP.")

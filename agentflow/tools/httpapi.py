"""HttpApi: the operations of one OpenAPI document as tools, and the client that they share.

What an operation answers is what its tool gives: text as it is, and what is longer than INLINE_BYTES, or no text, as a file. An
answer that says that it failed (4xx, 5xx) is told with the head of its body, so that the model can act on it. Redirects are
followed within the API's own origin alone. Where the server says when to come back (429 and 503 with Retry-After), the call
may be tried again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

import httpx2

from agentflow.tools.address import Addresses, Resolver, origin
from agentflow.tools.errors import InvalidTool, ToolFailed
from agentflow.tools.http import GuardedTransport, body, client, failure, resolve
from agentflow.tools.httprequest import WrittenRequest, written
from agentflow.tools.httpsource import HttpSource
from agentflow.tools.inlining import inlined
from agentflow.tools.openapi import Operation, read
from agentflow.tools.secrets import Secrets, read_headers
from agentflow.tools.tool import CallContext, Content, ToolOutput, ToolSpec

INLINE_BYTES: Final = 64 << 10
_HEAD_BYTES: Final = 2_000
"""Of the body of an answer that says that it failed."""
_REDIRECTS: Final = 3
_SENT_BYTES: Final = 16 << 20


class HttpTool:
    """One operation."""

    def __init__(self, spec: ToolSpec, operation: Operation, api: HttpApi) -> None:
        self.spec = spec
        self._operation = operation
        self._api = api

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """See Tool."""
        arguments = await inlined(arguments, _SENT_BYTES)
        return await self._api.ask(self.spec.name, written(self._operation, arguments), context)


class HttpApi:
    """Made by `open`. Close it."""

    def __init__(
        self, source: HttpSource, operations: tuple[Operation, ...], http: httpx2.AsyncClient, secrets: Secrets
    ) -> None:
        self._source = source
        self._http = http
        self._secrets = secrets
        self.tools = tuple(HttpTool(_spec(operation, source), operation, self) for operation in operations)
        self.left_out: Mapping[str, str] = {}

    @classmethod
    async def open(
        cls, source: HttpSource, document: Mapping[str, Any], resolver: Resolver = resolve, *, name: str = "NAME"
    ) -> HttpApi:
        """`document`: the OpenAPI document, decoded; `name`: the API's in the configuration.

        Reads the secrets; asks the server nothing. Raises InvalidTool.
        """
        to = origin(source.url)
        if "?" in source.url or "#" in source.url:
            raise InvalidTool(f"{to}: the API's URL ends with its path: leave out what comes after `?` or `#`.")
        addresses = Addresses(source.reach, resolver, f"tools.http.{name}")
        secrets = await asyncio.to_thread(read_headers, source.headers)
        found = await asyncio.to_thread(read, document, source.operations, tuple(source.headers))
        context = await asyncio.to_thread(ssl.create_default_context)
        transport = GuardedTransport(to, addresses, context, source.answer_bytes)
        api = cls(source, found.operations, client(transport, secrets, source.timeout_s), secrets)
        api.left_out = found.left_out
        return api

    async def close(self) -> None:
        """End all connections. Idempotent."""
        await self._http.aclose()

    async def ask(self, name: str, request: WrittenRequest, context: CallContext) -> ToolOutput:
        """Send it for the tool `name`, and read what is answered. Raises ToolError."""
        try:
            first = self._http.build_request(
                request.method,
                self._source.url.rstrip("/") + request.target,
                headers={"Accept": "application/json, text/*;q=0.9, */*;q=0.5"} | request.headers,
                content=request.body,
            )
            response = await self._answered(first)
            try:
                return await self._read(name, response, context)
            finally:
                await response.aclose()
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise failure(error, name) from error

    async def _answered(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, after redirects that stay where they are and ask for the same."""
        for _ in range(_REDIRECTS):
            response = await self._http.send(request, stream=True)
            following = response.next_request
            if following is None or following.method != request.method or not _same_origin(request, following):
                return response
            await response.aclose()
            request = following
        raise ToolFailed(f"The server redirects more than {_REDIRECTS} times.")

    async def _read(self, name: str, response: httpx2.Response, context: CallContext) -> ToolOutput:
        status = f"HTTP {response.status_code} {self._secrets.hide(response.reason_phrase[:60])}".strip()
        if response.status_code >= 300:
            if response.next_request is not None:
                raise ToolFailed(f"{name}: {status}: the server redirects to another place, which is not followed.")
            text = (await self._head(response)).strip()
            told = f"{status}\n{text}" if text else status
            if response.status_code in (429, 503) and "retry-after" in response.headers:
                raise ToolFailed(f"{name}: {told}", again=True)
            return ToolOutput(told, is_error=True)
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower() or "text/plain"
        kept = await self._kept(response, context, in_file=not _is_text(media_type))
        if isinstance(kept, int):
            return ToolOutput(Content(context.result_path, kept, media_type))
        return ToolOutput(kept.decode("utf-8", "replace") if kept else f"{status}: no content")

    async def _head(self, response: httpx2.Response) -> str:
        data = b""
        try:
            async with aclosing(body(response, self._secrets)) as blocks:
                async for block in blocks:
                    data += block
                    if len(data) > _HEAD_BYTES:
                        break
        except (httpx2.HTTPError, httpx2.StreamError):
            pass  # the status tells enough
        text = data[:_HEAD_BYTES].decode("utf-8", "ignore" if len(data) > _HEAD_BYTES else "replace")
        return text.replace("\0", "�")

    async def _kept(self, response: httpx2.Response, context: CallContext, *, in_file: bool) -> bytes | int:
        """The body; or its size, where it is longer than INLINE_BYTES, or no text: then it is in the call's file."""
        buffer = bytearray()
        size = 0
        async with aclosing(body(response, self._secrets)) as blocks:
            async for block in blocks:
                buffer += block
                if len(buffer) > INLINE_BYTES:
                    size += await _append(context, buffer)
        if buffer and (size or in_file):
            size += await _append(context, buffer)
        return size or bytes(buffer)


async def _append(context: CallContext, buffer: bytearray) -> int:
    """Write it behind what the call's file has, and empty it. Raises ToolFailed."""
    data = bytes(buffer)
    buffer.clear()
    try:
        await asyncio.to_thread(_write, context, data)
    except OSError as error:
        raise ToolFailed("The answer cannot be kept on this machine now.") from error
    return len(data)


def _write(context: CallContext, data: bytes) -> None:
    with context.result_path.open("ab") as file:
        file.write(data)


def _same_origin(one: httpx2.Request, other: httpx2.Request) -> bool:
    return (one.url.scheme, one.url.host, one.url.port) == (other.url.scheme, other.url.host, other.url.port)


def _is_text(media_type: str) -> bool:
    kind, _, name = media_type.partition("/")
    return kind == "text" or name in _TEXTS or name.endswith(("+json", "+xml"))


_TEXTS: Final = frozenset({"json", "xml", "javascript", "yaml", "x-yaml", "x-ndjson", "jsonl", "x-www-form-urlencoded"})


def _spec(operation: Operation, source: HttpSource) -> ToolSpec:
    writes = operation.method not in ("get", "head")
    return ToolSpec(
        name=operation.name,
        description=operation.description,
        parameters=operation.schema,
        timeout_s=source.timeout_s,
        retries=source.retries,
        concurrency=source.concurrency,
        idempotent=operation.idempotent,
        fresh_for_s=source.fresh_for_s,
        result_bytes=source.result_bytes,
        approval=source.approval == "always" or (source.approval == "writes" and writes),
    )

"""McpLink: how the official SDK is connected to a server, by its process or by HTTP. Everything of anyio is here and in the SDK.

The SDK's own way to run a process has no bounds, so the streams that its session reads and writes are made here. A message
that is none is passed over, a megabyte of them in a row ends the connection: the server prints what it should not.

Over HTTP, a request that fails is told to the session as the answer to that request. The SDK would take down the whole
connection, with the calls of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from agentflow.tools.errors import ToolDied, ToolError, ToolFailed, ToolTimeout, ToolUnavailable
from agentflow.tools.http import failure
from agentflow.tools.mcpprocess import McpProcess

Streams = tuple[Any, Any]
"""What the session reads, and what it writes to."""

Transport = AbstractAsyncContextManager[Streams]

_RUBBISH_BYTES: Final = 1 << 20
_RUBBISH_LINE: Final = 100
"""What a line counts for besides its bytes: looking at it takes as long."""
_PARSED_INLINE: Final = 1 << 17
"""Bytes of a message that is parsed on the loop; longer ones in a thread."""
_KINDS: Final = {"unavailable": ToolUnavailable, "timeout": ToolTimeout, "died": ToolDied, "failed": ToolFailed}
_log = logging.getLogger(__name__)


@asynccontextmanager
async def process_streams(process: McpProcess, on_end: Callable[[str], None]) -> AsyncGenerator[Streams, None]:
    """The process's messages. `on_end` is told when it says no more, and why; it is ended when this is left."""
    heard, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, said = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        reason = "it ended"
        async with heard:
            try:
                await _read(process, heard)
            except ToolDied as error:
                reason = str(error)
                process.kill()
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # nobody listens any more
        on_end(reason)

    async def write() -> None:
        async with said:
            async for message in said:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                try:
                    process.send(line)
                except ToolDied as error:
                    on_end(str(error))
                    process.kill()  # which `read` sees
                    return

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield from_server, to_server
        finally:
            with anyio.CancelScope(shield=True):
                group.cancel_scope.cancel()
                await process.end()
                for stream in (heard, from_server, to_server, said):
                    stream.close()


async def _read(process: McpProcess, heard: Any) -> None:
    """Raises ToolDied, and anyio's errors where nobody listens."""
    rubbish, warned = 0, False
    async for line in process.lines():
        message = await _message(line)
        if message is not None:
            rubbish = 0
            await heard.send(SessionMessage(message))
            continue
        if line.strip() and not warned:
            warned = True
            _log.warning("an MCP server writes to its standard output what is no message", extra={"pid": process.pid})
        rubbish += len(line) + _RUBBISH_LINE
        if rubbish > _RUBBISH_BYTES:
            raise ToolDied("it writes to its standard output what is no message")


async def _message(line: bytes) -> types.JSONRPCMessage | None:
    if not line.startswith(b"{"):
        return None
    try:
        if len(line) <= _PARSED_INLINE:
            return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        return await asyncio.to_thread(_long_message, line)
    except (ValueError, RecursionError):
        return None


def _long_message(line: bytes) -> types.JSONRPCMessage:
    """What is long is a response: the adapter would parse it once for each kind of message, and the loop waits meanwhile.

    Raises ValueError, RecursionError.
    """
    try:
        return types.JSONRPCResponse.model_validate_json(line, by_name=False)
    except ValueError:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)


def http_streams(url: str, http: httpx2.AsyncClient, most_bytes: int) -> Transport:
    """By streamable HTTP. The client's transport is an `Isolated` one."""
    return streamable_http_client(url, http_client=http, max_sse_event_size=most_bytes)


class Isolated(httpx2.AsyncBaseTransport):
    """Makes of a request that fails an answer that says so, as JSON-RPC; `raised` makes the error of it again."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, name: str) -> None:
        self._inner = inner
        self._name = name

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._inner.handle_async_request(request)
        except (ToolError, httpx2.TransportError) as error:
            told = error if isinstance(error, ToolError) else failure(error, self._name)
        kind = next((kind for kind, each in _KINDS.items() if type(told) is each), "failed")
        answer = {"code": types.INTERNAL_ERROR, "message": str(told), "data": {"failure": kind}}
        return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": answer}, request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def raised(error: types.ErrorData) -> ToolError | None:
    """What an `Isolated` transport said, if it was one."""
    kind = error.data.get("failure") if isinstance(error.data, dict) else None
    made = _KINDS.get(kind) if isinstance(kind, str) else None
    return made(error.message) if made is not None else None

"""McpServer: one MCP server as the daemon sees it: connected, listed, called, and connected again when it is gone.

One task owns the connection (`run`): all scopes of the SDK are entered and left in it. It connects, lists the tools, and waits
until the server says that they changed (then it lists again) or until the connection is over. After that, or where it did not
come to be, it tries again: at once after one that lasted, and else after a pause that doubles.

Calls are made by their own tasks. They wait for a connection that is about to be, and fail at once where the next attempt is far
off. When a connection ends, all its calls fail (ToolDied), and none is made again here: only who knows whether the tool is
idempotent may. The exception is a server that has forgotten the session (HTTP, after its restart): it says so without
having done anything, and the call is made in a new one.

Crash behaviour: the kernel ends the server's process with the daemon. Nothing is kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol

import anyio
import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct

from agentflow.tools.errors import (
    InvalidArguments,
    InvalidTool,
    ToolDied,
    ToolError,
    ToolFailed,
    ToolTimeout,
    ToolUnavailable,
)
from agentflow.tools.mcplink import Transport, raised
from agentflow.tools.mcpresult import output
from agentflow.tools.schemacheck import ArgumentCheck
from agentflow.tools.secrets import Secrets
from agentflow.tools.tool import CallContext, ToolOutput

_PAGES: Final = 100
_MOST_TOOLS: Final = 1024
_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 30.0
_LASTED_S: Final = 5.0
"""A connection that was there so long was a good one."""
_PATIENCE_S: Final = 2.0
"""So long a call waits for the next attempt to connect."""
_RELIST_S: Final = 0.05
_LISTEN_AGAIN_S: Final = 5.0
_MESSAGE: Final = 500
_DESCRIPTION: Final = 2048
_CLOSED: Final = "Connection closed"
"""What the SDK says for every call of a connection that is no more."""
_STREAM_LOST: Final = "SSE stream "
"""How the SDK begins where the answer to one call broke off. Servers use the same number for anything."""
_log = logging.getLogger(__name__)


class RemoteTool(Struct, frozen=True):
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: dict[str, Any]
    idempotent: bool
    reads_only: bool


class Way(Protocol):
    """How a server is reached: as a process, or over HTTP. `start_timeout_s`: for one attempt and its list of tools."""

    start_timeout_s: float

    def open(self, on_end: Callable[[str], None]) -> Transport:
        """One connection. `on_end` is told when it is over, and why, where that is known."""

    @property
    def secrets(self) -> Secrets:
        """Those of the last connection."""

    @property
    def last_words(self) -> str:
        """What it said last of what is wrong, in the last connection that has ended: for the log alone. May be empty."""


class _Link:
    """A connection that is usable. `events`: what the owner is to look at."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.events = asyncio.Event()
        self.changed = False
        self.over: str | None = None

    def end(self, reason: str) -> None:
        self.over = self.over or reason
        self.events.set()

    async def heard(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.change()

    def change(self) -> None:
        self.changed = True
        self.events.set()


class McpServer:
    """Called `name` in messages. `on_change` is called on the loop when its tools are listed first, and when they are others."""

    def __init__(self, name: str, way: Way, on_change: Callable[[], None]) -> None:
        self.name = name
        self.tools: tuple[RemoteTool, ...] = ()
        self.listed = False
        """Whether it has listed its tools, now or before."""
        self.problem: str | None = None
        """Why there is no connection; None where there is one."""
        self._way = way
        self._on_change = on_change
        self._link: _Link | None = None
        self._next_at = 0.0
        self._came_up = False
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Own the connection until cancelled."""
        failures = 0
        try:
            while True:
                began, self._came_up = time.monotonic(), False
                try:
                    await self._connection()
                except Exception as error:  # noqa: BLE001 - whatever a server makes of the SDK ends this connection alone
                    self.problem = _reason(error)
                words = {"last_words": self._way.last_words} if self._way.last_words else {}
                _log.warning("an MCP server is not connected: %s", self.problem, extra={"server": self.name} | words)
                failures = 0 if time.monotonic() - began >= _LASTED_S else failures + 1
                pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(failures, 16) / 2) * random.uniform(0.5, 1.0)  # noqa: S311
                self._next_at = time.monotonic() + pause_s
                if not self._came_up:
                    self._settle()
                await asyncio.sleep(pause_s)
        finally:
            self._link, self._next_at, self.problem = None, float("inf"), "the tools are being shut down"
            self._settle()

    async def settled(self) -> None:
        """Wait for the end of the attempt at hand. See `problem` then."""
        if self._link is None:
            await asyncio.shield(self._outcome)

    async def call(self, tool: str, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """Call a tool by the server's own name for it. Raises ToolError."""
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        for is_last in (False, True):
            link = await self._linked()
            assert link.client is not None
            try:
                result = await link.client.session.send_request(request, types.CallToolResult)
            except MCPError as error:
                if not is_last and _is_forgotten(error):
                    self._lose(link, "the server has forgotten the session")
                    continue
                raise self._failure(error, tool, link) from None  # its words may hold secrets
            except (ValueError, RuntimeError) as error:  # what the SDK makes of an answer that is none
                raise ToolFailed(
                    f"The MCP server {self.name} gave an answer for {tool} that cannot be used."
                ) from error
            return await output(result, self._way.secrets)
        raise AssertionError("unreachable")

    async def _linked(self) -> _Link:
        """Raises ToolUnavailable."""
        if self._link is None:
            if self._next_at - time.monotonic() <= _PATIENCE_S:
                await asyncio.shield(self._outcome)
            if self._link is None:
                raise ToolUnavailable(f"The MCP server {self.name} is not there now: {self.problem}. Try again later.")
        return self._link

    def _failure(self, error: MCPError, tool: str, link: _Link) -> ToolError:
        told = error.error
        message = self._way.secrets.hide(told.message)[:_MESSAGE]
        if (ours := raised(told)) is not None:
            return ours
        if told.code == types.CONNECTION_CLOSED and told.message.startswith((_CLOSED, _STREAM_LOST)):
            if told.message == _CLOSED:
                self._lose(link, "the connection ended")
            return ToolDied(f"The MCP server {self.name} was gone before {tool} was done: {link.over or message}.")
        if told.code == types.REQUEST_TIMEOUT:
            return ToolTimeout(f"{tool} took too long.")
        if told.code == types.INVALID_PARAMS:
            return InvalidArguments(f"{tool}: {message}")
        return ToolFailed(f"{tool}: {message}")

    # The connection

    async def _connection(self) -> None:
        """One connection, from its beginning to its end. Raises whatever the SDK does, and ToolError."""
        link = _Link()
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._way.start_timeout_s):
                    link.client = await stack.enter_async_context(self._client(link))
                    await self._relist(link.client)
                await stack.enter_async_context(_listening(link.client, link))
                self._link, self.problem, self._came_up = link, None, True
                self._settle()
                await self._watch(link, link.client)
        except Exception as error:
            if link.over is None:
                raise
            raise ToolDied(link.over) from error
        finally:
            self._lose(link, "the connection ended")
        raise ToolDied(link.over)

    async def _watch(self, link: _Link, client: Client) -> None:
        """Until it is over."""
        while link.over is None:
            await link.events.wait()
            link.events.clear()
            if link.changed and link.over is None:
                await asyncio.sleep(_RELIST_S)  # it may change more at once
                link.changed = False
                try:
                    async with asyncio.timeout(self._way.start_timeout_s):
                        await self._relist(client)
                except (MCPError, ToolError, TimeoutError, ValueError, RuntimeError):  # then the old list stays
                    _log.warning("an MCP server does not list its tools", extra={"server": self.name})

    def _client(self, link: _Link) -> Client:
        about = types.Implementation(name="acu", version="1")
        return Client(self._way.open(link.end), cache=None, message_handler=link.heard, client_info=about)

    def _settle(self) -> None:
        """Tell all who wait that the attempt is over."""
        if not self._outcome.done():
            self._outcome.set_result(None)
        if self._link is None:
            self._outcome = asyncio.get_running_loop().create_future()
            if self._next_at == float("inf"):
                self._outcome.set_result(None)

    def _lose(self, link: _Link, reason: str) -> None:
        link.end(reason)
        if self._link is link:
            self._link = None
            self.problem = link.over
            self._outcome = asyncio.get_running_loop().create_future()

    # The list

    async def _relist(self, client: Client) -> None:
        """Raises MCPError, ToolFailed, ValueError."""
        listed = await _listed(client)
        tools = await asyncio.to_thread(_usable, self.name, listed)
        if tools != self.tools or not self.listed:
            self.tools, self.listed = tools, True
            self._on_change()


async def _listed(client: Client) -> list[types.Tool]:
    found: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        found += page.tools
        if len(found) > _MOST_TOOLS:
            raise ToolFailed(f"it lists more than {_MOST_TOOLS:,} tools")
        if page.next_cursor is None or page.next_cursor == cursor:
            return found
        cursor = page.next_cursor
    raise ToolFailed(f"its list of tools has more than {_PAGES} pages")


def _usable(server: str, listed: list[types.Tool]) -> tuple[RemoteTool, ...]:
    """Those that can be offered, each name once. Compiles their schemas, which takes a while."""
    found: dict[str, RemoteTool] = {}
    for tool in listed:
        try:
            ArgumentCheck(tool.name[:64], tool.input_schema)
        except InvalidTool as error:
            _log.warning("a tool of an MCP server is left out: %s", error, extra={"server": server})
            continue
        hints = tool.annotations
        reads_only = hints is not None and hints.read_only_hint is True
        idempotent = reads_only or (hints is not None and hints.idempotent_hint is True)
        description = (tool.description or tool.title or "")[:_DESCRIPTION]
        found.setdefault(tool.name, RemoteTool(tool.name, description, tool.input_schema, idempotent, reads_only))
    return tuple(found.values())


@asynccontextmanager
async def _listening(client: Client, link: _Link) -> AsyncGenerator[None, None]:
    """Hear of changes, where the protocol's newer version has them asked for; the older one tells them unasked."""
    tools = client.server_capabilities.tools
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
        yield
        return
    async with anyio.create_task_group() as group:
        group.start_soon(_listen, client, link)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def _listen(client: Client, link: _Link) -> None:
    while True:
        try:
            async with client.listen(tools_list_changed=True) as events:
                link.change()  # who knows what happened before it was heard
                async for _ in events:
                    link.change()
        except (MCPError, RuntimeError, TimeoutError) as error:
            _log.debug("an MCP server's events were lost: %s", type(error).__name__)
        await anyio.sleep(_LISTEN_AGAIN_S)


def _is_forgotten(error: MCPError) -> bool:
    """Whether it is what the SDK makes of a 404 for a session."""
    return error.error.code == types.INVALID_REQUEST and error.error.message == "Session terminated"


def _reason(error: BaseException) -> str:
    """A few words that may be shown. What servers and the SDK say is not: it may hold anything."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ToolError):
        return str(error)
    if isinstance(error, MCPError):
        ours = raised(error.error)
        return str(ours) if ours is not None else f"it refused the connection (error {error.error.code})"
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return f"the connection failed ({type(error).__name__})"

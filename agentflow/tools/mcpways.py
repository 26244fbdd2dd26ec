"""How an MCP server is reached: as a process that is started here, or over HTTP. A connection at a time each."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Final

from agentflow.tools.address import Addresses, Origin, Resolver, origin
from agentflow.tools.errors import InvalidTool, ToolUnavailable
from agentflow.tools.http import GuardedTransport, client
from agentflow.tools.mcplink import Isolated, Streams, Transport, http_streams, process_streams
from agentflow.tools.mcpprocess import McpProcess
from agentflow.tools.mcpserver import Way
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.secrets import Secrets, read_headers, read_variables

ALWAYS: Final = ("PATH", "HOME", "LANG", "TZ")
"""What a server's process has of the daemon's environment whatever the configuration says."""
_SILENCE_S: Final = 300.0


def way(name: str, source: McpSource, environment: Mapping[str, str], thread: Executor, resolver: Resolver) -> Way:
    """The one that the source says. Processes are begun by `thread`, and end with it. Raises InvalidTool."""
    if bool(source.command) == (source.url is not None):
        raise InvalidTool(f"The MCP server {name} needs either a command or a url.")
    if source.url is not None:
        return ByHttp(name, source, origin(source.url), Addresses(source.reach, resolver, f"tools.mcp.{name}"))
    allowed = {key: environment[key] for key in (*ALWAYS, *source.environment) if key in environment}
    return ByProcess(source, allowed, thread)


class ByProcess:
    """Standard input and output of a program."""

    def __init__(self, source: McpSource, environment: Mapping[str, str], thread: Executor) -> None:
        self.start_timeout_s = source.start_timeout_s
        self.secrets = Secrets({}, ())
        self.last_words = ""
        self._source = source
        self._environment = dict(environment)
        self._thread = thread

    def open(self, on_end: Callable[[str], None]) -> Transport:
        """See Way. Raises InvalidTool, ToolUnavailable when it is entered."""
        return self._opened(on_end)

    @asynccontextmanager
    async def _opened(self, on_end: Callable[[str], None]) -> AsyncGenerator[Streams, None]:
        source = self._source
        self.last_words = ""
        self.secrets = await asyncio.to_thread(read_variables, source.variables)
        environment = self._environment | self.secrets.values()
        if await asyncio.to_thread(shutil.which, source.program, path=environment.get("PATH")) is None:
            raise InvalidTool(f"there is no program {source.command[0]!r}: install it, or correct `command`")
        try:
            process = await McpProcess.begin(
                source.command, source.folder, environment, self._thread, source.message_bytes
            )
        except OSError as error:
            raise ToolUnavailable(f"its program cannot be started: {error.strerror}") from error
        try:
            async with process_streams(process, on_end) as streams:
                yield streams
        finally:
            self.last_words = self.secrets.hide(process.last_words)


class ByHttp:
    """Streamable HTTP, to one origin whose address is checked at each request."""

    def __init__(self, name: str, source: McpSource, to: Origin, addresses: Addresses) -> None:
        self.start_timeout_s = source.start_timeout_s
        self.secrets = Secrets({}, ())
        self.last_words = ""
        self._name = name
        self._source = source
        self._to = to
        self._addresses = addresses

    def open(self, on_end: Callable[[str], None]) -> Transport:
        """See Way. What `on_end` would be told is told to each call. Raises InvalidTool when it is entered."""
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Streams, None]:
        source = self._source
        assert source.url is not None
        self.secrets = await asyncio.to_thread(read_headers, source.headers)
        context = await asyncio.to_thread(ssl.create_default_context)
        guarded = GuardedTransport(self._to, self._addresses, context, source.message_bytes)
        async with (
            client(Isolated(guarded, self._name), self.secrets, _SILENCE_S) as http,
            http_streams(source.url, http, source.message_bytes) as streams,
        ):
            yield streams

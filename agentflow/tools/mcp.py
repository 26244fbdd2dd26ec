"""MCP: servers of tools, by the official SDK, over a process's standard input and output or over streamable HTTP.

All servers are started together, and their tools are those that they list, now: a server can change its list, and one
that is gone keeps the list that it had, since it is started again. A tool is offered under its own name, or as
`server__tool` where two have it or another tool does. What a name may not hold becomes `_`, and what is too long is cut.

A server harms only its own calls. It is a process of its own, or elsewhere; what it says is bounded; how it ends is the end of
its connection, and of nothing else.

Importing this imports the SDK, which takes a while: import it where a server is configured.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from agentflow.tools.address import Resolver
from agentflow.tools.http import resolve
from agentflow.tools.inlining import inlined
from agentflow.tools.mcpserver import McpServer, RemoteTool
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.mcpways import way
from agentflow.tools.tool import CallContext, ToolOutput, ToolSpec

_NAME_LENGTH: Final = 64


class McpTool:
    """One tool of a server, under the name that it is offered by."""

    def __init__(self, spec: ToolSpec, remote: RemoteTool, server: McpServer, most_bytes: int) -> None:
        self.spec = spec
        self.server = server.name
        self._remote = remote
        self._server = server
        self._most_bytes = most_bytes

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """See Tool."""
        arguments = await inlined(arguments, self._most_bytes)
        return await self._server.call(self._remote.name, arguments, context)


class McpServers:
    """All of them. Made by `open`; close it."""

    def __init__(self, sources: Mapping[str, McpSource], thread: ThreadPoolExecutor) -> None:
        self._sources = dict(sources)
        self._thread = thread
        self._servers: dict[str, McpServer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._on_change: Callable[[], None] = _nothing

    @classmethod
    async def open(
        cls,
        sources: Mapping[str, McpSource],
        environment: Mapping[str, str],
        group: asyncio.TaskGroup,
        resolver: Resolver = resolve,
    ) -> McpServers:
        """Start all, in tasks of `group`, and wait for each one's tools or for its first failure (see `problems`).

        `environment`: the daemon's, of which servers get what they may. Raises InvalidTool where a source is wrong.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="mcp-servers")  # begins nothing before it is used
        ways = {name: way(name, source, environment, thread, resolver) for name, source in sources.items()}
        servers = cls(sources, thread)
        for name, reached in ways.items():
            server = McpServer(name, reached, servers._changed)
            servers._servers[name] = server
            servers._tasks.append(group.create_task(server.run(), name=f"mcp {name}"))
        try:
            await asyncio.gather(*(server.settled() for server in servers._servers.values()))
        except BaseException:
            await servers.close()
            raise
        return servers

    def on_change(self, told: Callable[[], None]) -> None:
        """Have `told` called on the loop when a server lists its tools first, and whenever they are others."""
        self._on_change = told

    def tools(self, taken: Collection[str] = ()) -> tuple[McpTool, ...]:
        """The tools that there are now. `taken`: names that others have."""
        pairs = [
            (server, remote)
            for server in self._servers.values()
            for remote in server.tools
            if not (only := self._sources[server.name].tools) or remote.name in only
        ]
        names = offered_names([(server.name, remote.name) for server, remote in pairs], taken)
        return tuple(
            McpTool(
                _spec(name, remote, source := self._sources[server.name]), remote, server, source.message_bytes // 2
            )
            for name, (server, remote) in zip(names, pairs, strict=True)
        )

    @property
    def problems(self) -> dict[str, str]:
        """Why servers are not connected now, by name."""
        return {name: server.problem for name, server in self._servers.items() if server.problem is not None}

    @property
    def all_listed(self) -> bool:
        """Whether each server has listed its tools, now or before."""
        return all(server.listed for server in self._servers.values())

    async def close(self) -> None:
        """End all; calls that run fail. Idempotent."""
        for task in self._tasks:
            if not task.cancelling():  # their group may have: a second time would hurry them
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    def _changed(self) -> None:
        self._on_change()


def offered_names(tools: Iterable[tuple[str, str]], taken: Collection[str] = ()) -> list[str]:
    """A name for each (server, tool), all different, of at most 64 letters, digits, `_` and `-`. Pure."""
    pairs = list(tools)
    plain = [_fitting(tool) for _, tool in pairs]
    count = Counter(plain)
    used = set(taken)
    names = []
    for (server, tool), name in zip(pairs, plain, strict=True):
        if count[name] > 1 or name in used:
            name = _fitting(f"{server}__{tool}")  # noqa: PLW2901
        if name in used:
            digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
            name = f"{name[: _NAME_LENGTH - 9]}_{digest}"  # noqa: PLW2901
        used.add(name)
        names.append(name)
    return names


def _fitting(name: str) -> str:
    fitting = re.sub(r"[^a-zA-Z0-9_-]", "_", name) or "tool"
    if len(fitting) <= _NAME_LENGTH:
        return fitting
    return f"{fitting[: _NAME_LENGTH - 9]}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _nothing() -> None:
    pass


def _spec(name: str, remote: RemoteTool, source: McpSource) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=remote.description,
        parameters=remote.parameters,
        timeout_s=source.timeout_s,
        retries=source.retries,
        concurrency=source.concurrency,
        idempotent=remote.idempotent,
        fresh_for_s=source.fresh_for_s,
        result_bytes=source.result_bytes,
        approval=source.approval == "always" or (source.approval == "writes" and not remote.reads_only),
        aliases=() if name == remote.name else (remote.name,),
    )

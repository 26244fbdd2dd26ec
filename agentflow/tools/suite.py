"""ToolSuite: all tools of a configuration, and what stands behind them. Opened at the start, closed at the end.

Python modules and HTTP APIs are found before anything is served: what is wrong with them is the operator's to mend. MCP servers
may come late, go and come back: their tools are in the toolbox while they are there (`connect`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.tools.builtin import builtin_tools
from agentflow.tools.config import ToolsConfig
from agentflow.tools.errors import InvalidTool, ToolError
from agentflow.tools.handles import HandleStore
from agentflow.tools.httpsource import HttpSource
from agentflow.tools.python import PythonTools
from agentflow.tools.pythonsource import PythonSource, allowed_environment, installed_sources
from agentflow.tools.tool import Tool
from agentflow.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from agentflow.tools.httpapi import HttpApi
    from agentflow.tools.mcp import McpServers

_log = logging.getLogger(__name__)


class ToolSuite:
    """The toolbox, and how to end what it needs. `documents`: the OpenAPI documents of `config.http`, decoded, by their names."""

    def __init__(self, config: ToolsConfig, results: Path, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = environment
        self._handles = HandleStore(results, config.results)
        self.toolbox = Toolbox((), self._handles)
        self._fixed: tuple[Tool, ...] = ()
        self._opened: list[PythonTools | HttpApi] = []
        self._servers: McpServers | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._on_listed: Callable[[], None] | None = None

    @classmethod
    async def open(
        cls,
        config: ToolsConfig,
        results: Path,
        environment: Mapping[str, str],
        *,
        own: Iterable[Tool] = (),
        documents: Mapping[str, Any] | None = None,
    ) -> ToolSuite:
        """Find all tools. `results`: the folder for their long results; `environment`: the daemon's, of which they get little.

        `own`: the daemon's own tools besides the built-in ones (memory, files), which need what only it has. `documents`: the
        OpenAPI documents of `config.http`, decoded, by their names.

        Raises ToolError, which names the source and says what is wrong with it, and OSError for the folder.
        """
        suite = cls(config, results, environment)
        try:
            await suite._open(tuple(own), documents or {})
        except BaseException:
            await suite.close()
            raise
        return suite

    def connect(self, group: asyncio.TaskGroup, on_listed: Callable[[], None] | None = None) -> None:
        """Begin to reach the MCP servers, in tasks of `group`; returns at once.

        `on_listed` is called on the loop, once, when every server has listed its tools; never where there is none.
        """
        self._on_listed = on_listed
        if self._config.mcp:
            self._connecting = group.create_task(self._connect(group))

    async def close(self) -> None:
        """End all processes and connections. Idempotent."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._servers is not None:
            await self._servers.close()
        await asyncio.gather(*(opened.close() for opened in self._opened))

    @property
    def problems(self) -> dict[str, str]:
        """Why MCP servers are not there now, by name."""
        return {} if self._servers is None else self._servers.problems

    async def _open(self, own: tuple[Tool, ...], documents: Mapping[str, Any]) -> None:
        await self._handles.open()
        sources = dict(self._config.python)
        if self._config.installed:
            installed = await asyncio.to_thread(installed_sources)
            sources |= {source.module: source for source in installed if source.module not in sources}
        opening: list[Coroutine[Any, Any, PythonTools | HttpApi]] = [
            *(self._python(name, source) for name, source in sources.items()),
            *(self._http(name, source, documents[name]) for name, source in self._config.http.items()),
        ]
        found: list[Tool] = []
        for outcome in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found += outcome.tools
        self._fixed = (*builtin_tools(), *own, *found)
        self.toolbox.renew(self._fixed)
        self.toolbox.changing = bool(self._config.mcp)

    async def _python(self, name: str, source: PythonSource) -> PythonTools:
        try:
            tools = await PythonTools.open(source, allowed_environment(source, self._environment))
            self._opened.append(tools)  # at once: it is to be closed, whatever becomes of the others
            await tools.warm(source.warm)
        except ToolError as error:
            raise InvalidTool(f"tools.python.{name}: {error}") from error
        return tools

    async def _http(self, name: str, source: HttpSource, document: Mapping[str, Any]) -> HttpApi:
        from agentflow.tools.httpapi import HttpApi

        try:
            api = await HttpApi.open(source, document, name=name)
        except ToolError as error:
            raise InvalidTool(f"tools.http.{name}: {error}") from error
        self._opened.append(api)
        for operation, why in api.left_out.items():
            _log.warning("an operation is no tool", extra={"api": name, "operation": operation, "why": why})
        return api

    async def _connect(self, group: asyncio.TaskGroup) -> None:
        # The SDK takes seconds to import, for which nobody waits who has no server.
        try:
            mcp = await asyncio.to_thread(_import_mcp)
        except ImportError as error:
            why = f"the MCP SDK cannot be imported ({error}): install ACU with all of its requirements"
            _log.error("the MCP servers of the configuration cannot be used", extra={"why": why})
            return
        try:
            self._servers = servers = await mcp.open(self._config.mcp, self._environment, group)
        except ToolError as error:
            _log.error("the MCP servers of the configuration cannot be used", extra={"why": str(error)})
            return
        servers.on_change(self._renew)
        self._renew()
        for name, problem in servers.problems.items():
            _log.warning("an MCP server is not there", extra={"server": name, "why": problem})

    def _renew(self) -> None:
        """Have the tools that the MCP servers have now."""
        assert self._servers is not None
        taken = frozenset(tool.spec.name for tool in self._fixed)
        try:
            self.toolbox.renew((*self._fixed, *self._servers.tools(taken)))
        except ToolError as error:  # what a server calls a tool may be none; the others stay as they were
            _log.error("an MCP server offers what is no tool", extra={"why": str(error)})
            return
        if self._on_listed is not None and self._servers.all_listed:
            told, self._on_listed = self._on_listed, None
            told()


def _import_mcp() -> type[McpServers]:
    from agentflow.tools.mcp import McpServers

    return McpServers

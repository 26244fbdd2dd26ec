"""ToolSuite: all tools of a configuration, and what stands behind them. Opened at the start, closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from agentflow.tools.builtin import builtin_tools
from agentflow.tools.config import ToolsConfig
from agentflow.tools.errors import InvalidTool, ToolError
from agentflow.tools.handles import HandleStore
from agentflow.tools.python import PythonTools
from agentflow.tools.pythonsource import PythonSource, allowed_environment, installed_sources
from agentflow.tools.tool import Tool
from agentflow.tools.toolbox import Toolbox


class ToolSuite:
    """The toolbox, and how to end what it needs."""

    def __init__(self, toolbox: Toolbox, python: tuple[PythonTools, ...]) -> None:
        self.toolbox = toolbox
        self._python = python

    @classmethod
    def empty(cls, results: Path) -> ToolSuite:
        """No tool at all. Makes nothing."""
        return cls(Toolbox((), HandleStore(results)), ())

    @classmethod
    async def open(cls, config: ToolsConfig, results: Path, environment: Mapping[str, str]) -> ToolSuite:
        """Find all tools. `results`: the folder for their long results; `environment`: the daemon's, of which they get little.

        Raises ToolError, which names the source and says what is wrong with it, and OSError for the folder.
        """
        handles = HandleStore(results, config.results)
        await handles.open()
        sources = dict(config.python)
        if config.installed:
            found = await asyncio.to_thread(installed_sources)
            sources |= {source.module: source for source in found if source.module not in sources}
        opened = await asyncio.gather(
            *(_opened(name, source, environment) for name, source in sources.items()), return_exceptions=True
        )
        python = tuple(each for each in opened if isinstance(each, PythonTools))
        failures = [each for each in opened if isinstance(each, BaseException)]
        try:
            if failures:
                raise failures[0]  # noqa: TRY301 - what did open is closed with it
            tools: list[Tool] = [*builtin_tools(), *(tool for module in python for tool in module.tools)]
            return cls(Toolbox(tools, handles), python)
        except BaseException:
            await asyncio.gather(*(module.close() for module in python))
            raise

    async def close(self) -> None:
        """End all processes. Idempotent."""
        await asyncio.gather(*(module.close() for module in self._python))


async def _opened(name: str, source: PythonSource, environment: Mapping[str, str]) -> PythonTools:
    try:
        tools = await PythonTools.open(source, allowed_environment(source, environment))
        await tools.warm(source.warm)
    except ToolError as error:
        raise InvalidTool(f"tools.python.{name}: {error}") from error
    return tools

"""Survey: what is wrong with the tools of a configuration, found without starting a server or asking one.

Each Python module is imported by a worker process, which tells its tools and ends; nothing of it is imported here. Secrets' files
are read, OpenAPI documents are understood, and the programs of MCP servers looked for; what an MCP server offers is not known.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentflow.tools.address import Addresses, origin
from agentflow.tools.config import ToolsConfig
from agentflow.tools.errors import InvalidTool, ToolError
from agentflow.tools.httpsource import HttpSource
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.python import ProcessTool
from agentflow.tools.pythonsource import ALWAYS, PythonSource, allowed_environment, installed_sources
from agentflow.tools.secrets import read_headers, read_variables
from agentflow.tools.tool import Tool
from agentflow.tools.workers import Workers


class Survey(NamedTuple):
    """The tools that were found, which cannot be called; and a sentence for each source that is wrong, its field in front."""

    tools: tuple[Tool, ...]
    problems: tuple[str, ...]


async def survey(config: ToolsConfig, environment: Mapping[str, str], documents: Mapping[str, Any]) -> Survey:
    """Look at all sources. `environment`: the daemon's; `documents`: those of `config.http`, decoded, as far as they could be."""
    sources = dict(config.python)
    if config.installed:
        installed = await asyncio.to_thread(installed_sources)
        sources |= {source.module: source for source in installed if source.module not in sources}
    looks: dict[str, Coroutine[Any, Any, tuple[Tool, ...]]] = {
        **{f"tools.python.{name}": _python(source, environment) for name, source in sources.items()},
        **{
            f"tools.http.{name}": _http(name, source, documents[name])
            for name, source in config.http.items()
            if name in documents
        },
        **{
            f"tools.mcp.{name}": asyncio.to_thread(_mcp, name, source, environment)
            for name, source in config.mcp.items()
        },
    }
    tools: list[Tool] = []
    problems: list[str] = []
    for field, found in zip(looks, await asyncio.gather(*looks.values(), return_exceptions=True), strict=True):
        if isinstance(found, ToolError):
            problems.append(f"{field}: {found}")
        elif isinstance(found, BaseException):
            raise found
        else:
            tools += found
    return Survey(tuple(tools), tuple(problems))


async def _python(source: PythonSource, environment: Mapping[str, str]) -> tuple[Tool, ...]:
    workers = Workers(source, allowed_environment(source, environment))
    try:
        return tuple(ProcessTool(each.spec, workers) for each in await workers.describe())
    finally:
        await workers.close()


async def _http(name: str, source: HttpSource, document: Mapping[str, Any]) -> tuple[Tool, ...]:
    from agentflow.tools.http import resolve
    from agentflow.tools.httpapi import HttpApi

    api = await HttpApi.open(source, document)
    await api.close()
    Addresses(source.reach, resolve, f"tools.http.{name}").check(origin(source.url))
    return api.tools


def _mcp(name: str, source: McpSource, environment: Mapping[str, str]) -> tuple[Tool, ...]:
    """Blocks. Raises InvalidTool."""
    if importlib.util.find_spec("mcp") is None:
        raise InvalidTool("the MCP SDK is not there: install ACU with all of its requirements.")
    if bool(source.command) == (source.url is not None):
        raise InvalidTool("it needs either a command or a url.")
    if source.url is not None:
        from agentflow.tools.http import resolve

        Addresses(source.reach, resolve, f"tools.mcp.{name}").check(origin(source.url))
        read_headers(source.headers)
        return ()
    allowed = {key: environment[key] for key in (*ALWAYS, *source.environment) if key in environment}
    path = (allowed | read_variables(source.variables).values()).get("PATH")
    if shutil.which(source.program, path=path) is None:
        raise InvalidTool(f"there is no program {source.command[0]!r} on the PATH: install it, or correct `command`.")
    if source.folder is not None and not Path(source.folder).is_dir():
        raise InvalidTool(f"its folder {source.folder} is not there.")
    return ()

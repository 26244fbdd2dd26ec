"""The tools' section of the configuration. Frozen; acu/config alone reads a file or the environment."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from agentflow.tools.handles import HandleLimits
from agentflow.tools.httpsource import HttpSource
from agentflow.tools.mcpsource import McpSource
from agentflow.tools.pythonsource import PythonSource

SourceName = Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]{0,63}$")]


class ToolsConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What agents can call. The built-in tools are always there; an agent has those that its `tools` name."""

    python: Annotated[
        dict[SourceName, PythonSource],
        Meta(description="Modules of Python functions, by a name of your choice. They run in processes of their own."),
    ] = {}
    installed: Annotated[
        bool, Meta(description="Offer the tools of installed packages too (entry points of the group `acu.tools`).")
    ] = True
    mcp: Annotated[dict[SourceName, McpSource], Meta(description="MCP servers, by a name of your choice.")] = {}
    http: Annotated[
        dict[SourceName, HttpSource],
        Meta(description="HTTP APIs, by a name of your choice, whose OpenAPI documents say what can be called."),
    ] = {}
    results: HandleLimits = HandleLimits()

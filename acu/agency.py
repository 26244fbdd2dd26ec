"""From the configuration's agents and tools to what the service runs: the daemon's part, which finds tools and opens files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from msgspec.structs import replace

from acu.config import AcuConfig
from acu.errors import StartRefused
from acu.refusals import Refusals
from agentflow.errors import AgentFlowError, Draining

if TYPE_CHECKING:
    from agentflow.agents.runs import Agency
    from agentflow.service import Service
    from agentflow.tools.config import ToolsConfig
    from agentflow.tools.suite import ToolSuite
    from agentflow.tools.toolbox import Toolbox
    from dataplane import DataPlane, StateStore

RESULTS = "results"  # as acu/datawork.py erases it
RETRY_S = 5.0

_log = logging.getLogger("acu.agency")


class AgencyRoom:
    """The agents, and the tools that are open for them; empty where no agent is configured. Close it."""

    def __init__(self, agency: Agency, suite: ToolSuite | None, folder: Path) -> None:
        self.agency = agency
        self._folder = folder  # of the data plane; without it nothing was left open
        self._suite = suite
        self._resuming: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, config: AcuConfig, environ: Mapping[str, str], plane: Callable[[], Awaitable[DataPlane]]
    ) -> AgencyRoom:
        """`plane` opens the data plane. Raises StartRefused."""
        from agentflow.agents.runs import Agency
        from agentflow.tools.suite import ToolSuite

        async def state() -> StateStore:
            return (await plane()).state

        folder = Path(config.data_plane.path) / RESULTS
        if not config.agents:  # nothing is opened, nor made, for a daemon that only answers
            return cls(Agency({}, ToolSuite(config.tools, folder, {}).toolbox, state), None, folder.parent)
        try:
            documents = await asyncio.to_thread(_documents, config.tools)
            suite = await ToolSuite.open(config.tools, folder, environ, documents=documents)
        except OSError as error:
            raise StartRefused(f"data_plane.path: {folder} cannot be used for tools' results: {error}") from error
        except AgentFlowError as error:
            raise StartRefused(str(error)) from error
        refusals = Refusals()
        for name, agent in config.agents.items():
            with refusals.noted():
                _check_tools(name, agent.tools, suite.toolbox)
        try:
            refusals.tell()
        except StartRefused:
            await suite.close()
            raise
        small = "small" if "small" in config.models else None
        agents = {name: replace(agent, small_model=agent.small_model or small) for name, agent in config.agents.items()}
        return cls(Agency(agents, suite.toolbox, state), suite, folder.parent)

    def start(self, tasks: asyncio.TaskGroup, service: Service) -> None:
        """Reach the MCP servers, and take up the runs that an earlier daemon left open, in `tasks`; returns at once."""
        if self._suite is not None:
            self._suite.connect(tasks)
        self._resuming = tasks.create_task(self._resume(service))

    async def _resume(self, service: Service) -> None:
        """Take up the open runs; tries until it can."""
        while self._folder.is_dir():
            try:
                count = await service.agents.resume()
            except Draining:
                return
            except AgentFlowError as error:
                _log.warning("runs that are open cannot be taken up yet", extra={"why": str(error)})
                await asyncio.sleep(RETRY_S)
            else:
                if count:
                    _log.info("runs taken up", extra={"count": count})
                return

    async def close(self) -> None:
        """End the tools' processes. After the runs have ended."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self._suite is not None:
            await self._suite.close()


def _documents(config: ToolsConfig) -> dict[str, Any]:
    """The OpenAPI documents of the configuration. Blocks. Raises StartRefused."""
    found: dict[str, Any] = {}
    for name, source in config.http.items():
        field = f"tools.http.{name}.document"
        try:
            document = yaml.load(Path(source.document).read_bytes(), Loader=yaml.CSafeLoader)
        except OSError as error:
            raise StartRefused(f"{field}: {source.document} cannot be read: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise StartRefused(f"{field}: {source.document} is neither JSON nor YAML: {error}") from error
        if not isinstance(document, dict):
            raise StartRefused(f"{field}: {source.document} is no OpenAPI document, which is an object")
        found[name] = document
    return found


def _check_tools(agent: str, names: tuple[str, ...], toolbox: Toolbox) -> None:
    """Whether an agent's tools are there. Raises StartRefused."""
    try:
        toolbox.offered(names)
    except AgentFlowError as error:
        raise StartRefused(f"agents.{agent}.tools: {error}") from error

"""From the configuration's agents and tools to what the service runs: the daemon's part, which finds tools and opens files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from msgspec.structs import replace

from acu.config import RESULTS, AcuConfig, model_role
from acu.errors import StartRefused
from acu.refusals import Refusals
from acu.toolnames import no_tools
from agentflow.errors import AgentFlowError, Draining

if TYPE_CHECKING:
    from acu.data.plane import Data
    from agentflow.agents.agency import Agency
    from agentflow.agents.config import AgentConfig
    from agentflow.library.embedderid import EmbedderId
    from agentflow.library.library import Library
    from agentflow.memory.agentmemory import AgentMemory, Keeping
    from agentflow.memory.diary import Diary
    from agentflow.memory.memories import Memories
    from agentflow.service import Service
    from agentflow.tools.config import ToolsConfig
    from agentflow.tools.suite import ToolSuite
    from agentflow.tools.tool import Tool
    from agentflow.tools.toolbox import Toolbox
    from dataplane import DataPlane, StateStore

RETRY_S = 5.0

_log = logging.getLogger("acu.agency")


class Later:
    """What agents' tools need of the daemon's other parts, which are made after them: set `data` and `service`."""

    data: Data
    service: Service

    async def plane(self) -> DataPlane:
        """The data plane, opened if it is not. Raises DataUnavailable."""
        return await self.data.opened()

    async def state(self) -> StateStore:
        """The data plane's state. Raises DataUnavailable."""
        return (await self.plane()).state

    async def library(self) -> Library:
        """The library, opened if it is not. Raises DataUnavailable."""
        return await self.data.library()

    async def embed(self, tenant: str, texts: Sequence[str], background: bool) -> Any:
        """Vectors as the library makes them. Raises DataUnavailable, and what an embedder does."""
        return await (await self.data.embedder()).embed(tenant, texts, background=background)

    async def embedder(self) -> EmbedderId:
        """Which model they are of. Raises DataUnavailable."""
        return (await self.data.embedder()).id

    def keeping(self, tenant: str, run_id: str) -> Keeping | None:
        """How the memory of a run's agent is kept."""
        return self.service.agents.keeping(tenant, run_id)


class AgencyRoom:
    """The agents, and the tools that are open for them; empty where no agent is configured. Close it."""

    def __init__(self, agency: Agency, suite: ToolSuite | None, folder: Path, known: Iterable[str] = ()) -> None:
        self.agency = agency
        self._known = frozenset(known)  # names of tools, were they there
        self._folder = folder  # of the data plane; without it nothing was left open
        self._suite = suite
        self._resuming: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, config: AcuConfig, environ: Mapping[str, str], later: Later) -> AgencyRoom:
        """Raises StartRefused."""
        from agentflow.agents.agency import Agency
        from agentflow.tools.suite import ToolSuite

        folder = Path(config.data_plane.path) / RESULTS
        if not config.agents:  # nothing is opened, nor made, for a daemon that only answers
            return cls(Agency({}, ToolSuite(config.tools, folder, {}).toolbox, later.state), None, folder.parent)
        small = "small" if "small" in config.models else None
        agents = {name: replace(agent, small_model=agent.small_model or small) for name, agent in config.agents.items()}
        remembered = _remembered(config, later)
        try:
            documents = await asyncio.to_thread(_documents, config.tools)
            own = _own_tools(remembered, later)
            suite = await ToolSuite.open(
                config.tools, folder, environ, own=_named(own, config.agents), documents=documents
            )
        except OSError as error:
            raise StartRefused(f"data_plane.path: {folder} cannot be used for tools' results: {error}") from error
        except AgentFlowError as error:
            raise StartRefused(str(error)) from error
        refusals = Refusals()
        warnings = _check_tools(config, suite.toolbox, own, refusals)
        try:
            refusals.tell()
        except StartRefused:
            await suite.close()
            raise
        if not config.tools.mcp:  # whose tools come later: see `start`
            for warning in warnings:
                _log.warning(warning)
        memory = None if remembered is None else _memory(agents, suite.toolbox, remembered)
        agency = Agency(agents, suite.toolbox, later.state, memory=memory, mcp_problems=lambda: suite.problems)
        return cls(agency, suite, folder.parent, (tool.spec.name for tool in own))

    def start(self, tasks: asyncio.TaskGroup, service: Service) -> None:
        """Reach the MCP servers, and take up the runs that an earlier daemon left open, in `tasks`; returns at once."""
        if self._suite is not None:
            self._suite.connect(tasks, self._warn_of_names)
        self._resuming = tasks.create_task(self._resume(service))

    def _warn_of_names(self) -> None:
        """All tools are there that will be: what agents name beyond them is a mistake."""
        toolbox = self.agency.toolbox
        known = self._known | {spec.name for spec in toolbox.specs()}
        for none in no_tools(self.agency.agents, toolbox, known):
            _log.warning(none.told(known))

    async def _resume(self, service: Service) -> None:
        """Take up the open runs; tries until it can."""
        told = ""
        while self._folder.is_dir():
            try:
                count = await service.agents.resume()
            except Draining:
                return
            except AgentFlowError as error:
                if str(error) != told:  # once for each reason
                    told = str(error)
                    _log.warning("runs that are open cannot be taken up yet", extra={"why": told})
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


async def check_tools(config: AcuConfig, environ: Mapping[str, str], refusals: Refusals) -> tuple[str, ...]:
    """Note all for which `open` would refuse the tools or the agents' names of them, and which MCP servers could not be reached
    at all; return what there is to warn of. Python modules are imported by worker processes; no server is started or asked, and
    nothing is made.
    """
    from agentflow.tools.builtin import builtin_tools
    from agentflow.tools.handles import HandleStore
    from agentflow.tools.survey import survey
    from agentflow.tools.toolbox import Toolbox

    if not config.agents:  # as `open`: nothing of the tools is looked at
        return ()
    documents: dict[str, Any] = {}
    for name, source in config.tools.http.items():
        with refusals.noted():
            documents[name] = _document(f"tools.http.{name}.document", source.document)
    found = await survey(config.tools, environ, documents)
    for problem in found.problems:
        with refusals.noted():
            raise StartRefused(problem)
    later = Later()
    own = _own_tools(_remembered(config, later), later)
    warnings: list[str] = []
    with refusals.noted():
        try:
            toolbox = Toolbox(
                (*builtin_tools(), *_named(own, config.agents), *found.tools),
                HandleStore(Path(config.data_plane.path) / RESULTS),
            )
        except AgentFlowError as error:
            raise StartRefused(f"tools: {error}") from error
        # Of a source that is wrong, or of an MCP server, nobody knows the names.
        toolbox.changing = bool(found.problems or config.tools.mcp or len(documents) < len(config.tools.http))
        warnings += _check_tools(config, toolbox, own, refusals)
        warnings += _lone_words(config.agents, toolbox)
    return tuple(warnings)


def _documents(config: ToolsConfig) -> dict[str, Any]:
    """The OpenAPI documents of the configuration. Blocks. Raises StartRefused."""
    return {name: _document(f"tools.http.{name}.document", source.document) for name, source in config.http.items()}


def _document(field: str, path: str) -> Any:
    """Blocks. Raises StartRefused."""
    try:
        document = yaml.load(Path(path).read_bytes(), Loader=yaml.CSafeLoader)
    except OSError as error:
        raise StartRefused(f"{field}: {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StartRefused(f"{field}: {path} is neither JSON nor YAML: {error}") from error
    if not isinstance(document, dict):
        raise StartRefused(f"{field}: {path} is no OpenAPI document, which is an object")
    return document


def _remembered(config: AcuConfig, later: Later) -> tuple[Memories, Diary] | None:
    """Where agents remember, and what writes there; None without a model that makes embeddings."""
    from agentflow.memory.diary import Diary
    from agentflow.memory.memories import Memories

    if not any(model_role(key, model) == "embed" for key, model in config.models.items()):
        return None
    memories = Memories(later.plane, later.embed, later.embedder)
    return memories, Diary(memories, later.state)


def _own_tools(remembered: tuple[Memories, Diary] | None, later: Later) -> tuple[Tool, ...]:
    """The tools of memory and of files."""
    from agentflow.tools.filesearch import FileSearch
    from agentflow.tools.remembering import remembering_tools

    if remembered is None:
        return ()
    return (*remembering_tools(*remembered, later.keeping), FileSearch(later.library))


def _named(own: Iterable[Tool], agents: Mapping[str, AgentConfig]) -> tuple[Tool, ...]:
    """Those of the daemon's own tools that some agent names: `*` alone means those that were configured."""
    named = {name for agent in agents.values() for name in agent.tools if name != "*"}
    return tuple(tool for tool in own if any(_stands_for(name, tool.spec.name) for name in named))


def _stands_for(name: str, tool: str) -> bool:
    """As the toolbox reads a name."""
    return tool.startswith(name[:-1]) if name.endswith("*") else tool == name


def _memory(
    agents: Mapping[str, AgentConfig], toolbox: Toolbox, remembered: tuple[Memories, Diary]
) -> AgentMemory | None:
    """The memory of agents, where one has any."""
    from agentflow.memory.agentmemory import AgentMemory

    if all(not agent.memory.recall and agent.memory.remember == "none" for agent in agents.values()):
        return None
    return AgentMemory(agents, toolbox.specs(), *remembered)


def _check_tools(config: AcuConfig, toolbox: Toolbox, own: Iterable[Tool], refusals: Refusals) -> tuple[str, ...]:
    """What to warn of in the agents' names of tools. Notes those that are not there, where none come later."""
    warnings: list[str] = []
    known = {spec.name for spec in toolbox.specs()} | {tool.spec.name for tool in own}
    for none in no_tools(config.agents, toolbox, known):
        if toolbox.changing and config.tools.mcp:
            warnings.append(none.unsure(config.tools.mcp))
        elif none.is_pattern:
            warnings.append(none.told(known))
        elif not toolbox.changing:
            with refusals.noted():
                raise StartRefused(none.told(known))
    return tuple(warnings)


def _lone_words(agents: Mapping[str, AgentConfig], toolbox: Toolbox) -> list[str]:
    """What to warn of in examples: words by which the router may take a question for a tool that waits for a person."""
    from agentflow.routing.cards import ToolCard
    from agentflow.routing.lonewords import lone_words

    told: list[str] = []
    for key, agent in agents.items():
        if agent.routing:
            missing = toolbox.missing(agent.tools)
            specs = toolbox.specs(name for name in agent.tools if name not in missing)
            asked = {spec.name for spec in specs if spec.approval}
            told += [f"agents.{key}.tools: {word.told()}" for word in lone_words([*map(ToolCard.of, specs)], asked)]
    return told

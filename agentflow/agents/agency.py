"""Agency: the agents of a configuration, and what their runs have to work with. Frozen values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from agentflow.agents.config import AgentConfig
from agentflow.agents.watch import Watcher
from agentflow.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from agentflow.memory.agentmemory import AgentMemory
    from dataplane import StateStore

PREFIX = "agent/"
"""What a model's name begins with that is an agent's."""


class Agency(NamedTuple):
    """The agents of a configuration by their names, everything that they may call, and where runs are stored (None: nowhere).

    `state` opens the data plane if it is not; it raises Refused. `watcher` hears how runs get on; `memory`: what
    the agents remember (None: nothing). `mcp_problems`: why MCP servers are not there now, by their names.
    """

    agents: Mapping[str, AgentConfig]
    toolbox: Toolbox
    state: Callable[[], Awaitable[StateStore]] | None = None
    watcher: Watcher | None = None
    memory: AgentMemory | None = None
    mcp_problems: Callable[[], Mapping[str, str]] = dict


class Asked(NamedTuple):
    """What a run is begun with besides the conversation. As in Began; `instructions` stand behind the agent's own."""

    run_id: str
    instructions: str = ""
    max_calls: int | None = None
    conversation: str = ""

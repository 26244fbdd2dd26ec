"""Tool names: which of the names in agents' `tools` stand for no tool, and what was meant. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from agentflow.nearest import did_you_mean, nearest

if TYPE_CHECKING:
    from agentflow.agents.config import AgentConfig
    from agentflow.tools.toolbox import Toolbox

_LISTED: Final = 30
"""Names that a message lists."""


class NoTool(NamedTuple):
    """A name that stands for nothing. `near`: the one that was meant, if any is like it."""

    field: str
    name: str
    near: str | None

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for all names that begin so, which may be none."""
        return self.name.endswith("*")

    def told(self, known: Collection[str]) -> str:
        """That there is no such tool, with what was meant, or with all names that there are."""
        said = (
            f"No tool's name begins with {self.name[:-1]!r}" if self.is_pattern else f"There is no tool {self.name!r}"
        )
        hint = did_you_mean(self.near) or f" There are: {_listed(known)}."
        return f"{self.field}: {said}.{hint}"

    def unsure(self, servers: Iterable[str]) -> str:
        """That an MCP server may have it, for all that is known."""
        hint = f" (did you mean {self.near}?)" if self.near else ""
        return f"{self.field}: not checked, may come from MCP server {' or '.join(servers)}: {self.name}{hint}"


def no_tools(agents: Mapping[str, AgentConfig], toolbox: Toolbox, known: Collection[str]) -> Iterator[NoTool]:
    """Of all agents, in their order. `known`: names that may have been meant. `*` alone is never one."""
    for agent, config in agents.items():
        for name in dict.fromkeys(toolbox.missing(config.tools)):
            if name != "*":
                yield NoTool(f"agents.{agent}.tools", name, nearest(name.rstrip("*"), known))


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:_LISTED]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(shown) + more

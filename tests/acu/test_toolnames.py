"""Names of tools that stand for nothing, and what is said of them."""

from __future__ import annotations

from pathlib import Path

from acu.toolnames import NoTool, no_tools
from agentflow.agents.config import AgentConfig
from agentflow.tools.builtin import builtin_tools
from agentflow.tools.handles import HandleStore
from agentflow.tools.toolbox import Toolbox


def test_each_name_that_stands_for_nothing_is_found_once_with_what_was_meant(tmp_path: Path) -> None:
    toolbox = Toolbox(builtin_tools(), HandleStore(tmp_path))
    agents = {
        "one": AgentConfig(tools=("calculator", "calc*", "*", "memory_wite", "memory_wite")),
        "two": AgentConfig(tools=("calculater*", "zzz")),
    }
    known = {"calculator", "memory_read", "memory_write"}
    for toolbox.changing in (False, True):
        assert list(no_tools(agents, toolbox, known)) == [
            NoTool("agents.one.tools", "memory_wite", "memory_write"),
            NoTool("agents.two.tools", "calculater*", "calculator"),
            NoTool("agents.two.tools", "zzz", None),
        ]


def test_what_is_said_names_what_was_meant_or_what_there_is() -> None:
    meant = NoTool("agents.a.tools", "ad", "add")
    assert meant.told({"add"}) == "agents.a.tools: There is no tool 'ad'. Did you mean 'add'?"
    assert meant.unsure(["x", "y"]) == (
        "agents.a.tools: not checked, may come from MCP server x or y: ad (did you mean add?)"
    )
    pattern = NoTool("agents.a.tools", "zz*", None)
    assert pattern.told({"b", "a"}) == "agents.a.tools: No tool's name begins with 'zz'. There are: a, b."
    many = [f"t{number:02}" for number in range(32)]
    assert pattern.told(many).endswith(" t28, t29 and 2 more.")

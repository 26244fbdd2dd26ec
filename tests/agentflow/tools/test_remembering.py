"""An agent looks up, notes and forgets in its own memory, and in no other."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from agentflow.agents.config import AgentConfig
from agentflow.agents.record import CallEnded
from agentflow.router import Router, Turn
from agentflow.routing.cards import ToolCard
from agentflow.tools.remembering import MemoryForget, MemorySearch, MemoryWrite
from tests.agentflow.agents.agencies import call
from tests.agentflow.memory.rooms import REMEMBERS, Room, opened

NOTES = replace(REMEMBERS, remember="notes", recall=False)
TOOLS = ("memory_*",)
AGENTS = {
    "a": AgentConfig(memory=NOTES, tools=TOOLS, routing=False),
    "b": AgentConfig(memory=NOTES, tools=TOOLS, routing=False),
    "reader": AgentConfig(memory=replace(REMEMBERS, name="a", remember="none"), tools=TOOLS, routing=False),
    "none": AgentConfig(tools=TOOLS, routing=False),
}
NUTS = "The user is allergic to nuts."
RULES = {
    "^note": call("memory_write", f'{{"text": "{NUTS}"}}') + call("memory_write", f'{{"text": " {NUTS} "}}'),
    "^look": call("memory_search", '{"query": "nuts", "count": 3}'),
    "^blank": call("memory_write", '{"text": "  "}'),
    "": "Done.",
}


async def results(room: Room, text: str, agent: str = "a", tenant: str = "acme") -> list[CallEnded]:
    """What came of the calls of a run."""
    assert (await room.ask(text, agent=agent, tenant=tenant)).endswith("Done.")
    return [event for event in await room.events(tenant) if isinstance(event, CallEnded)]


async def test_what_was_noted_is_found_by_the_same_agent_and_tenant_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES, AGENTS) as room:
        first, second = await results(room, "note this")
        assert first.text == second.text  # one note, and noted once
        assert re.fullmatch(r"Noted as m_[0-9a-f]{16}\.", first.text)
        (found,) = await results(room, "look it up")
        assert NUTS in found.text
        assert found.text.count("\n") == 0
        (nothing,) = await results(room, "look it up", agent="b")
        assert nothing.text == "Nothing is remembered that fits."
        (nothing,) = await results(room, "look it up", tenant="other")
        assert nothing.text == "Nothing is remembered that fits."


async def test_what_was_forgotten_is_gone_and_can_be_forgotten_again(tmp_path: Path) -> None:
    rules = dict(RULES)
    async with opened(tmp_path, rules, AGENTS) as room:
        first, _ = await results(room, "note this")
        note = first.text.removeprefix("Noted as ").rstrip(".")
    forget = {"^forget": call("memory_forget", f'{{"id": "{note}"}}')} | rules
    async with opened(tmp_path, forget, AGENTS) as room:
        (other,) = await results(room, "forget it", tenant="other")
        assert other.text == f"Nothing of the id {note} is remembered (any more)."
        (gone,) = await results(room, "forget it")
        assert gone.text == "Forgotten."
        (again,) = await results(room, "forget it")
        assert again.text == f"Nothing of the id {note} is remembered (any more)."
        assert await room.found("nuts") == ()


async def test_agents_without_a_memory_or_without_notes_are_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES, AGENTS) as room:
        for ended in await results(room, "note this", agent="none"):
            assert (ended.text, ended.is_error) == ("This agent has no memory.", True)
        for ended in await results(room, "note this", agent="reader"):
            assert (ended.text, ended.is_error) == ("This agent writes no notes: its memory is not kept.", True)
        (blank,) = await results(room, "blank note")
        assert (blank.text, blank.is_error) == ("text must be a text with words in it, not a handle.", True)


def test_the_router_tells_the_tools_apart_in_both_languages() -> None:
    router = Router([ToolCard.of(tool.spec) for tool in (MemorySearch, MemoryWrite, MemoryForget)])
    wanted = {
        "Please remember that I am allergic to nuts": "memory_write",
        "记住我对坚果过敏": "memory_write",
        "Do you remember which hotel I liked?": "memory_search",
        "你还记得我喜欢哪家酒店吗": "memory_search",
        "Forget what I told you about my address": "memory_forget",
    }
    for text, tool in wanted.items():
        assert router.decide(Turn(text=text)).tool == tool, text

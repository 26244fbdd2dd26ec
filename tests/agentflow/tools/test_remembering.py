"""An agent looks up, notes and forgets in its own memory, and in no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agentflow.agents.config import AgentConfig
from agentflow.agents.record import CallEnded
from agentflow.engine.script import Script
from agentflow.router import Router, Turn
from agentflow.routing.cards import ToolCard
from agentflow.tools.remembering import MemoryForget, MemoryRead, MemorySearch, MemoryWrite
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
OATS = "The user eats oats again."
RULES = {
    "^note": call("memory_write", f'{{"text": "{NUTS}"}}') + call("memory_write", f'{{"text": " {NUTS} "}}'),
    "^look": call("memory_search", '{"query": "nuts", "count": 3}'),
    "^blank": call("memory_write", '{"text": "  "}') + call("memory_write", '{"text": "  ", "name": "x"}'),
    "^keep": call("memory_write", f'{{"text": "{NUTS}", "name": " diet"}}'),
    "^change": call("memory_write", f'{{"text": " {OATS}\\n", "name": "diet"}}'),
    "^read": call("memory_read", '{"name": "diet"}'),
    "^typo": call("memory_read", '{"name": "diets"}'),
    "^drop": call("memory_forget", '{"name": "diet"}'),
    "^both": call("memory_forget", '{"name": "diet", "id": "m_1f6c0e9a4b7d2c35"}') + call("memory_forget", "{}"),
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


async def test_what_has_a_name_is_read_back_exactly_found_by_a_search_and_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES, AGENTS) as room:
        (nothing,) = await results(room, "typo")
        assert nothing.text == 'Nothing is kept under the name "diets". Nothing is kept under a name yet.'
        (kept,) = await results(room, "keep it")
        assert (kept.text, kept.is_error) == ('Noted under the name "diet".', False)
        (read,) = await results(room, "read it")
        assert read.text == NUTS
        (found,) = await results(room, "look it up")
        assert msgspec.json.decode(found.text)["name"] == "diet"
        await results(room, "change it")
        (read,) = await results(room, "read it")
        assert read.text == f" {OATS}\n"
        (found,) = await results(room, "look it up")
        assert msgspec.json.decode(found.text)["text"] == f" {OATS}\n"  # of one memory: nothing is outdated
        (nothing,) = await results(room, "typo")
        assert nothing.text == 'Nothing is kept under the name "diets". The names are: "diet".'
        for others in ({"agent": "b"}, {"tenant": "other"}):
            (nothing,) = await results(room, "read it", **others)
            assert nothing.text == 'Nothing is kept under the name "diet". Nothing is kept under a name yet.'
        (read,) = await results(room, "read it", agent="reader")  # of the same memory
        assert read.text == f" {OATS}\n"


async def test_what_has_a_name_is_forgotten_by_it(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES, AGENTS) as room:
        await results(room, "keep it")
        for ended, told in zip(await results(room, "both"), ("one of the two.",) * 2, strict=True):
            assert ended.is_error
            assert ended.text.endswith(told)
        (gone,) = await results(room, "drop it")
        assert gone.text == "Forgotten."
        (again,) = await results(room, "drop it")
        assert again.text == 'Nothing of the name "diet" is remembered (any more).'
        assert await room.found("nuts") == ()


async def test_a_run_is_reminded_of_what_has_a_name(tmp_path: Path) -> None:
    recalls = {"a": AgentConfig(memory=replace(REMEMBERS, remember="notes"), tools=TOOLS, routing=False)}
    async with opened(tmp_path, RULES, recalls) as room:
        await results(room, "keep it")
        await room.ask("What about nuts?")
        recalled = await room.recalled()
        assert (recalled.names, recalled.texts) == (("diet",), (NUTS,))
        assert '"name":"diet"' in await room.prompt()


async def test_what_is_noted_while_there_is_no_embedder_is_found_once_there_is_one(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES, AGENTS, embedder=Script(start_s=3600.0)) as room:
        for ended in await results(room, "note this"):
            assert re.fullmatch(r"Noted as m_[0-9a-f]{16}\. A search finds it a little later\.", ended.text)
        (kept,) = await results(room, "keep it")
        assert kept.text == 'Noted under the name "diet". A search finds it a little later.'
        (read,) = await results(room, "read it")
        assert read.text == NUTS
    async with opened(tmp_path, RULES, AGENTS) as room:
        await room.service.agents.resume()
        await room.written()
        assert [memory.name for memory in await room.found("nuts")].count("diet") == 1
        assert len(await room.found("nuts")) == 2


async def test_agents_without_a_memory_or_without_notes_are_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES, AGENTS) as room:
        for ended in await results(room, "note this", agent="none"):
            assert (ended.text, ended.is_error) == ("This agent has no memory.", True)
        for ended in await results(room, "note this", agent="reader"):
            assert (ended.text, ended.is_error) == ("This agent writes no notes: its memory is not kept.", True)
        for blank in await results(room, "blank note"):
            assert (blank.text, blank.is_error) == ("text must be a text with words in it, not a handle.", True)
        (kept,) = await results(room, "keep it", agent="reader")
        assert (kept.text, kept.is_error) == ("This agent writes no notes: its memory is not kept.", True)


def test_the_router_tells_the_tools_apart_in_both_languages() -> None:
    router = Router([ToolCard.of(tool.spec) for tool in (MemorySearch, MemoryRead, MemoryWrite, MemoryForget)])
    wanted = {
        "Please remember that I am allergic to nuts": "memory_write",
        "记住我对坚果过敏": "memory_write",
        "Do you remember which hotel I liked?": "memory_search",
        "你还记得我喜欢哪家酒店吗": "memory_search",
        "Forget what I told you about my address": "memory_forget",
        "忘掉我跟你说过的地址": "memory_forget",
        "Read me the note named packing list": "memory_read",
        "What is in the note called wifi?": "memory_read",
        "读一下名为行李清单的笔记": "memory_read",
        "Remember that my train leaves at nine": "memory_write",
        "What did I tell you about my sister?": "memory_search",
    }
    for text, tool in wanted.items():
        assert router.decide(Turn(text=text)).tool == tool, text

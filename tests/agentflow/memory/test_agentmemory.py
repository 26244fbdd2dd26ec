"""Agents remember what was said, for their own tenant, and a memory that is slow or away is left out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.config import AgentConfig, MemoryConfig
from agentflow.agents.record import Began, Ended, Recalled, StepBegan
from agentflow.engine.script import Script
from agentflow.memory.rows import Entry
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import BodyTool, call, kept
from tests.agentflow.memory.rooms import AGENTS, PATIENCE_S, REMEMBERS, opened

CAT = "My cat is called Minka, and she is seven."
RULES = {"Minka": "What a fine cat.", "cat": "I see.", "": "Well."}


async def test_what_was_said_in_an_earlier_run_is_recalled_to_the_same_agent_and_tenant_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES) as room:
        assert await room.ask(CAT) == "What a fine cat."
        first = await room.recalled()
        assert (first.texts, first.complete, first.why) == ((), True, "")
        await room.written()
        await room.ask("How old is my cat?")
        found = await room.recalled()
        assert found.texts == (f"User: {CAT}\nAssistant: What a fine cat.",)
        assert (found.tiers, found.complete, found.why) == (("hot",), True, "")
        prompt = await room.prompt()
        assert prompt.index("You are kind.") < prompt.index("# Memory") < prompt.index("My cat is called Minka")
        assert prompt.index("My cat is called Minka") < prompt.index("How old is my cat?")
        await room.ask("How old is my cat?", agent="b")
        assert (await room.recalled()).texts == ()
        await room.ask("How old is my cat?", tenant="other")
        assert (await room.recalled("other")).texts == ()
        await room.ask("How old is my cat?", agent="deaf")
        assert not [event for event in await room.events() if isinstance(event, Recalled)]


async def test_agents_that_name_one_memory_share_it(tmp_path: Path) -> None:
    shared = replace(REMEMBERS, name="house")
    agents = {"a": AgentConfig(memory=shared), "b": AgentConfig(memory=shared)}
    async with opened(tmp_path, RULES, agents) as room:
        await room.ask(CAT)
        await room.written()
        await room.ask("How old is my cat?", agent="b")
        assert len((await room.recalled()).texts) == 1


async def test_a_conversation_is_not_reminded_of_itself(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES) as room:
        answer = await room.ask(CAT)
        await room.written()
        await room.ask(CAT, answer, "How old is my cat?")
        assert (await room.recalled()).texts == ()
        await room.written()
        await room.ask(CAT, answer, "How old is she?", "Seven.", "Thanks. And my dog?")
        texts = (await room.recalled()).texts  # an earlier branch of it is another conversation
        assert [text.splitlines()[0] for text in texts] == ["User: How old is my cat?"]


async def test_runs_that_are_not_stored_or_did_not_come_to_their_end_are_not_remembered(tmp_path: Path) -> None:
    agents = AGENTS | {"notes": AgentConfig(memory=replace(REMEMBERS, remember="notes"))}
    async with opened(tmp_path, RULES, agents) as room:
        await room.ask(CAT, store=False)
        await room.ask(CAT, agent="notes")
        await room.ask(CAT, agent="deaf")
        await room.written()
        assert await room.found("cat") == ()
        assert await room.found("cat", "notes") == ()
        assert room.plane.collections("acme") == {}


async def test_a_budget_that_is_exceeded_leaves_the_memory_out_and_says_so(tmp_path: Path) -> None:
    hasty = AGENTS | {"hasty": AgentConfig(memory=replace(REMEMBERS, name="a", recall_ms=0.01))}
    async with opened(tmp_path, RULES, hasty) as room:
        await room.ask(CAT)
        await room.written()
        assert await room.ask("How old is my cat?", agent="hasty") == "I see."
        found = await room.recalled()
        assert (found.texts, found.complete) == ((), False)
        assert found.why == "the memory was not searched within 0 ms"
        assert "# Memory" not in await room.prompt()


async def test_an_embedder_that_is_slow_leaves_the_words(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES) as room:
        await room.ask(CAT)
        await room.written()
    slow = AGENTS | {"a": AgentConfig(memory=replace(REMEMBERS, recall_ms=1_000.0))}
    async with opened(tmp_path, RULES, slow, embedder=Script(embed_s=60.0)) as room:
        assert await room.ask("Where is Minka now?") == "What a fine cat."
        found = await room.recalled()
        assert found.texts == (f"User: {CAT}\nAssistant: What a fine cat.",)
        assert not found.complete
        assert found.why == "searched by words alone: the embedding model took over 600 ms"


@pytest.mark.parametrize(("floor", "kept"), [(0.2, 1), (0.9, 0), (None, 1)])
async def test_a_run_is_not_reminded_of_what_is_further_away_than_the_floor(
    tmp_path: Path, floor: float | None, kept: int
) -> None:
    agents = {"a": AgentConfig(memory=replace(REMEMBERS, recall_floor=floor))}
    async with opened(tmp_path, RULES, agents) as room:
        await room.ask(CAT)
        await room.written()
        await room.ask("Is my cat called Minka?")
        found = await room.recalled()
        assert (len(found.texts), found.complete) == (kept, True)
        assert found.why == ("" if kept else "1 left out, which are below recall_floor")


async def test_a_run_whose_embedder_is_away_goes_on_and_is_remembered_when_it_is_back(tmp_path: Path) -> None:
    away = AGENTS | {"a": AgentConfig(memory=replace(REMEMBERS, recall_ms=20.0))}
    async with opened(tmp_path, RULES, away, embedder=Script(start_s=3600.0)) as room:
        assert await room.ask(CAT) == "What a fine cat."
        assert (await room.recalled()).texts == ()
        await room.service.agents.drain()
        assert room.memory.diary.due == 1
    async with opened(tmp_path, RULES) as room:
        assert await room.service.agents.resume() == 0
        await room.written()
        assert [memory.text.splitlines()[0] for memory in await room.found("cat")] == [f"User: {CAT}"]
        assert await room.plane.state.scan("acme", "remember") == []


async def test_a_run_that_ended_just_before_a_crash_is_remembered_by_whoever_takes_it_up(tmp_path: Path) -> None:
    run = RunRecord(id="run_1", agent="a", model="m", created_ms=0)
    async with opened(tmp_path, RULES) as room:
        await room.ask(CAT)
        log = await room.events()
        assert isinstance(log[-1], Ended)
        journal = await Archive(room.plane.state).open("late", run)
        await journal.append(log, kept)
    async with opened(tmp_path, RULES) as room:
        assert await room.service.agents.resume() == 0
        await room.written()
        assert len(await room.found("cat", tenant="late")) == 1
        assert await Archive(room.plane.state).open_runs() == []


async def test_what_was_logged_is_used_after_a_crash_and_nothing_is_searched_again(tmp_path: Path) -> None:
    run = RunRecord(id="run_1", agent="a", model="m", created_ms=0)
    async with opened(tmp_path, RULES) as room:
        await room.ask(CAT)
        await room.written()
        await room.ask("How old is my cat?")
        log = await room.events()
        assert [type(event) for event in log[:3]] == [Began, Recalled, StepBegan]
        assert isinstance(log[1], Recalled)
        journal = await Archive(room.plane.state).open("acme2", run)
        await journal.append([log[0], replace(log[1], texts=("She lives in Graz.",))], kept)
    async with opened(tmp_path, RULES) as room:
        assert await room.service.agents.resume() == 1
        await room.written()
        again = [event for event in await room.events("acme2") if isinstance(event, Recalled)]
        assert [event.texts for event in again] == [("She lives in Graz.",)]
        assert "She lives in Graz." in await room.prompt("acme2")


async def test_memory_that_does_not_fit_the_context_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES, max_model_len=900) as room:
        await room.ask(CAT)
        await room.written()
        assert await room.ask("How old is my cat?" + " Tell." * 50) == "I see."
        found = await room.recalled()
        assert found.texts == ()
        assert found.why == "1 left out, which would have been too long"


async def weather(arguments: dict[str, Any], _: CallContext) -> str:
    return f"sunny in {arguments['city']}"


@pytest.mark.parametrize(("fresh_for_s", "kept"), [(3600.0, True), (1e-9, False), (None, False)])
async def test_a_tools_result_is_remembered_for_as_long_as_it_holds(
    tmp_path: Path, fresh_for_s: float | None, kept: bool
) -> None:
    rules = {"sunny": "Take a hat.", "weather": call("weather", '{"city": "Graz"}')}
    agents = {"a": AgentConfig(tools=("weather",), routing=False, memory=REMEMBERS)}
    tools = [BodyTool("weather", weather, fresh_for_s=fresh_for_s)]
    async with opened(tmp_path, rules, agents, tools=tools) as room:
        assert (await room.ask("How is the weather?")).endswith("Take a hat.")
        await room.written()
        texts = [memory.text for memory in await room.found("weather Graz")]
        assert ('weather {"city": "Graz"} gave: sunny in Graz' in texts) is kept
        assert "User: How is the weather?\nAssistant: Take a hat." in texts


async def test_what_is_past_its_end_is_found_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path, RULES) as room:
        now = int(time.time() * 1000)
        entry = Entry(id="m_1", kind="note", text="The cat sleeps.", agent="a", run_id="run_1", at=now, until=now + 300)
        await room.memories.write("acme", "a", [entry, replace(entry, id="m_2", until=now + 3_600_000)])
        while time.time() * 1000 < now + 400:
            await room.found("cat")
        assert [memory.id for memory in await room.found("cat")] == ["m_2"]
        await room.memories.write("acme", "a", [replace(entry, id="m_3", until=now)])
        assert [memory.id for memory in await room.found("cat")] == ["m_2"]


async def test_turns_have_the_end_that_the_configuration_gives_them(tmp_path: Path) -> None:
    agents = {"a": AgentConfig(memory=MemoryConfig(recall=True, remember="turns", ttl_days=2.0))}
    async with opened(tmp_path, RULES, agents) as room:
        await room.ask(CAT)
        ended = (await room.events())[-1]
        await room.written()
        (memory,) = await room.found("cat")
        (row,) = await room.plane.get("acme", "memory/a", [memory.id])
        assert row is not None
        assert row.expires_ms is not None
        assert 0 <= row.expires_ms - (ended.at + 2 * 86_400_000) < 1000 * PATIENCE_S

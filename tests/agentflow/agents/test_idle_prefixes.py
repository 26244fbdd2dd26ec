"""What the engine still knows of agents' runs that wait for their tools, or are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentflow.agents.agency import Asked
from agentflow.agents.config import AgentConfig
from agentflow.agents.record import StepEnded
from agentflow.agents.runs import new_run_id
from agentflow.engine.script import Rule
from agentflow.messages import ChatRequest, Message, Sampling
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import Bench, BodyTool, benched, call, request

INSTRUCTIONS = "Be of use, and be brief. " * 40
AGENT = AgentConfig(instructions=INSTRUCTIONS, tools=("*",), routing=False)
RULES = {"look": call("look"), "found": "There it is.", "hello": "Hello."}


def looking(body: Callable[[], Any]) -> BodyTool:
    async def look(_: dict[str, Any], __: CallContext) -> str:
        await body()
        return "found"

    return BodyTool("look", look)


async def steps_of(it: Bench, asked: ChatRequest) -> list[StepEnded]:
    """The steps of a whole run, as its log measures them."""
    going = await it.service.agents.begin(asked, Asked(new_run_id()))
    return [event async for _, event in going.live.follow() if isinstance(event, StepEnded)]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():
            await asyncio.sleep(0.002)
    await asyncio.sleep(0)


def idle(it: Bench) -> int:
    return it.service.status().idle_prefixes


async def test_a_run_that_waits_is_idle_and_goes_on_from_what_was_kept(tmp_path: Path) -> None:
    seen = []

    async def look() -> None:
        await until(lambda: idle(it) == 1)  # the model has ended its turn
        seen.append(idle(it))

    async with benched(tmp_path, RULES, [looking(look)], AGENT) as it:
        first, second = await steps_of(it, request("look"))
        assert seen == [1]
        assert second.cached_tokens >= first.prompt_tokens // 16 * 16 > 900
        assert idle(it) == 1  # what both steps made, as one
        again = await steps_of(it, request("look"))
        assert again[0].cached_tokens > 900


async def test_a_run_that_waits_too_long_is_forgotten_but_for_what_others_share(tmp_path: Path) -> None:
    async def look() -> None:
        await until(lambda: idle(it) == 1)
        await until(lambda: idle(it) == 0)
        others.append((await steps_of(it, request("hello")))[0])

    others: list[StepEnded] = []
    async with benched(tmp_path, RULES, [looking(look)], AGENT, idle=(10, 0.05)) as it:
        first, second = await steps_of(it, request("look"))
        assert others[0].cached_tokens == 0
        # Of its own prompt the engine knows what the other run's has in common with it.
        assert 900 < second.cached_tokens < first.prompt_tokens // 16 * 16
        await until(lambda: idle(it) == 0)
        assert (await steps_of(it, request("look")))[0].cached_tokens == 0


async def test_the_next_turn_of_a_conversation_takes_the_last_ones_place(tmp_path: Path) -> None:
    async with benched(tmp_path, RULES, [], AGENT) as it:
        await steps_of(it, request("hello", sampling=Sampling(max_tokens=6)))
        messages = (Message("user", "hello"), Message("assistant", "Hello."), Message("user", "hello again"))
        (step,) = await steps_of(it, ChatRequest(id="req", model="agent/a", messages=messages))
        assert step.cached_tokens > 900
        assert idle(it) == 1


async def test_no_more_than_so_many_are_kept(tmp_path: Path) -> None:
    async with benched(tmp_path, RULES, [], AGENT, idle=(2, 3600)) as it:
        for number in range(5):
            await steps_of(it, request(f"{number} hello"))
        await until(lambda: idle(it) == 2)
        (step,) = await steps_of(it, request("0 hello"))
        assert 900 < step.cached_tokens < step.prompt_tokens - 32  # the instructions, and nothing of what was said


async def test_a_run_that_was_refused_or_never_got_a_seat_leaves_nothing(tmp_path: Path) -> None:
    rules = {"wait": Rule(answer="x" * 5000, tokens_per_s=5)}
    async with benched(tmp_path, rules, [], AGENT, max_running=1, queue_limit=1) as it, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(steps_of(it, request(f"{number} wait"))) for number in range(2)]
        await until(lambda: it.service.status().queued == 1)
        assert await steps_of(it, request("refused")) == []
        for run_id in reversed(it.service.agents.ids("default")):
            await it.service.agents.cancel("default", run_id)
        assert [await each for each in running] == [[], []]
        assert idle(it) == 1  # of the one that an engine has seen


async def test_what_an_erased_tenant_left_is_forgotten_at_once(tmp_path: Path) -> None:
    async with benched(tmp_path, RULES, [], AGENT) as it:
        await steps_of(it, request("hello"))
        assert idle(it) == 1
        async with it.service.agents.closed("default"):
            await until(lambda: idle(it) == 0)
        (step,) = await steps_of(it, request("hello"))
        assert step.cached_tokens == 0

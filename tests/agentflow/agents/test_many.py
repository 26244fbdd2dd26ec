"""Fifty runs at once: nobody's events are lost, nobody holds a seat while its tools work, and half of them can be ended."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.config import AgentConfig
from agentflow.agents.live import LiveRun
from agentflow.agents.record import Ended, Event, StepBegan, StepEnded
from agentflow.errors import Draining
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import Bench, BodyTool, benched, call, request

RUNS = 50
RULES = {
    "(?s)<3>": "All done.",
    "(?s)<2>": "Third. " + call("work", '{"n": 3}') + " Go on.",
    "(?s)<1>": "Second. " + call("work", '{"n": 2}') + call("work", '{"n": 2}'),
    "go": "First. " + call("work", '{"n": 1}'),
}
AGENT = AgentConfig(tools=("*",), routing=False)


def worker(seed: int, free: asyncio.Event | None = None) -> tuple[BodyTool, list[int]]:
    """A tool that takes a random while, and how many of its calls are under way. A run's last one waits for `free`."""
    chance = random.Random(seed)
    under_way = [0]

    async def work(arguments: dict[str, Any], _: CallContext) -> str:
        under_way[0] += 1
        try:
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            if free is not None and arguments["n"] == 3:
                await free.wait()
        finally:
            under_way[0] -= 1
        return f"<{arguments['n']}>"

    return BodyTool("work", work, idempotent=True, concurrency=256), under_way


async def followed(live: LiveRun) -> list[tuple[int, Event]]:
    return [numbered async for numbered in live.follow()]


async def begun(it: Bench, number: int) -> LiveRun:
    await it.service.chat(request(f"go {number}", store=False))
    return it.service.agents.live("default", it.service.agents.ids("default")[-1])  # type: ignore[return-value]


async def test_fifty_runs_lose_no_event_and_hold_no_seat_while_their_tools_work(tmp_path: Path) -> None:
    tool, under_way = worker(1)
    most_seats = 0
    async with benched(tmp_path, RULES, [tool], AGENT, max_running=8, tokens_per_s=4000, tokens_per_delta=8) as it:
        lives = [await begun(it, number) for number in range(RUNS)]
        following = [asyncio.create_task(followed(live)) for live in lives]
        while it.service.agents.going:
            speaking = sum(live.progress.speaking for live in lives)
            seats = it.service.status().running
            assert seats <= speaking
            most_seats = max(most_seats, seats)
            await asyncio.sleep(0.005)
        for told in await asyncio.gather(*following):
            numbers = [number for number, _ in told]
            events = [event for _, event in told]
            assert numbers == list(range(1, len(numbers) + 1))
            assert sum(isinstance(event, StepBegan) for event in events) == 4
            assert sum(isinstance(event, StepEnded) for event in events) == 4
            assert isinstance(events[-1], Ended)
            assert events[-1].end == "completed"
        assert most_seats <= 8
        assert (under_way[0], it.service.status().running, it.service.status().queued) == (0, 0, 0)


async def test_half_of_fifty_runs_are_ended_and_the_others_come_to_their_end(tmp_path: Path) -> None:
    free = asyncio.Event()
    tool, under_way = worker(2, free)
    async with benched(tmp_path, RULES, [tool], AGENT, max_running=8, tokens_per_s=2000, tokens_per_delta=8) as it:
        lives = [await begun(it, number) for number in range(RUNS)]
        following = [asyncio.create_task(followed(live)) for live in lives]
        await asyncio.sleep(0.15)
        cancelled = await asyncio.gather(*(it.service.agents.cancel("default", live.id) for live in lives[::2]))
        assert all(cancelled)
        free.set()
        assert not any(live.progress.speaking for live in lives[::2])
        told = await asyncio.gather(*following)
        ends = [events[-1][1].end for events in told]  # type: ignore[union-attr]
        assert ends == ["cancelled", "completed"] * (RUNS // 2)
        await it.service.agents.drain()
        assert (under_way[0], it.service.status().running, it.service.status().queued) == (0, 0, 0)


async def test_a_drain_lets_runs_come_to_their_end_and_takes_no_new_ones(tmp_path: Path) -> None:
    tool, _ = worker(3)
    async with benched(tmp_path, RULES, [tool], AGENT, tokens_per_s=4000, tokens_per_delta=8) as it:
        live = await begun(it, 1)
        following = asyncio.create_task(followed(live))
        await asyncio.sleep(0.02)
        draining = asyncio.create_task(it.service.drain(10.0))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            await it.ask("go")
        await draining
        last = (await following)[-1][1]
        assert isinstance(last, Ended)
        assert last.end == "completed"


async def test_a_full_queue_refuses_new_runs_and_no_step_of_one_that_has_begun(tmp_path: Path) -> None:
    tool, _ = worker(4)
    async with benched(
        tmp_path, RULES, [tool], AGENT, max_running=1, tokens_per_s=2000, queue_limit=2, tokens_per_delta=8
    ) as it:
        lives = [await begun(it, number) for number in range(6)]
        following = [asyncio.create_task(followed(live)) for live in lives]
        ends = [(await told)[-1][1] for told in following]
    whys = sorted(f"{event.end} {event.why}" for event in ends if isinstance(event, Ended))
    assert whys[:3] == ["completed stop"] * 3
    assert set(whys[3:]) <= {"failed QueueFull", "completed stop"}

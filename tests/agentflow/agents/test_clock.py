"""A run's clock, by a loop whose time the tests move on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import pytest_asyncio

from agentflow.agents.clock import RunClock

Passes = Callable[[float], Awaitable[None]]


@pytest_asyncio.fixture
async def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Lets so many seconds pass."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    async def pass_(seconds: float) -> None:
        nonlocal now
        now += seconds
        for _ in range(5):
            await asyncio.sleep(0)

    return pass_


async def test_it_goes_on_after_a_stop_with_what_was_left(passes: Passes) -> None:
    seen = []
    with pytest.raises(TimeoutError):
        async with RunClock(10) as clock:
            for _ in range(2):
                await passes(4)
                async with clock.stopped():
                    await passes(100)
            await passes(1)
            seen.append("9 s")
            await passes(2)
            seen.append("11 s")
    assert seen == ["9 s"]


async def test_of_several_stops_the_last_one_that_is_over_counts(passes: Passes) -> None:
    seen = []
    with pytest.raises(TimeoutError):
        async with RunClock(10) as clock:
            async with clock.stopped():
                async with clock.stopped():
                    await passes(100)
                await passes(100)
                seen.append("one is over")
            await passes(11)
            seen.append("11 s")
    assert seen == ["one is over"]


async def test_a_run_that_ends_before_its_time_is_not_ended(passes: Passes) -> None:
    async with RunClock(10) as clock:
        await passes(9)
        async with clock.stopped():
            pass
    await passes(100)

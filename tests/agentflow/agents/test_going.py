"""What must come to its end does, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.agents.going import to_its_end


async def test_work_that_nobody_cancels_ends_and_no_cancellation_comes_of_it() -> None:
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append("done")

    await to_its_end(work())
    assert done == ["done"]


async def test_work_ends_however_often_its_waiter_is_cancelled_who_is_cancelled_after_it() -> None:
    free = asyncio.Event()
    done: list[str] = []

    async def work() -> None:
        await free.wait()
        done.append("done")

    waiter = asyncio.create_task(to_its_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        waiter.cancel()
    await asyncio.sleep(0)
    assert (done, waiter.done()) == ([], False)
    free.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert done == ["done"]


async def test_what_the_work_fails_with_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        await to_its_end(work())

"""No thread outlives whoever waits for it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

import pytest

from dataplane.threads import compute_apart, in_thread, share_cores


async def test_a_cancelled_caller_waits_for_the_thread() -> None:
    began, ended = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        time.sleep(0.2)
        ended.set()

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(began.wait)
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_thread_that_looks_is_told_to_stop() -> None:
    stop = threading.Event()
    task = asyncio.create_task(in_thread(stop.wait, 30, stop=stop))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stop.is_set()


async def test_what_the_call_returns_and_raises_is_the_callers() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


def cores_of(place: Callable[[], None]) -> tuple[list[int], list[int]]:
    """The cores of a thread before and after."""
    seen: list[list[int]] = []

    def look() -> None:
        seen.append(sorted(os.sched_getaffinity(0)))
        place()
        seen.append(sorted(os.sched_getaffinity(0)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return seen[0], seen[1]


def test_the_keeper_s_thread_and_the_others_have_a_core_of_their_own() -> None:
    before, after = cores_of(share_cores)
    assert after == (before[:-1] or before)
    before, after = cores_of(compute_apart)
    assert after == (before[1:] or before)
    assert sorted(os.sched_getaffinity(0)) == before  # of the thread alone


def test_a_thread_with_one_core_keeps_it() -> None:
    def with_one(place: Callable[[], None]) -> None:
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        place()
        assert os.sched_getaffinity(0) == {core}

    for place in (share_cores, compute_apart):
        assert len(cores_of(lambda place=place: with_one(place))[1]) == 1  # type: ignore[misc]

"""No thread outlives whoever waits for it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dataplane.threads import in_thread


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

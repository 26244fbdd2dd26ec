"""Calls at a steady rate, and the loop's lag."""

from __future__ import annotations

import asyncio
import time

import pytest

from benchmarks.control import calibrated, control_s, piece
from benchmarks.lateness import due_by, paced, watched_loop


def test_the_first_call_is_due_at_once_and_none_after_the_last() -> None:
    assert [due_by(at, 10, 4) for at in (-1.0, 0.0, 0.05, 0.11, 0.35, 9.0)] == [0, 1, 1, 2, 4, 4]


async def test_every_call_is_made_once_in_order_and_none_waits_for_another() -> None:
    begun: list[int] = []
    release = asyncio.Event()

    async def call(number: int) -> None:
        begun.append(number)
        if number == 9:
            release.set()
        await release.wait()

    late = await paced(1000, 10, call)
    assert begun == list(range(10))
    assert len(late) == 10
    assert min(late) >= 0


async def test_a_call_that_fails_ends_all() -> None:
    async def call(number: int) -> None:
        if number == 2:
            raise ValueError(number)

    with pytest.raises(ExceptionGroup) as caught:
        await paced(1000, 1_000_000, call)
    assert caught.group_contains(ValueError)


async def test_a_loop_that_is_held_up_is_seen_to_be_late() -> None:
    lags: list[float] = []
    async with watched_loop(lags):
        await asyncio.sleep(0.02)
        time.sleep(0.06)  # noqa: ASYNC251  # that is what is to be seen
        await asyncio.sleep(0.02)
    assert max(lags) >= 0.05


async def test_the_control_ends_each_call_after_it_was_due() -> None:
    took = await control_s(500, 0.2)
    assert len(took) == 100
    assert min(took) > 0
    assert len(piece(calibrated())) > 100

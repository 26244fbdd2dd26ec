"""The timer that scripted streams share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from time import monotonic

import pytest

from agentflow.engine.script_clock import _AT_ONCE, Clock

Waiters = list[asyncio.Future[None]]


@pytest.fixture
async def clock() -> Clock:
    return Clock()


def ring(clock: Clock, count: int, due: float) -> Waiters:
    """So many waiters, due at one time of `monotonic`."""
    waiters = [clock.loop.create_future() for _ in range(count)]
    for waiter in waiters:
        clock.ring(waiter, due)
    return waiters


def noting(order: list[int], place: int) -> Callable[[asyncio.Future[None]], None]:
    """A callback that adds `place` to `order`."""
    return lambda _: order.append(place)


def woken(waiters: Waiters) -> int:
    return sum(waiter.done() and not waiter.cancelled() for waiter in waiters)


async def all_woken(*waiters: asyncio.Future[None]) -> None:
    async with asyncio.timeout(10):
        await asyncio.gather(*waiters)


async def test_nobody_is_woken_before_the_millisecond_in_which_he_is_due(clock: Clock) -> None:
    begun = monotonic()
    for wait_s in (0.03, 0.0021, 0.01):
        (waiter,) = ring(clock, 1, begun + wait_s)
        await all_woken(waiter)
        assert monotonic() >= begun + wait_s - 0.001


async def test_waiters_are_woken_in_the_order_of_their_times_whenever_they_came(clock: Clock) -> None:
    order: list[int] = []
    now = monotonic()
    waiters: Waiters = []
    for place in (2, 0, 3, 1):
        waiters += ring(clock, 1, now + 0.005 * (place + 1))
        waiters[-1].add_done_callback(noting(order, place))
    await all_woken(*waiters)
    assert order == [0, 1, 2, 3]


async def test_waiters_of_one_time_are_woken_in_the_order_in_which_they_came(clock: Clock) -> None:
    order: list[int] = []
    waiters = ring(clock, 100, monotonic() + 0.005)
    for place, waiter in enumerate(waiters):
        waiter.add_done_callback(noting(order, place))
    await all_woken(*waiters)
    await asyncio.sleep(0)
    assert order == list(range(100))


async def test_of_many_that_are_due_only_some_are_woken_before_others_have_their_turn(clock: Clock) -> None:
    waiters = ring(clock, 5 * _AT_ONCE, monotonic() - 1) + ring(clock, 5 * _AT_ONCE, monotonic() - 2)
    counts = [0]
    async with asyncio.timeout(10):
        while counts[-1] < len(waiters):
            await asyncio.sleep(0)  # this task is the others
            counts.append(woken(waiters))
    steps = [later - earlier for earlier, later in pairwise(counts)]
    assert max(steps) == _AT_ONCE
    assert len(steps) >= 10


async def test_a_late_loop_wakes_everybody_who_was_due_meanwhile(clock: Clock) -> None:
    now = monotonic()
    waiters = [*ring(clock, 3, now + 0.001), *ring(clock, 3, now + 0.004), *ring(clock, 3, now + 0.009)]
    while monotonic() < now + 0.011:
        pass  # the loop is held
    assert woken(waiters) == 0
    await all_woken(*waiters)


async def test_those_who_left_are_passed_over_and_take_nobodys_place(clock: Clock) -> None:
    past = monotonic() - 1
    gone = ring(clock, 3 * _AT_ONCE + 5, past)
    waiting = ring(clock, _AT_ONCE, past)
    for waiter in gone[::2]:
        waiter.cancel()
    for waiter in gone[1::2]:
        waiter.set_result(None)
    async with asyncio.timeout(10):
        while not woken(waiting):
            await asyncio.sleep(0)
    assert woken(waiting) == _AT_ONCE, "all of them in one turn"


async def test_after_it_was_idle_it_goes_on(clock: Clock) -> None:
    for _ in range(3):
        (waiter,) = ring(clock, 1, monotonic() + 0.002)
        waiter.cancel()
        await asyncio.sleep(0.005)
        (waiter,) = ring(clock, 1, monotonic() + 0.002)
        await all_woken(waiter)

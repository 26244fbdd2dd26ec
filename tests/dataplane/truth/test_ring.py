"""The ring: bounded, in order, and whoever waits is served in turn."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.errors import Closed
from dataplane.truth.ring import Ring


async def _settled() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def full() -> AsyncIterator[Ring[str]]:
    """A ring of capacity 2 with `a` and `b` inside."""
    ring: Ring[str] = Ring(2)
    await ring.put("a")
    await ring.put("b")
    yield ring
    ring.close()


async def test_entries_leave_in_the_order_in_which_they_came() -> None:
    ring: Ring[int] = Ring(100)
    for entry in range(50):
        await ring.put(entry)

    assert ring.weight == 50
    assert ring.take(20) == list(range(20))
    assert ring.take(100) == list(range(20, 50))
    assert ring.weight == 0


async def test_a_full_ring_makes_the_producer_wait_until_there_is_room(full: Ring[str]) -> None:
    waiting = asyncio.create_task(full.put("c"))
    await _settled()
    assert not waiting.done()
    assert full.weight == 2

    assert full.take(1) == ["a"]
    await waiting

    assert full.take(9) == ["b", "c"]


async def test_those_who_wait_are_served_in_turn(full: Ring[str]) -> None:
    tasks = []
    for entry in "cdef":
        tasks.append(asyncio.create_task(full.put(entry)))
        await _settled()

    taken: list[str] = []
    while len(taken) < 6:
        taken += full.take(1)
        await _settled()

    assert taken == ["a", "b", "c", "d", "e", "f"]
    await asyncio.gather(*tasks)


async def test_one_who_was_called_is_not_overtaken_by_one_who_comes_later(full: Ring[str]) -> None:
    first = asyncio.create_task(full.put("first"))
    await _settled()

    assert full.take(1) == ["a"]
    # The call is on its way to the one who waits: neither way in may pass it.
    loop = asyncio.get_running_loop()
    overtook: list[bool] = []
    late: list[asyncio.Task[None]] = []
    loop.call_soon(lambda: overtook.append(full.put_now("hasty")))
    loop.call_soon(lambda: late.append(asyncio.create_task(full.put("late"))))
    await first
    await _settled()

    assert overtook == [False]
    assert full.take(9) == ["b", "first"]
    await _settled()
    assert full.take(9) == ["late"]


async def test_put_now_takes_only_what_has_room_and_passes_nobody(full: Ring[str]) -> None:
    assert not full.put_now("c")
    waiting = asyncio.create_task(full.put("c", 2))
    await _settled()
    full.take(1)
    await _settled()

    assert not waiting.done()  # it needs two places, and one is free
    assert not full.put_now("d", 1)

    full.take(1)
    await waiting
    assert full.take(9) == ["c"]
    await _settled()
    assert full.put_now("d", 1)


async def test_an_entry_heavier_than_the_ring_goes_in_alone() -> None:
    ring: Ring[str] = Ring(2)
    await ring.put("small")
    heavy = asyncio.create_task(ring.put("heavy", 50))
    after = asyncio.create_task(ring.put("after"))
    await _settled()
    assert not heavy.done()

    assert ring.take(10) == ["small"]
    await heavy
    await _settled()
    assert ring.weight == 50
    assert not after.done()

    assert ring.take(10) == ["heavy"]  # heavier than what is asked for: alone
    await after
    assert ring.take(10) == ["after"]


async def test_a_cancelled_put_has_put_nothing_in_and_the_next_gets_its_turn(full: Ring[str]) -> None:
    given_up = asyncio.create_task(full.put("given up"))
    await _settled()
    patient = asyncio.create_task(full.put("patient"))
    await _settled()

    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert full.take(1) == ["a"]
    await patient

    assert full.take(9) == ["b", "patient"]


async def test_a_put_that_is_cancelled_after_its_call_hands_the_turn_on(full: Ring[str]) -> None:
    called = asyncio.create_task(full.put("called"))
    await _settled()
    patient = asyncio.create_task(full.put("patient"))
    await _settled()

    full.take(1)
    asyncio.get_running_loop().call_soon(called.cancel)
    with pytest.raises(asyncio.CancelledError):
        await called
    await patient

    assert full.take(9) == ["b", "patient"]


async def test_a_closed_ring_takes_nothing_in_and_gives_out_what_it_holds(full: Ring[str]) -> None:
    waiting = [asyncio.create_task(full.put(entry)) for entry in "cd"]
    await _settled()

    full.close()

    for task in waiting:
        with pytest.raises(Closed):
            await task
    with pytest.raises(Closed):
        await full.put("e")
    with pytest.raises(Closed):
        full.put_now("e")
    assert full.take(9) == ["a", "b"]
    assert full.take(9) == []


async def test_close_wakes_a_consumer_that_waits() -> None:
    ring: Ring[str] = Ring(2)
    taken: list[list[str]] = []
    consumer = threading.Thread(target=lambda: taken.append(ring.take(1)))
    consumer.start()

    ring.close()
    await asyncio.to_thread(consumer.join)

    assert taken == [[]]


async def test_a_thread_takes_all_that_many_tasks_put_each_in_its_order() -> None:
    ring: Ring[tuple[int, int]] = Ring(7)
    taken: list[tuple[int, int]] = []

    def consume() -> None:
        while entries := ring.take(5):
            assert ring.weight <= 7
            taken.extend(entries)

    async def produce(producer: int) -> None:
        for number in range(300):
            await ring.put((producer, number), 1 + number % 3)

    consumer = threading.Thread(target=consume)
    consumer.start()
    await asyncio.gather(*(produce(producer) for producer in range(5)))
    ring.close()
    await asyncio.to_thread(consumer.join)

    assert len(taken) == 1500
    for producer in range(5):
        assert [number for who, number in taken if who == producer] == list(range(300))


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(0, 12), max_size=30),
    capacity=st.integers(1, 10),
    limit=st.integers(1, 10),
)
def test_no_weights_break_the_bounds_the_order_or_the_flow(weights: list[int], capacity: int, limit: int) -> None:
    async def scenario() -> None:
        ring: Ring[int] = Ring(capacity)

        async def produce() -> None:
            for number, weight in enumerate(weights):
                await ring.put(number, weight)

        producer = asyncio.create_task(produce())
        taken: list[int] = []
        while len(taken) < len(weights):
            await _settled()
            inside = ring.weight
            assert inside <= max(capacity, *weights)
            some = ring.take(limit)
            assert len(some) == 1 or sum(weights[number] for number in some) <= limit
            assert ring.weight == inside - sum(weights[number] for number in some)
            taken += some
        await producer
        assert taken == list(range(len(weights)))
        assert ring.weight == 0

    asyncio.run(scenario())

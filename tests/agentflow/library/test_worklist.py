"""The list of what waits to be worked on: turns, lanes, and steps that are broken off."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.library.worklist import Key, Worklist

SOON_S = 5.0


async def test_tenants_have_their_turns_and_each_ones_keys_their_order() -> None:
    work = Worklist()
    for tenant, files in [("a", "123"), ("b", "12"), ("c", "1")]:
        for file in files:
            work.put((tenant, "s", file), "slow")
    taken = [await work.take("slow") for _ in range(6)]
    assert [tenant + file for tenant, _, file in taken] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert (work.waiting, work.active) == (0, 6)


async def test_a_key_that_waits_is_there_once_and_may_change_its_lane() -> None:
    work = Worklist()
    key = ("a", "s", "1")
    work.put(key, "slow")
    work.put(key, "slow")
    work.put(key, "quick")
    work.put(("a", "s", "2"), "slow")
    assert work.waiting == 2
    assert await work.take("quick") == key
    assert await work.take("slow") == ("a", "s", "2")
    assert work.waiting == 0


async def test_a_worker_waits_until_something_comes() -> None:
    work = Worklist()
    taking = asyncio.ensure_future(work.take("slow"))
    await asyncio.sleep(0)
    work.put(("a", "s", "1"), "quick")
    await asyncio.sleep(0)
    assert not taking.done()
    work.put(("a", "s", "2"), "slow")
    assert await asyncio.wait_for(taking, SOON_S) == ("a", "s", "2")


async def test_putting_a_key_that_is_worked_on_breaks_its_step_off() -> None:
    work = Worklist()
    key = await _taken(work)
    steps, whole = 0, list[int]()
    while steps < 3:
        async with work.step(key):
            work.put(key, "slow")
            work.put(key, "quick")
            await asyncio.sleep(SOON_S)
            whole.append(steps)
        steps += 1
    assert whole == []
    work.put(key, "slow")  # between two steps: the worker looks again anyhow
    assert work.waiting == 0
    await work.done(key)
    work.put(key, "slow")
    assert work.waiting == 1


async def test_a_step_lets_other_errors_and_a_cancelled_worker_through() -> None:
    work = Worklist()
    key = await _taken(work)
    with pytest.raises(TimeoutError, match="not the list's"):
        async with work.step(key):
            raise TimeoutError("not the list's")

    async def worker() -> None:
        async with work.step(key):
            await asyncio.sleep(SOON_S)

    task = asyncio.ensure_future(worker())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_settled_waits_for_what_waits_and_for_what_is_worked_on() -> None:
    work = Worklist()
    key: Key = ("a", "s", "1")
    work.put(key, "slow")
    waiting = asyncio.ensure_future(work.settled(key))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await work.take("slow") == key
    await asyncio.sleep(0)
    assert not waiting.done()
    await work.done(key)
    await asyncio.wait_for(waiting, SOON_S)
    await asyncio.wait_for(work.settled(("a", "s", "never")), SOON_S)


async def test_breaking_a_store_off_takes_its_files_and_no_others() -> None:
    work = Worklist()
    key, whole = await _taken(work), list[Key]()
    for other in [("a", "s", "2"), ("a", "t", "1"), ("b", "s", "1"), ("a", "s", "")]:
        work.put(other, "slow")
    async with work.step(key):
        assert work.break_off("a", "s") == [key]
        await asyncio.sleep(SOON_S)
        whole.append(key)
    assert whole == []
    assert {await work.take("slow") for _ in range(3)} == {("a", "t", "1"), ("b", "s", "1"), ("a", "s", "")}
    assert work.waiting == 0


async def test_a_tenant_that_has_all_that_it_may_waits_while_another_has_a_turn() -> None:
    work = Worklist(lambda: 1)
    for key in [("a", "s", "1"), ("a", "s", "2"), ("b", "s", "1")]:
        work.put(key, "slow")
    assert await work.take("slow") == ("a", "s", "1")
    assert await work.take("slow") == ("b", "s", "1")
    taking = asyncio.ensure_future(work.take("slow"))
    await asyncio.sleep(0)
    assert not taking.done()
    work.put(("a", "t", ""), "quick")
    assert await work.take("quick") == ("a", "t", "")  # the bound is the slow lane's
    await work.done(("b", "s", "1"))
    await asyncio.sleep(0)
    assert not taking.done()
    await work.done(("a", "s", "1"))
    assert await asyncio.wait_for(taking, SOON_S) == ("a", "s", "2")


async def _taken(work: Worklist) -> Key:
    work.put(("a", "s", "1"), "slow")
    return await work.take("slow")

"""What a run tells is kept first and seen then, and whoever comes later sees the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentflow.agents.archive import Archive
from agentflow.agents.going import Going
from agentflow.agents.journal import Kept, MemoryJournal, StoredJournal, stored
from agentflow.agents.live import LiveRun
from agentflow.agents.record import Began, Ended, Event, Said, StepBegan
from agentflow.errors import AgentFlowError, Draining
from agentflow.events import TextDelta
from agentflow.library.refusals import DataDamaged, DataUnavailable, DiskFull
from agentflow.messages import Message
from dataplane import DataPlane, DataPlaneConfig, EventRecord

BEGAN = Began(agent="a", model="m", messages=(), prompt=[1])
STEP = StepBegan(step=0, model="m")
END = Ended(end="completed", why="stop")


class HeldJournal(MemoryJournal):
    """Takes nothing until `free` is set, and keeps nothing until `keep` is called."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.waiting: list[Kept] = []

    async def append(self, events: Sequence[Event], kept: Kept) -> None:
        await self.free.wait()
        self.waiting.append(kept)

    def keep(self, error: AgentFlowError | None = None) -> None:
        """The oldest of what waits is kept, or lost."""
        self.waiting.pop(0)(error)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def said(text: str) -> Said:
    return Said(ids=[1], text=text)


async def seen(live: LiveRun, after: int = 0) -> list[str]:
    return [f"{number} {type(event).__name__}" async for number, event in live.follow(after)]


async def test_followers_see_all_events_whenever_they_come_and_wherever_they_begin() -> None:
    live = LiveRun("run_1", "t", MemoryJournal())
    early = asyncio.create_task(seen(live))
    await live.tell(BEGAN, STEP)
    middle = asyncio.create_task(seen(live, after=1))
    await asyncio.sleep(0)
    assert await live.tell(said("Hi")) == [TextDelta(0, "Hi")]
    await live.tell(END)
    everything = ["1 Began", "2 StepBegan", "3 Said", "4 Ended"]
    assert await early == everything
    assert await middle == everything[1:]
    assert await seen(live) == everything
    assert await seen(live, after=4) == []


async def test_nothing_is_told_after_the_end() -> None:
    live = LiveRun("run_1", "t", MemoryJournal(), [BEGAN, STEP, END])
    assert await live.tell(said("more")) == []
    assert await seen(live, after=2) == ["3 Ended"]


async def test_whoever_waits_hears_that_the_run_was_left() -> None:
    live = LiveRun("run_1", "t", MemoryJournal(), [BEGAN, STEP])
    waiting = asyncio.create_task(live.until(lambda: False))
    following = asyncio.create_task(seen(live))
    await asyncio.sleep(0)
    live.leave(Draining("The daemon is shutting down.", retry_after_s=1.0))
    for task in (waiting, following):
        with pytest.raises(Draining):
            await task


async def test_a_run_acts_on_what_is_in_its_log_and_followers_see_it_once_it_is_kept() -> None:
    journal = HeldJournal()
    live = LiveRun("run_1", "t", journal, [BEGAN, STEP])
    following = asyncio.create_task(seen(live, after=2))
    telling = asyncio.create_task(live.tell(said("Hi")))
    await _turns()
    assert live.progress.said == []
    journal.free.set()
    assert await telling == [TextDelta(0, "Hi")]
    assert live.progress.said == [1]
    await live.tell(END)
    await _turns()
    assert live.told() == [BEGAN, STEP]
    assert not following.done()
    journal.keep()
    assert [type(event) for event in live.told()] == [Began, StepBegan, Said]
    await _turns()
    assert not following.done()
    live.leave(Draining("The daemon is shutting down.", retry_after_s=1.0))  # it ends after the last event all the same
    journal.keep()
    assert await following == ["3 Said", "4 Ended"]


async def test_whoever_needs_an_event_kept_waits_for_that_and_no_longer() -> None:
    journal = HeldJournal()
    journal.free.set()
    live = LiveRun("run_1", "t", journal, [BEGAN, STEP])
    keeping = asyncio.create_task(live.keep(said("Hi")))
    await _turns()
    await live.tell(said(" there"))
    assert not keeping.done()
    journal.keep()
    await keeping
    assert len(journal.waiting) == 1


async def test_what_may_be_lost_is_not_seen_and_nothing_follows_it() -> None:
    journal = HeldJournal()
    journal.free.set()
    live = LiveRun("run_1", "t", journal, [BEGAN, STEP])
    following = asyncio.create_task(seen(live))
    keeping = asyncio.create_task(live.keep(said("Hi")))
    await _turns()
    journal.keep(DiskFull("The disk is full.", retry_after_s=1.0))
    for task in (following, keeping, asyncio.create_task(live.tell(said("more")))):
        with pytest.raises(DiskFull):
            async with asyncio.timeout(5):
                await task
    assert [type(event) for event in live.told()] == [Began, StepBegan]


async def test_nothing_is_kept_behind_what_may_be_lost() -> None:
    journal = HeldJournal()
    journal.free.set()
    live = LiveRun("run_1", "t", journal, [BEGAN, STEP])
    keeping = [asyncio.create_task(live.keep(said(text))) for text in ("Hi", " there")]
    await _turns()
    journal.keep(DiskFull("The disk is full.", retry_after_s=1.0))
    journal.keep()
    for task in keeping:
        with pytest.raises(DiskFull):
            await task
    with pytest.raises(DiskFull):
        async with asyncio.timeout(5):
            await seen(live)
    assert live.told() == [BEGAN, STEP]


async def test_what_comes_too_late_is_not_kept_and_says_so() -> None:
    journal = HeldJournal()
    live = LiveRun("run_1", "t", journal, [BEGAN, STEP])
    going = Going(live)
    ending = asyncio.create_task(live.tell(END))
    await _turns()
    late = [
        asyncio.create_task(live.keep(said("Hi"))),
        asyncio.create_task(live.keep_while(lambda: True, said("Hi"))),
        asyncio.create_task(going.answer([said("Hi")], 2, "resp_1")),
    ]
    journal.free.set()
    await ending
    assert await asyncio.gather(*late) == [False, False, False]
    assert (live.count, going.response) == (3, "")


class FullJournal(MemoryJournal):
    """Takes nothing any more."""

    async def append(self, _: Sequence[Event], __: Kept) -> None:
        raise DiskFull("The disk is full.", retry_after_s=1.0)


async def test_a_response_goes_on_with_a_run_right_behind_what_it_knows() -> None:
    going = Going(LiveRun("run_1", "t", MemoryJournal(), [BEGAN, STEP]))
    assert not await going.answer([said("Hi")], 1, "resp_2")
    assert (going.live.count, going.response) == (2, "")
    assert await going.answer([said("Hi")], 2, "resp_2")
    assert (going.live.count, going.response) == (3, "resp_2")


async def test_a_run_keeps_its_response_where_another_s_first_events_do_not_come_into_the_log() -> None:
    going = Going(LiveRun("run_1", "t", FullJournal(), [BEGAN, STEP]))
    going.response = "resp_1"
    with pytest.raises(DiskFull):
        await going.answer([said("Hi")], 2, "resp_2")
    assert (going.live.count, going.response) == (2, "resp_1")


async def test_what_is_being_told_is_told_whole_though_the_teller_is_cancelled() -> None:
    journal = HeldJournal()
    live = LiveRun("run_1", "t", journal, [BEGAN, STEP])
    telling = asyncio.create_task(live.tell(said("Hi")))
    await asyncio.sleep(0)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    journal.free.set()
    await live.tell(END)
    assert live.progress.said == [1]
    assert live.over


async def test_a_stored_run_is_read_back_as_it_was_told(tmp_path: Path) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    live = LiveRun("run_1", "acme", StoredJournal(plane.state, "acme", "run_1"))
    await live.tell(BEGAN, STEP)
    await live.keep(said("你好"))
    kept = await stored(plane.state, "acme", "run_1")
    assert [event for _, event in kept] == [event async for _, event in _first(live, 3)]
    assert [number for number, _ in kept] == [1, 2, 3]
    assert await stored(plane.state, "acme", "run_1", after=2) == kept[2:]
    assert await stored(plane.state, "other", "run_1") == []
    again = LiveRun("run_1", "acme", StoredJournal(plane.state, "acme", "run_1", last=3), [event for _, event in kept])
    await again.tell(END)
    assert again.progress.said == [1]
    await plane.close()


async def test_an_event_that_is_longer_than_a_log_takes_is_stored_and_removed_with_the_run(tmp_path: Path) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    book = Began(agent="a", model="m", messages=(Message("user", "x" * 3_000_000),), prompt=[*range(300_000)])
    live = LiveRun("run_1", "acme", StoredJournal(plane.state, "acme", "run_1"))
    await live.tell(book)
    await live.keep(STEP, said("Hi"))
    kept = [event for _, event in await stored(plane.state, "acme", "run_1")]
    assert [event async for _, event in _first(live, 3)] == kept
    archive = Archive(plane.state)
    assert (await archive.events_page("acme", "run_1", 0, 1))[0][1] == kept[0]
    assert await archive.delete("acme", "run_1")
    assert await stored(plane.state, "acme", "run_1") == []
    assert await plane.state.scan("acme", "run_part") == []
    await plane.close()


async def test_an_event_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    await plane.state.append("acme", "run/run_1", [EventRecord("said", 0, b"\x00")])
    with pytest.raises(DataDamaged, match="the log of run_1 cannot be read"):
        await stored(plane.state, "acme", "run_1")
    await plane.close()


async def test_two_writers_of_one_log_cannot_both_go_on(tmp_path: Path) -> None:
    plane = await DataPlane.open(DataPlaneConfig(path=str(tmp_path / "data"), hot_layer_mem_mb=64))
    one = LiveRun("run_1", "acme", StoredJournal(plane.state, "acme", "run_1"))
    other = LiveRun("run_1", "acme", StoredJournal(plane.state, "acme", "run_1"))
    await one.keep(BEGAN)
    with pytest.raises(DataUnavailable):
        await other.keep(BEGAN)
    with pytest.raises(DataUnavailable):
        await other.tell(STEP)
    assert other.told() == []
    assert [number for number, _ in await stored(plane.state, "acme", "run_1")] == [1]
    await plane.close()


async def _first(live: LiveRun, count: int):  # type: ignore[no-untyped-def]
    async for number, event in live.follow():
        yield number, event
        if number == count:
            return

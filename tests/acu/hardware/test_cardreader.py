"""A card that is read again and again, while the driver is reset, hangs, or tells nonsense."""

from __future__ import annotations

import logging
import threading

import pytest

from acu.errors import GpuUnreadable
from acu.hardware.cardreader import Card, CardReader, Reading
from acu.hardware.cards import CardMemory
from tests.acu.hardware.recorded import recorded_nvml
from tests.acu.hardware.test_cardkeeper import BASE, FULL, hold, status, until, warm, watched
from tests.acu.http.serving import serving


async def test_a_card_is_opened_once_and_let_go_of_at_the_end() -> None:
    nvml = recorded_nvml("a10g")
    reader = CardReader(lambda: CardMemory.open(0, nvml))
    hold(nvml, 0.5)
    assert [await reader.read() for _ in range(3)] == [Reading(BASE + 2000, FULL)] * 3
    assert (nvml.opened, nvml.calls.count("nvmlInit")) == (1, 1)
    reader.close()
    assert nvml.opened == 0
    with pytest.raises(GpuUnreadable, match="not watched any more"):
        await reader.read()


async def test_a_reading_for_which_there_is_no_thread_hinders_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = recorded_nvml("a10g")
    reader = CardReader(lambda: CardMemory.open(0, nvml))
    hold(nvml, 0.5)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        with pytest.raises(GpuUnreadable, match="can't start new thread"):
            await reader.read()
    assert await reader.read() == Reading(BASE + 2000, FULL)
    reader.close()
    assert nvml.opened == 0


async def test_each_try_after_a_failed_one_opens_nvml_anew_and_tells_why() -> None:
    nvml = recorded_nvml("a10g")
    reader = CardReader(lambda: CardMemory.open(0, nvml))
    await reader.read()
    nvml.failing["nvmlDeviceGetMemoryInfo"] = "NVML_ERROR_GPU_IS_LOST"
    with pytest.raises(GpuUnreadable, match="GPU is lost"):
        await reader.read()
    assert nvml.opened == 0
    with pytest.raises(GpuUnreadable, match="NVML does not answer"):
        await reader.read()
    nvml.failing.clear()
    assert await reader.read() == Reading(0, FULL)
    reader.close()
    assert nvml.opened == 0


async def test_nvml_is_opened_again_after_the_driver_was_reset(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "acu.hardware.cardkeeper")
    nvml = recorded_nvml("a10g")
    async with serving() as served, watched(served, nvml) as keeper:
        await warm(keeper, nvml)
        nvml.opened = 0  # each call is answered with NVML_ERROR_UNINITIALIZED
        hold(nvml, 0.72)
        await until(lambda: status(keeper).step == "limit_prompts")
        assert status(keeper).unreadable == 1
        assert nvml.opened == 1
        nvml.failing["nvmlInit"] = nvml.failing["nvmlDeviceGetMemoryInfo"] = "NVML_ERROR_GPU_IS_LOST"
        await until(lambda: status(keeper).unreadable >= 4)
        assert nvml.opened == 0  # whoever resets the card needs that
        nvml.failing.clear()
        await until(lambda: not status(keeper).problem.startswith("the GPU's memory cannot"))
    assert caplog.text.count("the GPU's memory can be read again") == 2
    assert nvml.opened == 0


@pytest.mark.parametrize("hangs", ["open", "read"])
async def test_a_card_that_does_not_answer_holds_up_neither_the_watch_nor_a_stop(hangs: str) -> None:
    answers, asked, closed = threading.Event(), threading.Event(), threading.Event()

    class Stuck:
        def used_mb(self) -> int:
            if hangs == "read":
                asked.set()
                answers.wait()
            return BASE

        def capacity_mb(self) -> int:
            return FULL

        def close(self) -> None:
            closed.set()

    def open_card(_: int) -> Card:
        if hangs == "open":
            asked.set()
            answers.wait()
        return Stuck()

    async with serving() as served:
        async with watched(served, recorded_nvml("a10g"), open_card=open_card, patience_s=0.01) as keeper:
            await until(asked.is_set)
            await until(lambda: keeper.status() is not None and status(keeper).unreadable >= 3)
            assert status(keeper).problem == "the GPU's memory cannot be read"
            assert (status(keeper).used_mb, status(keeper).capacity_mb) == (None, 23_028)
        assert not closed.is_set()
        answers.set()  # what came too late is let go of
        await until(closed.is_set)


async def test_a_card_that_says_that_it_has_no_memory_is_not_judged_by_it() -> None:
    nvml = recorded_nvml("a10g")
    info = nvml.devices[0]["nvmlDeviceGetMemoryInfo_v2"]
    async with serving() as served, watched(served, nvml) as keeper:
        free, info["free"], info["used"] = info["free"], 0, 0
        await until(lambda: keeper.status() is not None and status(keeper).unreadable >= 3)
        assert (status(keeper).baseline_mb, status(keeper).step) == (None, "calm")
        info["free"] = free
        await warm(keeper, nvml)
        assert status(keeper).capacity_mb == FULL

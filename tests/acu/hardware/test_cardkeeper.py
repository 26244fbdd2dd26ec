"""The GPU's memory watched over a recorded card, with a real service and its face: what each step does to those who ask."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from acu.config import AcuConfig, GpuConfig
from acu.config.sections import DaemonConfig
from acu.hardware import probe_machine
from acu.hardware.cardkeeper import CardKeeper, CardStatus
from acu.hardware.cardreader import Card
from acu.hardware.cards import CardMemory, read_cards
from acu.hardware.vram import Card as CardMemoryPlan
from acu.hardware.vram import Demand, MemoryPlan
from acu.hardware.watch import BLIND
from agentflow.engine.script import Rule, Script
from tests.acu.hardware.recorded import RecordedNvml, machine_root, recorded_nvml
from tests.acu.http.hostile import CHAT, request
from tests.acu.http.raw import Reply, talk
from tests.acu.http.serving import Served, serving
from tests.acu.running import DaemonFactory

FULL = 22_578  # MiB of a recorded A10G that processes can have
BASE = FULL - 4000
SLOW_START = Script(rules=(Rule(match="^slow$", answer="s" * 400, tokens_per_s=200),), start_s=0.5)


def hold(nvml: RecordedNvml, share: float) -> None:
    """From now on so much of the room above the baseline is in use."""
    nvml.hold(0, BASE + round(4000 * share))


@asynccontextmanager
async def watched(
    served: Served,
    nvml: RecordedNvml,
    *,
    drain_s: float = 30.0,
    open_card: Any = None,
    plan: MemoryPlan | None = None,
    patience_s: float = 20.0,
    **gpu: Any,
) -> AsyncIterator[CardKeeper]:
    config = AcuConfig(
        gpu=GpuConfig(watch_s=0.002, long_prompt_tokens=300, **gpu), daemon=DaemonConfig(drain_timeout_s=drain_s)
    )
    gpus, _ = read_cards(nvml, machine_root("a10g"))

    def open_recorded(index: int) -> Card | None:
        return CardMemory.open(index, nvml)

    keeper = CardKeeper(config, replace(probe_machine(), gpus=gpus), plan, open_card or open_recorded, patience_s)
    async with asyncio.TaskGroup() as tasks:
        keeper.start(tasks, served.service)
        try:
            yield keeper
        finally:
            keeper.stop()


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.002)


def status(keeper: CardKeeper) -> CardStatus:
    found = keeper.status()
    assert found is not None
    return found


async def warm(keeper: CardKeeper, nvml: RecordedNvml) -> None:
    """The engines have come up, and use what they need."""
    hold(nvml, 0.0)
    await until(lambda: keeper.status() is not None and status(keeper).baseline_mb == BASE)


async def ask(served: Served, text: str) -> Reply:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    return await talk(served, iter([request(json.dumps(body).encode(), path=CHAT)]), patience_s=20)


def cached(reply: Reply) -> int:
    return int(json.loads(reply.body)["usage"]["prompt_tokens_details"]["cached_tokens"])


def engine(served: Served) -> Any:
    return served.service.status().models[0].engines[0]


LONG = "a long question " * 30


async def test_step_by_step_as_the_card_fills_and_all_the_way_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "acu.hardware.cardkeeper")
    nvml = recorded_nvml("a10g")
    async with serving(script=SLOW_START) as served, watched(served, nvml) as keeper:
        nvml.hold(0, BASE)
        await warm(keeper, nvml)
        assert status(keeper) == CardStatus(
            used_mb=BASE,
            planned_mb=None,
            baseline_mb=BASE,
            capacity_mb=FULL,
            share=0.0,
            step="calm",
            taken={"limit_prompts": 0, "drop_caches": 0, "restart_engines": 0},
            mb_per_hour=0.0,
            full_in_s=None,
            unreadable=0,
            problem="",
        )
        assert (await ask(served, LONG)).status == 200

        hold(nvml, 0.72)
        await until(lambda: status(keeper).step == "limit_prompts")
        refused = await ask(served, LONG)
        assert (refused.status, refused.headers["retry-after"]) == (503, "30")
        prompt = int(str(refused.error["message"]).partition("this one has ")[2].partition(".")[0])
        assert prompt > 480
        assert refused.error == {
            "message": "The GPU's memory runs short. Until it has room again, prompts of more than 300 tokens are not taken, "
            f"and this one has {prompt}. Send a shorter one, or try again in 30 s.",
            "type": "server_error",
            "param": None,
            "code": "long_prompt_refused",
        }
        assert (await ask(served, "short")).status == 200
        assert cached(await ask(served, "short")) > 0
        assert served.service.status().prompt_limit == 300
        assert status(keeper).problem == "prompts of more than 300 tokens are refused"

        hold(nvml, 0.86)
        await until(lambda: "what engines cached is dropped" in caplog.text)
        assert status(keeper).step == "drop_caches"
        assert cached(await ask(served, "short")) == 0

        hold(nvml, 0.97)
        await until(lambda: not served.service.status().ready)
        waiting = asyncio.create_task(ask(served, "short"))
        hold(nvml, 0.01)
        await until(lambda: status(keeper).step == "calm")
        assert (await waiting).status == 200
        assert (engine(served).state, engine(served).restarts) == ("ready", 1)
        assert status(keeper).taken == {"limit_prompts": 1, "drop_caches": 1, "restart_engines": 1}
        assert status(keeper).baseline_mb == BASE
        assert served.service.status().prompt_limit is None
        assert (await ask(served, LONG)).status == 200
    told = [record.message for record in caplog.records if record.name == "acu.hardware.cardkeeper"]
    assert told == [
        "the GPU's memory runs short: long prompts are refused",
        "the GPU's memory runs short: what engines cache is dropped",
        "what engines cached is dropped",
        "the GPU is almost full: engines are restarted, one after the other",
        "restarting the engines gave GPU memory back",
        "the GPU has room again",
    ]
    assert nvml.opened == 0


async def test_a_step_is_left_without_a_restart_where_the_memory_comes_back() -> None:
    nvml = recorded_nvml("a10g")
    async with serving() as served, watched(served, nvml) as keeper:
        await warm(keeper, nvml)
        hold(nvml, 0.86)
        await until(lambda: status(keeper).step == "drop_caches")
        hold(nvml, 0.5)
        await until(lambda: status(keeper).step == "calm")
        assert served.service.status().prompt_limit is None
        assert status(keeper).taken == {"limit_prompts": 1, "drop_caches": 1, "restart_engines": 0}


async def test_a_restart_that_does_not_help_is_told_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    nvml = recorded_nvml("a10g")
    async with serving() as served, watched(served, nvml, restart_every_s=0.001) as keeper:
        await warm(keeper, nvml)
        hold(nvml, 0.97)
        await until(lambda: "did not help" in status(keeper).problem)
        looks = nvml.calls.count("nvmlDeviceGetMemoryInfo")
        await until(lambda: nvml.calls.count("nvmlDeviceGetMemoryInfo") > looks + 40)
        assert status(keeper).taken["restart_engines"] == 1
        assert engine(served).restarts == 1
        assert status(keeper).step == "drop_caches"
        assert served.service.status().prompt_limit == 300
    assert caplog.text.count("restarting the engines did not help: another process holds GPU memory") == 1


async def test_a_reading_that_fails_is_counted_told_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    nvml = recorded_nvml("a10g")
    async with serving() as served, watched(served, nvml) as keeper:
        await warm(keeper, nvml)
        nvml.failing["nvmlDeviceGetMemoryInfo"] = "NVML_ERROR_GPU_IS_LOST"
        await until(lambda: status(keeper).unreadable >= 3)
        assert status(keeper).problem == "the GPU's memory cannot be read"
        assert (status(keeper).used_mb, status(keeper).step) == (BASE, "calm")
        del nvml.failing["nvmlDeviceGetMemoryInfo"]
        hold(nvml, 0.72)
        await until(lambda: status(keeper).step == "limit_prompts")
        assert (await ask(served, "short")).status == 200
    assert caplog.text.count("the GPU's memory cannot be read") == 1


async def test_a_step_in_force_outlives_readings_that_fail_and_ends_told_when_nobody_can_say_that_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nvml = recorded_nvml("a10g")
    async with serving() as served, watched(served, nvml) as keeper:
        await warm(keeper, nvml)
        hold(nvml, 0.72)
        await until(lambda: status(keeper).step == "limit_prompts")
        nvml.failing["*"] = "NVML_ERROR_GPU_IS_LOST"
        await until(lambda: status(keeper).unreadable >= 2)
        assert (status(keeper).step, served.service.status().prompt_limit) == ("limit_prompts", 300)
        assert status(keeper).problem == (
            "the GPU's memory cannot be read; prompts of more than 300 tokens are refused"
        )
        await until(lambda: status(keeper).step == "calm")
        assert status(keeper).unreadable == BLIND
        assert status(keeper).problem == "the GPU's memory cannot be read, so nothing is done about it"
        assert (await ask(served, LONG)).status == 200
        nvml.failing.clear()
        await until(lambda: status(keeper).step == "limit_prompts")
        assert served.service.status().prompt_limit == 300
    assert caplog.text.count("could not be read for long: long prompts are taken again") == 1
    assert caplog.text.count("the GPU's memory cannot be read") == 1


async def test_a_step_ends_by_readings_also_while_an_engine_fails_to_come_back() -> None:
    nvml = recorded_nvml("a10g")
    script = Script(rules=(Rule(match="^die$", answer="x" * 9, die_after_tokens=1),))
    async with serving(script=script, restart_backoff_s=60.0) as served, watched(served, nvml) as keeper:
        await warm(keeper, nvml)
        hold(nvml, 0.72)
        await until(lambda: status(keeper).step == "limit_prompts")
        await ask(served, "die")
        await until(lambda: not served.service.status().ready)
        hold(nvml, 0.1)
        await until(lambda: status(keeper).step == "calm")
        assert served.service.status().prompt_limit is None
        hold(nvml, 0.9)
        looks = nvml.calls.count("nvmlDeviceGetMemoryInfo")
        await until(lambda: nvml.calls.count("nvmlDeviceGetMemoryInfo") > looks + 20)
        assert status(keeper).step == "calm"


async def test_use_beyond_the_plan_is_told_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    nvml = recorded_nvml("a10g")
    demand = Demand(key="m", model="m", weights_mb=BASE - 2_100, kv_mb=1_000, process_mb=1_000, step_mb=500)
    plan = MemoryPlan(card=CardMemoryPlan("NVIDIA A10G", 23_028, 450), demands=(demand,))
    async with serving() as served, watched(served, nvml, plan=plan) as keeper:
        await warm(keeper, nvml)
        assert (status(keeper).planned_mb, status(keeper).problem) == (BASE + 400, "")
        hold(nvml, 0.2)
        await until(lambda: status(keeper).used_mb == BASE + 800)
        assert status(keeper).problem.startswith("400 MiB more are in use than the plan has (see `acu doctor --plan`")
        hold(nvml, 0.0)
        await until(lambda: status(keeper).problem == "")
        hold(nvml, 0.3)
        await until(lambda: status(keeper).problem.startswith("800 MiB more"))
    assert caplog.text.count("more of the GPU's memory is in use than the plan has") == 1


async def test_a_defect_in_a_look_ends_no_daemon(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        looks = 0

        def used_mb(self) -> int:
            self.looks += 1
            if self.looks == 1:
                raise ZeroDivisionError
            return BASE

        def capacity_mb(self) -> int:
            return FULL

        def close(self) -> None: ...

    async with serving() as served, watched(served, recorded_nvml("a10g"), open_card=lambda _: Odd()) as keeper:
        await until(lambda: keeper.status() is not None and status(keeper).baseline_mb == BASE)
    assert caplog.text.count("a look at the GPU's memory failed") == 1


async def test_stopping_lets_go_of_the_card_and_of_a_restart_that_waits() -> None:
    nvml = recorded_nvml("a10g")
    async with serving(script=SLOW_START) as served, watched(served, nvml) as keeper:
        await warm(keeper, nvml)
        assert nvml.opened == 1
        running = asyncio.create_task(ask(served, "slow"))
        await until(lambda: served.service.status().running)
        hold(nvml, 0.97)
        await until(lambda: status(keeper).taken["restart_engines"] == 1)
        waiting = asyncio.create_task(ask(served, "short"))
        await until(lambda: served.service.status().queued)
        keeper.stop()
        assert nvml.opened == 0
        assert (await waiting).status == 200
        assert (await running).status == 200
        assert engine(served).restarts == 0


async def test_what_runs_may_end_before_a_restart_and_is_ended_with_the_reason_after_the_drain() -> None:
    for drain_s, expected in ((30.0, 200), (0.05, 503)):
        nvml = recorded_nvml("a10g")
        async with serving(script=SLOW_START) as served, watched(served, nvml, drain_s=drain_s) as keeper:
            await warm(keeper, nvml)
            running = asyncio.create_task(ask(served, "slow"))
            await until(lambda served=served: served.service.status().running)
            hold(nvml, 0.97)
            reply = await running
            assert reply.status == expected
            if expected == 503:
                assert reply.error["code"] == "engine_died"
                assert "the GPU's memory was almost used up" in str(reply.error["message"])
            await until(lambda served=served: engine(served).restarts == 1 and served.service.status().ready)


async def test_engines_that_died_and_came_back_are_warmed_up_again() -> None:
    nvml = recorded_nvml("a10g")
    script = Script(rules=(Rule(match="^die$", answer="x" * 9, die_after_tokens=1),), start_s=0.5)
    async with serving(script=script, restart_backoff_s=0.01) as served, watched(served, nvml) as keeper:
        await warm(keeper, nvml)
        hold(nvml, 0.72)
        await until(lambda: status(keeper).step == "limit_prompts")
        await ask(served, "die")
        await until(lambda: not served.service.status().ready)
        nvml.hold(0, BASE - 1000)
        await until(lambda: status(keeper).baseline_mb == BASE - 1000)
        await until(lambda: status(keeper).step == "calm")
        assert served.service.status().prompt_limit is None


async def test_without_a_gpu_or_a_driver_that_answers_nothing_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        async with watched(served, recorded_nvml("none")) as keeper:
            assert (keeper.status(), keeper.told()) == (None, None)
        async with watched(served, recorded_nvml("a10g"), open_card=lambda _: None) as keeper:
            await until(lambda: "the GPU's memory cannot be read" in caplog.text)
            assert status(keeper).used_mb is None
            assert status(keeper).problem == "the GPU's memory cannot be read"


def test_a_daemon_without_a_gpu_tells_of_none_and_of_its_pools(daemon: DaemonFactory) -> None:
    running = daemon({"scheduler": {"kv_watch_s": 0.05}})
    assert running.status()["daemon"]["gpu_memory"] is None
    asyncio.run(until(lambda: running.status()["service"]["models"][0]["held"] is not None))
    held = running.status()["service"]["models"][0]["held"]
    assert held == {"runs": 0, "tokens": 0, "share": 0.0, "above": False, "passed": 0, "released": 0}

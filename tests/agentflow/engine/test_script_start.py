"""The start that a scripted engine pretends."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from agentflow.engine.protocol import StartProgress
from agentflow.engine.script import Script
from agentflow.engine.script_start import pretend_to_start
from agentflow.errors import EngineDied, EngineFailure, EngineStartFailed


async def test_a_start_that_takes_no_time_passes_all_stages_at_once() -> None:
    told: list[StartProgress] = []
    await pretend_to_start(Script(), told.append, lambda: None)
    assert told == [StartProgress(stage, 1.0) for stage in ("importing", "loading", "warming")]


async def test_a_start_takes_its_seconds_and_tells_how_far_it_is() -> None:
    told: list[StartProgress] = []
    begun = monotonic()
    await pretend_to_start(Script(start_s=0.2), told.append, lambda: None)
    assert monotonic() - begun >= 0.2
    assert list(dict.fromkeys(each.stage for each in told)) == ["importing", "loading", "warming"]
    fractions = [each.fraction or 0.0 for each in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


async def test_a_start_that_is_to_fail_does_so_at_its_end() -> None:
    told: list[StartProgress] = []
    with pytest.raises(EngineStartFailed, match="^no such device$"):
        await pretend_to_start(Script(fail_start="no such device"), told.append, lambda: None)
    assert told[-1] == StartProgress("warming", 1.0)


async def test_an_engine_that_is_killed_meanwhile_does_not_start() -> None:
    told: list[StartProgress] = []
    failure: EngineFailure | None = None

    def note(progress: StartProgress) -> None:
        nonlocal failure
        told.append(progress)
        failure = EngineDied("the scripted engine was killed")

    async with asyncio.timeout(10):
        with pytest.raises(EngineStartFailed, match=r"interrupted: the scripted engine was killed"):
            await pretend_to_start(Script(start_s=60), note, lambda: failure)
    assert [each.stage for each in told] == ["importing"]

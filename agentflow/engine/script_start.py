"""How a scripted engine or embedder pretends to start: in stages, over the script's `start_s` seconds, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from agentflow.engine.protocol import StartProgress
from agentflow.engine.script import Script
from agentflow.errors import EngineFailure, EngineStartFailed

_STAGES = ("importing", "loading", "warming")
_START_TICK_S = 0.05


async def pretend_to_start(
    script: Script, progress: Callable[[StartProgress], None], failure: Callable[[], EngineFailure | None]
) -> None:
    """Report the stages of a start over `start_s` seconds; raises EngineStartFailed if it is killed or told to."""
    begun = monotonic()
    for number, stage in enumerate(_STAGES, start=1):
        ends = begun + script.start_s * number / len(_STAGES)
        while True:
            elapsed = (monotonic() - begun) / script.start_s if script.start_s else 1.0
            progress(StartProgress(stage, min(elapsed, 1.0)))
            if (died := failure()) is not None:
                raise EngineStartFailed(f"the start was interrupted: {died}")
            if (left := ends - monotonic()) <= 0:
                break
            await asyncio.sleep(min(left, _START_TICK_S))
    if script.fail_start is not None:
        raise EngineStartFailed(script.fail_start)

"""Waiting for what is refused for now: the model loads, a queue or the disk is full.

Waits double from one to the next, up to MOST_S, and each is drawn from its upper half, so that many do not come back at once.
A refusal that says when to come again is believed, up to the same bound.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from agentflow.errors import EngineFailure, Refused

T = TypeVar("T")

FIRST_S: Final = 0.5
MOST_S: Final = 60.0
LOST_ENGINES: Final = 8
"""An engine that dies so often over one call will not do it."""

_log = logging.getLogger(__name__)


async def patiently(call: Callable[[], Awaitable[T]], first_s: float = FIRST_S) -> T:
    """What `call` gives, however often it is refused first. For work that nobody waits for, and that may be cancelled.

    Raises what is neither Refused nor EngineFailure, and the EngineFailure that was one too many.
    """
    wait_s = first_s
    lost = 0
    while True:
        try:
            return await call()
        except Refused as error:
            pause_s = max(_drawn(wait_s), min(error.retry_after_s, MOST_S))
            _log.info("background work waits", extra={"seconds": round(pause_s, 1), "why": str(error)})
        except EngineFailure:
            lost += 1
            if lost == LOST_ENGINES:
                raise
            pause_s = _drawn(wait_s)
        await asyncio.sleep(pause_s)
        wait_s = min(2 * wait_s, MOST_S)


def _drawn(wait_s: float) -> float:
    return wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - nobody gains by guessing it

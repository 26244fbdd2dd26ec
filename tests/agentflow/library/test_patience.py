"""Waiting for what is refused for now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from agentflow.errors import EngineDied, EngineUnavailable, InvalidRequest
from agentflow.library.patience import LOST_ENGINES, patiently


def failing(*errors: Exception) -> tuple[Callable[[], Awaitable[str]], list[Exception]]:
    """A call that raises these in turn, and then answers; and those that are left."""
    left = list(errors)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call, left


async def test_a_refusal_is_waited_for_however_often() -> None:
    call, left = failing(*(EngineUnavailable("loading", retry_after_s=0.0) for _ in range(2 * LOST_ENGINES)))
    assert await patiently(call, first_s=1e-7) == "done"
    assert left == []


async def test_a_few_lost_engines_are_forgiven_and_too_many_are_not() -> None:
    call, _ = failing(*(EngineDied(str(n)) for n in range(LOST_ENGINES - 1)))
    assert await patiently(call, first_s=1e-5) == "done"
    call, _ = failing(*(EngineDied(str(n)) for n in range(LOST_ENGINES)))
    with pytest.raises(EngineDied, match=str(LOST_ENGINES - 1)):
        await patiently(call, first_s=1e-5)


async def test_what_the_call_is_wrong_about_is_raised_at_once() -> None:
    call, left = failing(InvalidRequest("no"), EngineDied("never reached"))
    with pytest.raises(InvalidRequest):
        await patiently(call)
    assert len(left) == 1

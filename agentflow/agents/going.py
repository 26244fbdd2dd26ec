"""Going: a run that goes on in this process, and how it is ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from agentflow.agents.archive import RunRecord
from agentflow.agents.live import LiveRun
from agentflow.agents.record import Event
from agentflow.errors import AgentFlowError, Draining

_log = logging.getLogger(__name__)


class Going:
    """A run that goes on, and the task in which it does. It is cancelled once, however often it is asked."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.response = ""  # the last that began in it; empty: none
        self.left = False  # it stays open, and is taken up by whoever starts next
        self._cancelled = False

    @property
    def waits(self) -> bool:
        """Whether it is stored, and nothing happens in it until a person does something."""
        live = self.live
        return live.archive is not None and not live.over and (live.progress.paused or live.progress.waits_for_word)

    def refuse(self, error: BaseException) -> None:
        """Tell whoever asked for it that it does not begin."""
        self.begun.set_exception(error)
        self.begun.exception()  # marked as seen: whoever asked may have left

    def check(self) -> None:
        """Raise CancelledError if the run was cancelled before its task began."""
        if self._cancelled:
            raise asyncio.CancelledError

    def cancel(self) -> None:
        """End the run, if it is not over. A second one would break off the noting of its end."""
        begun, self._cancelled = self._cancelled, True
        if not begun and not self.live.over and self.task is not None and self.begun.done():
            self.task.cancel()

    def leave(self) -> None:
        """End it here; its log stays open. Only for one that is stored. Nothing for one that was cancelled: that is its end."""
        if not self._cancelled:
            self.left = True
            self.cancel()

    async def answer(self, events: Sequence[Event], after: int, response: str) -> bool:
        """Tell events right behind the first `after` of its log, where `response` begins, and wait until they are kept.

        False if others are there already, or the run is over. Raises what they may be lost with, Refused or DataDamaged;
        where they were not taken into the log, the run's response is the one that it was.
        """

        def begins() -> None:
            self.response = response

        return await self.live.keep_while(lambda: self.live.count == after, *events, then=begins)

    async def ended(self) -> None:
        """Wait until its end is noted."""
        assert self.task is not None
        await asyncio.wait([self.task])


def shutting_down() -> Draining:
    """What those get who wait for a run that the next daemon goes on with."""
    return Draining("The daemon is shutting down.", retry_after_s=5.0)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for it, also when cancelled, however often; the cancellation comes after it."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


async def note_end(live: LiveRun) -> None:
    """Note the end of a stored run that has one."""
    progress = live.progress
    if live.archive is None or progress.ended is None or progress.began is None:
        return
    run = RunRecord(
        id=live.id,
        agent=progress.began.agent,
        model=progress.began.model,
        created_ms=progress.began.at,
        ended_ms=progress.ended.at,
        end=progress.ended.end,
        why=progress.ended.why,
        steps=progress.step + 1,
        calls=progress.calls_made,
        usage=progress.usage,
    )
    try:
        await live.archive.close(live.tenant, run)
    except AgentFlowError as error:
        # It is still listed as open; the next start reads its end in its log.
        _log.warning("a run's end is not noted", extra={"run": live.id, "why": str(error)})

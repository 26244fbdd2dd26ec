"""Going: a run that goes on in this process, and how it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from agentflow.agents.live import LiveRun


class Going:
    """A run that goes on, and the task in which it does. It is cancelled once, however often it is asked."""

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._cancelled = False

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

    async def ended(self) -> None:
        """Wait until its end is noted."""
        assert self.task is not None
        await asyncio.wait([self.task])


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

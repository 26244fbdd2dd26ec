"""ResponseStream: a response's events as its run goes on, or as they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from agentflow.agents.going import Going
from agentflow.agents.live import LiveRun
from agentflow.agents.record import Ended, Event, Said, StepEnded
from agentflow.errors import AgentFlowError
from agentflow.events import Usage
from agentflow.responses.events import ResponseEvent, ResponseState
from agentflow.responses.projection import Projection
from agentflow.responses.records import ResponseRecord

_AT_ONCE = 50  # events of a log that are read without a break


class ResponseStream:
    """Iterate it once, and close it whatever happens. `after`: only events with higher numbers are given.

    `going` is the run where it is this stream's own: closing ends it, unless another response has gone on with it, or can: the
    response is over, read or not, and its run is stored. Iterating raises what the run was left with.
    """

    def __init__(
        self,
        record: ResponseRecord,
        log: AsyncGenerator[tuple[int, Event], None],
        *,
        after: int = -1,
        going: Going | None = None,
    ) -> None:
        self._projection = Projection(record)
        self._log = log
        self._after = after
        self._going = going
        self._ahead: list[ResponseEvent] = []
        self._events = self._told()
        self.queue_s: float | None = None
        self.ttft_s: float | None = None

    @property
    def id(self) -> str:
        """The response's id."""
        return self._projection.record.id

    @property
    def usage(self) -> Usage:
        """What was counted so far, over all steps."""
        return self._projection.usage

    @property
    def run_id(self) -> str:
        """The run that makes it."""
        return self._projection.record.run_id

    @property
    def next_number(self) -> int:
        """The number that the next event will have."""
        return self._projection.next_number

    def state(self) -> ResponseState:
        """The response as far as it was read."""
        return self._projection.state()

    async def begun(self) -> None:
        """Wait for the model's first word. Raises what the run failed with before it."""
        async for _, event in self._log:
            self._ahead += self._applied(event)
            if isinstance(event, Said | StepEnded):
                return
            if isinstance(event, Ended):
                failure = self._failure()
                if failure is not None:
                    raise failure
                return

    async def finish(self) -> ResponseState:
        """Read to the end, which is also where a person is asked: whoever gets it whole hears of the question only then."""
        self._projection.parts = True
        async for _ in self:
            pass
        return self.state()

    def __aiter__(self) -> AsyncIterator[ResponseEvent]:
        return self._events

    async def aclose(self) -> None:
        """Leave the run, or end it where it is this stream's. Idempotent."""
        await self._events.aclose()
        await self._log.aclose()
        going = self._going
        if going is None:
            return
        try:
            await self._catch_up(going.live)
        finally:  # also when cancelled meanwhile
            left = self._is_over() and going.live.archive is not None
            if going.response == self.id and not going.live.over and not left:
                going.cancel()
                await going.ended()

    async def _catch_up(self, live: LiveRun) -> None:
        """Read what nobody read: a response that is over has left its run to whoever goes on with it."""
        while not live.over and not self._is_over() and (behind := live.told(self._projection.applied, _AT_ONCE)):
            for event in behind:
                self._projection.apply(event)
            await asyncio.sleep(0)

    async def _told(self) -> AsyncGenerator[ResponseEvent, None]:
        for told in self._ahead:
            yield told
        self._ahead = []
        if self._is_over():
            return
        async with aclosing(self._log) as log:
            async for _, event in log:
                for told in self._applied(event):
                    yield told
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        """The response is; its run may go on, in another."""
        return self._projection.over

    def _applied(self, event: Event) -> list[ResponseEvent]:
        told = self._projection.apply(event)
        if isinstance(event, StepEnded) and self.queue_s is None and self._projection.is_own:
            self.queue_s, self.ttft_s = event.queue_s, event.ttft_s
        return [each for each in told if each.number > self._after]

    def _failure(self) -> AgentFlowError | None:
        return None if self._going is None else self._going.live.failure

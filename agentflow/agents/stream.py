"""AgentStream: an agent's run as a chat sees it: the assistant's text, what its tools do, and the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from agentflow.agents.going import Going
from agentflow.agents.progress import Progress
from agentflow.agents.record import HANDED_OVER, ApprovalAsked, Ended, StepEnded
from agentflow.errors import SequenceFailed
from agentflow.events import (
    ChoiceFinished,
    Event,
    TextDelta,
    ToolAsked,
    ToolCallArguments,
    ToolCallClosed,
    ToolCallOpened,
    ToolEnded,
    ToolStarted,
    Usage,
)

_BETWEEN_STEPS = "\n\n"


class AgentStream:
    """As RunStream: iterate it once, and close it whatever happens. Closing ends the run."""

    def __init__(self, going: Going) -> None:
        self._going = going
        self._live = going.live
        self._events = self._told()
        self.queue_s: float | None = None
        self.ttft_s: float | None = None

    @property
    def run_id(self) -> str:
        """The run that answers."""
        return self._live.id

    @property
    def usage(self) -> Usage:
        """What was counted so far, over all steps."""
        return self._live.progress.usage

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def aclose(self) -> None:
        """End the run, if it goes on. Idempotent. What is noted of a run that is over needs no client to wait for it."""
        await self._events.aclose()
        if not self._live.over:
            self._going.cancel()
            await self._going.ended()

    async def _told(self) -> AsyncGenerator[Event, None]:
        """What the log means to a chat. Of calls that are not the client's to make it hears only as activity; of its own each
        comes whole, since what begins like a call may not be one, and then the model is told.
        """
        progress = Progress(self._live.id)
        spoke, step, handed = False, 0, 0
        async with aclosing(self._live.follow()) as events:
            async for _, event in events:
                for heard in progress.apply(event):
                    if isinstance(heard, TextDelta):
                        if spoke and progress.step > step:
                            yield TextDelta(0, _BETWEEN_STEPS)
                        spoke, step = True, progress.step
                        yield heard
                    elif isinstance(heard, ToolStarted | ToolEnded):
                        yield heard
                    elif isinstance(heard, ToolCallClosed) and progress.calls[heard.index].clients:
                        call = progress.calls[heard.index]
                        yield ToolCallOpened(0, handed, call.id, call.name)
                        yield ToolCallArguments(0, handed, call.arguments)
                        handed += 1
                if isinstance(event, StepEnded) and self.queue_s is None:
                    self.queue_s, self.ttft_s = event.queue_s, event.ttft_s
                elif isinstance(event, ApprovalAsked):
                    call = next(call for call in progress.calls if call.id == event.call_id)
                    yield ToolAsked(0, self._live.id, call.id, call.name, call.arguments)
                elif isinstance(event, Ended):
                    yield self._finished(event)

    def _finished(self, ended: Ended) -> ChoiceFinished:
        """Raises what the run failed with."""
        if ended.end in ("failed", "cancelled"):
            raise self._live.failure or SequenceFailed(ended.error or "The run was cancelled.")
        if ended.why == HANDED_OVER:
            return ChoiceFinished(0, "tool_calls")
        return ChoiceFinished(0, "stop" if ended.end == "completed" else "length")

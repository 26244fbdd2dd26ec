"""RunStream: the events of one request, over all its choices.

One choice is iterated directly, with nothing between the engine's deltas and the reader: that is the hot path. Several
choices are merged through a bounded queue, one task each, in the service's TaskGroup; a reader that stops reading
stops the tasks, and so the engine's deltas are merged inside the engine and memory stays bounded.

Closing a stream, at any moment and also when it was never iterated, aborts what still runs or waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol, cast

from agentflow.engine.protocol import Delta
from agentflow.errors import EngineDied
from agentflow.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallOpened,
    Usage,
)
from agentflow.parsing.events import CallArguments, CallOpened, Malformed, Text, ToolParser
from agentflow.run import Run
from agentflow.scheduler import Seat, Ticket

MERGE_BUFFER = 64


class Choice:
    """One answer: its ticket, and the parser that finds tool calls in its text (None: everything is text)."""

    def __init__(
        self,
        index: int,
        ticket: Ticket,
        parser: ToolParser | None = None,
        *,
        call_ids: Callable[[], str] | None = None,
        finish_after_calls: FinishReason = "tool_calls",
        echo: str = "",
    ) -> None:
        self.index = index
        self.ticket = ticket
        self._parser = parser
        self._call_ids = call_ids
        self._finish_after_calls = finish_after_calls
        self._echo = echo
        self._called = False
        self._logprobs: list[TokenLogprob] = []

    @property
    def run(self) -> Run:
        """The run behind this choice."""
        return self.ticket.run

    async def events(self, prepare: Callable[[Seat], None]) -> AsyncGenerator[Event, None]:
        """The choice's events. `prepare` settles, on the seat, what could not be known before."""
        seat = await self.ticket.seat()
        prepare(seat)
        index = self.index
        parser = self._parser
        if self._echo:
            yield TextDelta(index, self._echo)
        async with aclosing(seat.deltas()) as deltas:
            async for delta in deltas:
                reason = delta.finish_reason
                if parser is not None:
                    for event in self._parsed(parser, delta, last=reason is not None):
                        yield event
                elif delta.text or delta.token_ids:
                    yield TextDelta(index, delta.text, delta.token_ids, delta.logprobs)
                if reason is not None:
                    yield ChoiceFinished(index, self._finish(reason), delta.stop_reason)
                    return
        raise EngineDied("The engine ended the answer without saying why.")

    def _parsed(self, parser: ToolParser, delta: Delta, *, last: bool) -> list[Event]:
        self._logprobs += delta.logprobs or ()
        found = parser.feed(delta.text)
        if last:
            found = [*found, *parser.finish()]
        events: list[Event] = []
        for part in found:
            match part:
                case Text(text):
                    events.append(TextDelta(self.index, text, logprobs=self._taken_logprobs()))
                case CallOpened(index, name):
                    self._called = True
                    self._logprobs.clear()  # as in OpenAI's API, they are for the text alone
                    assert self._call_ids is not None
                    events.append(ToolCallOpened(self.index, index, self._call_ids(), name))
                case CallArguments(index, text):
                    events.append(ToolCallArguments(self.index, index, text))
                case Malformed(text, None):
                    # Never opened as a call: the reader gets the words. Of an opened one it has seen all there is.
                    events.append(TextDelta(self.index, text))
        return events

    def _taken_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        taken = tuple(self._logprobs)
        self._logprobs.clear()
        return taken or None

    def _finish(self, reason: str) -> FinishReason:
        return self._finish_after_calls if reason == "stop" and self._called else cast("FinishReason", reason)


class EventStream(Protocol):
    """The events of one request as they come: of a direct answer, or of an agent's. Iterate it once, and close it."""

    @property
    def usage(self) -> Usage:
        """What was counted so far; complete when the iteration ended."""

    @property
    def queue_s(self) -> float | None:
        """Seconds from the arrival until an engine took it; None: not yet."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the arrival to the first token; None: there is none yet."""

    @property
    def run_id(self) -> str | None:
        """The agent's run that answers; None of a direct answer."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def aclose(self) -> None:
        """Abort what still runs or waits. Idempotent."""


class RunStream:
    """The events of one request as they come: iterate it once, and close it (`aclose`) whatever happens."""

    def __init__(
        self,
        choices: list[Choice],
        prepare: Callable[[Seat], None],
        tasks: asyncio.TaskGroup,
        answers_a_prompt: int = 1,
    ) -> None:
        self._choices = choices
        self._prepare = prepare
        self._tasks = tasks
        self._answers_a_prompt = answers_a_prompt
        self._events = choices[0].events(prepare) if len(choices) == 1 else self._merged()

    @property
    def runs(self) -> list[Run]:
        """The runs, one a choice, in order."""
        return [choice.run for choice in self._choices]

    @property
    def usage(self) -> Usage:
        """What was counted so far; complete when the iteration ended. A prompt with n answers counts once."""
        runs = self.runs
        firsts = runs[:: self._answers_a_prompt]
        return Usage(
            prompt_tokens=sum(len(run.prompt_token_ids) for run in firsts),
            completion_tokens=sum(run.completion_tokens for run in runs),
            cached_tokens=sum(run.cached_tokens for run in firsts),
        )

    @property
    def run_id(self) -> None:
        """No agent's run answers."""

    @property
    def queue_s(self) -> float | None:
        """As EventStream.queue_s, of the first choice."""
        run = self._choices[0].run
        return None if run.admitted_at is None else run.admitted_at - run.arrived_at

    @property
    def ttft_s(self) -> float | None:
        """As EventStream.ttft_s, of the first choice."""
        run = self._choices[0].run
        return None if run.first_token_at is None else run.first_token_at - run.arrived_at

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def aclose(self) -> None:
        """Abort what still runs or waits. Idempotent."""
        try:
            await self._events.aclose()
        finally:
            # A generator that was never started has no `finally` to run: its seat is given back here.
            for choice in self._choices:
                choice.ticket.cancel("client_gone")

    async def _merged(self) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue(MERGE_BUFFER)

        async def pump(choice: Choice) -> None:
            try:
                async with aclosing(choice.events(self._prepare)) as events:
                    async for event in events:
                        await queue.put(event)
            except Exception as error:  # noqa: BLE001 - raised again in the reader, whatever it is
                await queue.put(error)
            else:
                await queue.put(None)

        pumps = [self._tasks.create_task(pump(choice)) for choice in self._choices]
        open_choices = len(pumps)
        try:
            while open_choices:
                item = await queue.get()
                if item is None:
                    open_choices -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.wait(pumps)

"""Speaker: a served model as an agent's loop uses it. Token ids in, token ids and text out; every word passes the scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from agentflow.engine.protocol import Delta
from agentflow.errors import InvalidRequest
from agentflow.messages import Caller, Message, Sampling, Tool
from agentflow.model import Model, Spoken
from agentflow.run import Run, RunStatus
from agentflow.scheduler import PrefixKeeper, Scheduler

Encode = Callable[[int, Callable[[], list[int]]], Awaitable[list[int]]]
"""Runs an encoding of so many bytes: on the loop while they are few, else in a thread."""


@dataclass(slots=True, kw_only=True)
class Utterance:
    """What is to be said next: the prompt's ids, and how many tokens may follow. `run` has the measures, once it is queued.

    `deadline_s`: seconds from now by which an engine must have taken it. `continues`: as Run.continues.
    """

    id: str
    request_id: str
    prompt: list[int]
    sampling: Sampling
    most_tokens: int
    caller: Caller
    deadline_s: float
    priority: int = 0
    continues: bool = False
    run: Run | None = field(default=None)


class Speaker:
    """One model. Made when it is spoken: with its tokenizer and encoder loaded."""

    def __init__(
        self, model: Model, spoken: Spoken, scheduler: Scheduler, encode: Encode, prefixes: PrefixKeeper
    ) -> None:
        self._model = model
        self._tokenizer = spoken.tokenizer
        self._encode = encode
        self._scheduler = scheduler
        self._prefixes = prefixes
        assert spoken.turns is not None, "a model that speaks has turns"
        self._turns = spoken.turns

    @property
    def name(self) -> str:
        """The model's first name."""
        return self._model.served.name

    @property
    def tool_format(self) -> str:
        """How it writes calls."""
        return self._model.tool_format

    @property
    def alone(self) -> asyncio.Lock:
        """For runs under which engines failed: whoever holds it is the only one of them that speaks."""
        return self._model.alone

    async def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """As Turns.opening. Long ones are encoded in a thread."""
        size = len(msgspec.json.encode((messages, tools)))
        return await self._encode(size, lambda: self._turns.opening(messages, tools))

    async def next(
        self,
        prompt: Sequence[int],
        said: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[int]:
        """As Turns.next. Long ones are encoded in a thread."""
        anew = history if self._turns.problem is not None else ()
        size = len(msgspec.json.encode((anew, new, tools)))
        return await self._encode(size, lambda: self._turns.next(prompt, said, history, new, tools))

    def room(self, prompt_tokens: int) -> int | None:
        """How many tokens fit behind a prompt of so many; None while the engine's context is not known."""
        try:
            return self._model.fit(prompt_tokens, None, "messages") or None
        except InvalidRequest:
            return 0

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, with U+FFFD where a character is incomplete."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    async def speak(self, utterance: Utterance) -> AsyncGenerator[Delta, None]:
        """What the model says. Closing it stops the engine and gives the seat back. Raises as Service.chat's stream does."""
        now = time.monotonic()
        run = utterance.run = Run(
            id=utterance.id,
            request_id=utterance.request_id,
            model=self.name,
            prompt_token_ids=utterance.prompt,
            sampling=utterance.sampling,
            max_tokens=0,
            caller=utterance.caller,
            priority=utterance.priority,
            arrived_at=now,
            deadline_at=now + utterance.deadline_s,
            continues=utterance.continues,
        )
        (ticket,) = self._scheduler.submit(self._model.pool, [run])
        said: list[int] | None = None
        reading = self._prefixes.begin(self.name, utterance.caller.tenant, utterance.prompt)
        try:
            seat = await ticket.seat()
            try:
                room = self._model.fit(len(utterance.prompt), None, "messages")
            except InvalidRequest:
                seat.release(RunStatus.FAILED, "invalid_request")
                raise
            run.max_tokens = min(room, utterance.most_tokens)
            said = []
            async with aclosing(seat.deltas()) as deltas:
                async for delta in deltas:
                    said += delta.token_ids
                    yield delta
        finally:
            ticket.cancel("client_gone")
            self._prefixes.end(reading, said)

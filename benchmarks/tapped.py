"""TappedEngine: an Engine in front of a real one, which makes it say certain texts, and notes when each token came.

It stands where the product has nothing: below the service and the scheduler, which know nothing of it. What is to be said
follows from the step alone: an agent's generations are called `<run>-<step>`; a client's own loop says the step with `seed`.

A task of its own reads the engine, so that a moment is that of the token and not of whoever was late to read it; what is unread
is merged, as the engine itself does it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from agentflow.engine.protocol import Delta, Engine, EngineInfo, EngineStats, GenerateRequest, StartProgress
from agentflow.errors import EngineFailure
from agentflow.messages import Structured
from benchmarks.agentscript import Forced, Tap


@dataclass(slots=True)
class _Mailbox:
    """What came and was not read yet."""

    deltas: list[Delta] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    error: BaseException | None = None

    def put(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.came.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.came.set()

    async def get(self) -> Delta:
        """All that came, as one. Raises what the engine raised."""
        while not self.deltas:
            if self.error is not None:
                raise self.error
            await self.came.wait()
            self.came.clear()
        deltas, self.deltas = self.deltas, []
        if len(deltas) == 1:
            return deltas[0]
        return replace(
            deltas[-1],
            text="".join(each.text for each in deltas),
            token_ids=[token for each in deltas for token in each.token_ids],
        )


class TappedEngine:
    """`forced` gives what to say now; `seen` gets each generation when it is over."""

    def __init__(self, engine: Engine, forced: Callable[[], Forced], seen: Callable[[Tap], None]) -> None:
        self._engine = engine
        self._forced = forced
        self._seen = seen
        self._runs: dict[str, int] = {}  # in the order in which they began to speak

    @property
    def failure(self) -> EngineFailure | None:
        """As Engine.failure."""
        return self._engine.failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Engine.start."""
        return await self._engine.start(progress)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As Engine.generate."""
        called, box = time.monotonic(), _Mailbox()
        reader = asyncio.create_task(self._read(self._told(request), called, box))
        try:
            while True:
                delta = await box.get()
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader

    def _told(self, request: GenerateRequest) -> GenerateRequest:
        forced, sampling = self._forced(), request.sampling
        if sampling.structured is None:
            run = self._runs.setdefault(request.id.rpartition("-")[0], len(self._runs))
            structured = Structured("choice", [forced.text(step_of(request), run)])
            request = replace(request, sampling=replace(sampling, structured=structured))
        return replace(request, cache_salt=secrets.token_hex(8)) if forced.salted else request

    async def _read(self, request: GenerateRequest, called: float, box: _Mailbox) -> None:
        at: list[float] = []
        ends: list[int] = []
        characters, tokens, cached, over = 0, 0, 0, False

        def tap(cut: float | None = None) -> Tap:
            return Tap(id=request.id, called=called, prompt_tokens=len(request.prompt_token_ids), cached_tokens=cached,
                       output_tokens=tokens, at=tuple(at), ends=tuple(ends), cut=cut)  # fmt: skip

        try:
            async with aclosing(self._engine.generate(request)) as deltas:
                async for delta in deltas:
                    at.append(time.monotonic())
                    characters += len(delta.text)
                    ends.append(characters)
                    tokens += len(delta.token_ids)
                    cached = delta.cached_tokens if len(at) == 1 else cached
                    if delta.finish_reason is not None:
                        over = True
                        self._seen(tap())
                    box.put(delta)
        except asyncio.CancelledError:  # the engine's generator is closed by now
            if not over:
                self._seen(tap(cut=time.monotonic()))
            raise
        except Exception as error:  # noqa: BLE001 - raised again in the reader, whatever it is
            box.fail(error)

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        """As Engine.forget."""
        return await self._engine.forget(token_ids, keep, cache_salt)

    def stats(self) -> EngineStats:
        """As Engine.stats."""
        return self._engine.stats()

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Engine.kill."""
        self._engine.kill(reason)

    async def stop(self, timeout_s: float) -> None:
        """As Engine.stop."""
        await self._engine.stop(timeout_s)


def step_of(request: GenerateRequest) -> int:
    """Which step of a conversation a generation is."""
    if request.sampling.seed is not None:
        return request.sampling.seed
    return int(request.id.rpartition("-")[2])

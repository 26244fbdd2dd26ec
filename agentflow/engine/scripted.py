"""ScriptedEngine: a deterministic stand-in for a model, which ships and serves.

It is for tests, demos and for measuring everything around an engine. No process, thread or task is its own.

**What is said.** A prompt's ids are bytes (ByteTokenizer). The first rule of the script that matches gives the answer,
and `plan` (see script_plan.py) works out beforehand the whole sequence of tokens, where it ends and why.

**When.** Each stream has a timetable (script_pace.py), and all share one timer (script_clock.py), armed while a time is to
come: also that of a reader that has left meanwhile.

**Slots.** `max_running` streams run; others wait in order of priority, then of arrival. A stream gives its slot back
when its last delta is handed out, or as soon as its generator is closed.

**Failing.** `kill`, `stop` or a rule's `die_after_tokens` set `failure` and make every stream raise it; `hang`
or `hang_after_tokens` silence all streams for good, while `stats` goes on to show them as running.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from time import monotonic

from agentflow.engine.protocol import Delta, EngineInfo, EngineStats, GenerateRequest, StartProgress
from agentflow.engine.script import Rule, Script
from agentflow.engine.script_cache import BLOCK, PrefixCache
from agentflow.engine.script_clock import Clock
from agentflow.engine.script_pace import Pace
from agentflow.engine.script_plan import Cutter, last_user_text, plan
from agentflow.engine.script_start import pretend_to_start
from agentflow.errors import ContextLengthExceeded, EngineDied, EngineFailure, InvalidRequest
from agentflow.tokenizer import ByteTokenizer


class ScriptedEngine:
    """An Engine that answers from a script. One token is one byte. See the module."""

    def __init__(self, script: Script | None = None, *, max_model_len: int = 32_768, max_running: int = 1024) -> None:
        self._script = script or Script()
        self._rules = [(re.compile(rule.match), rule) for rule in self._script.rules]
        self._max_model_len = max_model_len
        self._max_running = max_running
        self._kv_tokens = max_model_len * max_running
        self._failure: EngineFailure | None = None
        self._hung = False
        self._disturbed = False  # hung or failed: one flag, because it is asked once a delta
        self._streams: set[_Stream] = set()
        self._running = 0
        self._queue: list[tuple[int, int, _Stream]] = []
        self._arrivals = 0
        self._prefixes = PrefixCache()
        self._last_progress_at = 0.0
        self._clock = Clock()

    @property
    def failure(self) -> EngineFailure | None:
        """As Engine.failure."""
        return self._failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Engine.start; takes the script's `start_s` seconds."""
        await pretend_to_start(self._script, progress, lambda: self._failure)
        self._last_progress_at = monotonic()
        return EngineInfo(
            name="scripted",
            max_model_len=self._max_model_len,
            max_running=self._max_running,
            kv_cache_tokens=self._kv_tokens,
            kv_block_tokens=BLOCK,
            choices={"rules": len(self._rules), "tokens_per_s": self._script.tokens_per_s or "unlimited"},
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """As Engine.generate."""
        prompt = self._prompt(request)
        rule = self._rule(prompt)
        limit = min(request.max_tokens, self._max_model_len - len(prompt))
        cutter = Cutter(plan(self._script, rule, prompt, request.sampling, limit), request.sampling)
        stream = _Stream(self._arrivals, len(prompt), cutter)
        self._arrivals += 1
        self._streams.add(stream)
        fault = rule if rule is not None and rule.fails else None
        try:
            await self._admit(stream, request.priority)
            cached, stream.blocks = self._prefixes.match(prompt, request.cache_salt)
            pace = Pace(self._script, rule, stream.number)
            if pace.ttft_s:
                await self._sleep(stream, pace.ttft_s)
            upto = pace.begin(monotonic())
            while True:
                if self._disturbed:
                    await self._disturbance(stream)
                if fault is not None:
                    upto = self._fault(fault, cutter.emitted, upto)
                    if self._disturbed:
                        continue
                delta = cutter.cut(upto, cached)
                self._last_progress_at = monotonic()
                if delta.finish_reason is not None:
                    self._release(stream)
                    yield delta
                    return
                yield delta
                now = monotonic()
                upto, due = pace.next(now, cutter.emitted)
                if due > now:
                    stream.waiter = waiter = self._clock.loop.create_future()
                    self._clock.ring(waiter, due)
                    await waiter
                elif not pace.interval_s:
                    await asyncio.sleep(0)  # everybody's turn, as between two steps of an engine
        finally:
            self._release(stream)

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        """As Engine.forget."""
        if self._failure is not None:
            raise self._failure.again()
        return self._prefixes.forget(_bytes(token_ids), len(_bytes(token_ids[:keep])), cache_salt)

    async def free_memory(self) -> int:
        """As Engine.free_memory."""
        if self._failure is not None:
            raise self._failure.again()
        return self._prefixes.forget_all()

    def stats(self) -> EngineStats:
        """As Engine.stats."""
        return EngineStats(
            outstanding=len(self._streams),
            running=self._running,
            waiting=len(self._streams) - self._running,
            kv_cache_usage=min(1.0, sum(s.tokens for s in self._streams) / self._kv_tokens),
            prefix_cache_queries=self._prefixes.queries,
            prefix_cache_hits=self._prefixes.hits,
            last_progress_at=self._last_progress_at,
        )

    def hang(self) -> None:
        """Give no more output, as an engine whose device is stuck."""
        self._hung = self._disturbed = True

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Engine.kill."""
        self._fail(reason or EngineDied("the scripted engine was killed"))

    async def stop(self, timeout_s: float) -> None:
        """As Engine.stop."""
        self._fail(EngineDied("the scripted engine was stopped"))

    def _prompt(self, request: GenerateRequest) -> bytes:
        ids = request.prompt_token_ids
        if len(ids) >= self._max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has {len(ids)} tokens, and the context is {self._max_model_len} tokens long"
            )
        try:
            return _bytes(ids)
        except ValueError as error:
            raise InvalidRequest(f"a token id is outside of the vocabulary of {ByteTokenizer.vocab_size}") from error

    def _rule(self, prompt: bytes) -> Rule | None:
        if not self._rules:
            return None
        text = prompt.decode(errors="replace")
        user = last_user_text(text)
        return next(
            (rule for match, rule in self._rules if match.search(user if rule.within == "user" else text)), None
        )

    async def _admit(self, stream: _Stream, priority: int) -> None:
        """Wait for a slot."""
        if self._disturbed:
            await self._disturbance(stream)
        if self._running < self._max_running:
            self._take_slot(stream)
            return
        heapq.heappush(self._queue, (priority, stream.number, stream))
        while not stream.has_slot:
            await self._sleep(stream, None)

    def _take_slot(self, stream: _Stream) -> None:
        stream.has_slot = True
        self._running += 1

    def _release(self, stream: _Stream) -> None:
        """Forget a stream and let the next one in. Idempotent."""
        if stream not in self._streams:
            return
        self._streams.discard(stream)
        self._prefixes.release(stream.blocks)
        if stream.has_slot:
            self._running -= 1
        while self._queue and self._running < self._max_running:
            _, _, waiting = heapq.heappop(self._queue)
            if waiting in self._streams:
                self._take_slot(waiting)
                waiting.wake()

    async def _sleep(self, stream: _Stream, seconds: float | None) -> None:
        """Wait for the time, or (None) for being woken. Raises what the engine fails of as soon as it does."""
        stream.waiter = waiter = self._clock.loop.create_future()
        if seconds is not None:
            self._clock.ring(waiter, monotonic() + seconds)
        await waiter
        if self._disturbed:
            await self._disturbance(stream)

    async def _disturbance(self, stream: _Stream) -> None:
        """Raise what the engine died of, or be silent until it dies."""
        while self._failure is None:
            stream.waiter = self._clock.loop.create_future()
            await stream.waiter
        raise self._failure.again()

    def _fault(self, rule: Rule, emitted: int, upto: int) -> int:
        """`upto`, or as far as the rule lets the engine come, which fails or hangs when it stands there already."""
        if rule.die_after_tokens is not None:
            if emitted >= rule.die_after_tokens:
                self._fail(EngineDied(f"the scripted engine died after {emitted} tokens, as its script says"))
            upto = min(upto, rule.die_after_tokens)
        if rule.hang_after_tokens is not None:
            if emitted >= rule.hang_after_tokens:
                self.hang()
            upto = min(upto, rule.hang_after_tokens)
        return upto

    def _fail(self, failure: EngineFailure) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self._disturbed = True
        for stream in self._streams:
            stream.wake()


class _Stream:
    """A sequence on the engine: whether it has a slot, how many KV tokens it holds, and what it waits for."""

    __slots__ = ("_cutter", "_prompt_tokens", "blocks", "has_slot", "number", "waiter")

    def __init__(self, number: int, prompt_tokens: int, cutter: Cutter) -> None:
        self.number = number
        self.blocks: list[int] = []  # of the prefix cache
        self._prompt_tokens = prompt_tokens
        self._cutter = cutter
        self.has_slot = False
        self.waiter: asyncio.Future[None] | None = None

    @property
    def tokens(self) -> int:
        """The KV tokens that it holds: none before its first is out."""
        emitted = self._cutter.emitted
        return self._prompt_tokens + emitted if emitted else 0

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def _bytes(token_ids: Sequence[int]) -> bytes:
    """The text that they stand for, without ends of text. Raises ValueError for one that is out of the vocabulary."""
    return bytes(token_ids if ByteTokenizer.EOS not in token_ids else (i for i in token_ids if i != ByteTokenizer.EOS))

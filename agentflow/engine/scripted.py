"""ScriptedEngine and ScriptedEmbedder: deterministic stand-ins for a model, which ship and serve.

They are for tests, demos and for measuring everything around an engine. No process, thread or task is theirs.

**What is said.** A prompt's ids are bytes (ByteTokenizer). The first rule of the script that matches gives the answer,
and `plan` (see script_plan.py) works out beforehand the whole sequence of tokens, where it ends and why.

**When.** Token k of a stream is due at a fixed point of time, so a late loop causes no drift: whatever is due by then
comes merged in one delta. All streams share one timer (`_Clock`), armed only while a reader waits, and streams that begin
together are put out of phase, so that a thousand of them do not wake the loop all at once.

**Slots.** `max_running` streams run; others wait in order of priority, then of arrival. A stream gives its slot back
when its last delta is handed out, or as soon as its generator is closed.

**Failing.** `kill`, `stop` or a rule's `die_after_tokens` set `failure` and make every stream raise it; `hang`
or `hang_after_tokens` silence all streams for good, while `stats` goes on to show them as running.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import cached_property
from time import monotonic
from typing import Any

from agentflow.engine.protocol import Delta, EngineInfo, EngineStats, GenerateRequest, StartProgress
from agentflow.engine.script import Rule, Script
from agentflow.engine.script_plan import Cutter, last_user_text, plan
from agentflow.errors import ContextLengthExceeded, EngineDied, EngineFailure, EngineStartFailed, InvalidRequest
from agentflow.tokenizer import ByteTokenizer

_STAGES = ("importing", "loading", "warming")
_START_TICK_S = 0.05
_AT_ONCE = 32  # streams that are woken before the loop looks at something else
_NO_RULE = Rule()
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread as evenly as can be


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
        self._prefixes = _PrefixCache()
        self._last_progress_at = 0.0
        self._clock = _Clock()

    @property
    def failure(self) -> EngineFailure | None:
        """As Engine.failure."""
        return self._failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Engine.start; takes the script's `start_s` seconds."""
        await _pretend_to_start(self._script, progress, lambda: self._failure)
        self._last_progress_at = monotonic()
        return EngineInfo(
            name="scripted",
            max_model_len=self._max_model_len,
            max_running=self._max_running,
            kv_cache_tokens=self._kv_tokens,
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
            cached = self._prefixes.match(prompt, request.cache_salt)
            pace = _Pace(self._script, rule, stream.number)
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
            return bytes(ids) if ByteTokenizer.EOS not in ids else bytes(i for i in ids if i != ByteTokenizer.EOS)
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
        raise _again(self._failure)

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


class ScriptedEmbedder:
    """An Embedder without a model: texts with more three-byte sequences in common get nearer vectors."""

    def __init__(self, script: Script | None = None, *, max_model_len: int = 8192) -> None:
        self._script = script or Script()
        self._max_model_len = max_model_len
        self._failure: EngineFailure | None = None
        self._outstanding = 0
        self._last_progress_at = 0.0
        self._died = asyncio.Event()
        self.dimensions = self._script.dimensions

    @property
    def failure(self) -> EngineFailure | None:
        """As Embedder.failure."""
        return self._failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Embedder.start."""
        await _pretend_to_start(self._script, progress, lambda: self._failure)
        self._last_progress_at = monotonic()
        return EngineInfo(name="scripted", max_model_len=self._max_model_len, max_running=1024)

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Any:
        """As Embedder.embed."""
        self._outstanding += len(inputs)
        try:
            if self._script.embed_s and self._failure is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._died.wait(), self._script.embed_s)
            if self._failure is not None:
                raise _again(self._failure)
            self._last_progress_at = monotonic()
            return _trigram_vectors(inputs, self.dimensions)
        finally:
            self._outstanding -= len(inputs)

    def stats(self) -> EngineStats:
        """As Embedder.stats."""
        return EngineStats(
            outstanding=self._outstanding, running=self._outstanding, last_progress_at=self._last_progress_at
        )

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Embedder.kill."""
        if self._failure is None:
            self._failure = reason or EngineDied("the scripted embedder was killed")
            self._died.set()

    async def stop(self, timeout_s: float) -> None:
        """As Embedder.stop."""
        self.kill()


class _Stream:
    """A sequence on the engine: whether it has a slot, how many KV tokens it holds, and what it waits for."""

    __slots__ = ("_cutter", "_prompt_tokens", "has_slot", "number", "waiter")

    def __init__(self, number: int, prompt_tokens: int, cutter: Cutter) -> None:
        self.number = number
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


class _Clock:
    """Wakes any number of waiters at their times, to the millisecond, with one timer of the loop.

    At most `_AT_ONCE` of them a turn of the loop: when a thousand are due, because the loop is late or because they began
    together, whoever else waits for the loop comes between them.
    """

    def __init__(self) -> None:
        # By the millisecond of `monotonic` that they are due in, and a heap of those milliseconds.
        self._slots: dict[int, deque[asyncio.Future[None]]] = {}
        self._order: list[int] = []
        self._timer: asyncio.Handle | None = None

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs. Kept, because to ask for it costs a system call."""
        return asyncio.get_running_loop()

    def ring(self, waiter: asyncio.Future[None], due: float) -> None:
        """Give `waiter` its result at the time `due`, unless it is done by then."""
        slot = int(due * 1000)
        if (waiters := self._slots.get(slot)) is not None:
            waiters.append(waiter)
            return
        self._slots[slot] = deque((waiter,))
        heapq.heappush(self._order, slot)
        if slot == self._order[0]:
            self._arm(monotonic())

    def _arm(self, now: float) -> None:
        """Have the first slot waited for, up to its end: timers that are rounded to milliseconds come early."""
        if self._timer is not None:
            self._timer.cancel()
        wait_s = (self._order[0] + 1) / 1000 - now
        self._timer = self.loop.call_later(wait_s, self._tick) if wait_s > 0 else self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = monotonic()
        upto = int(now * 1000)
        left = _AT_ONCE
        while left and self._order and self._order[0] <= upto:
            waiters = self._slots[self._order[0]]
            while left and waiters:
                waiter = waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    left -= 1
            if not waiters:
                del self._slots[heapq.heappop(self._order)]
        self._timer = None
        if self._order:
            self._arm(now)


class _Pace:
    """The timetable of a stream. Token 0 is due when it begins, token k a fixed time after that."""

    __slots__ = ("_origin", "_phase", "interval_s", "per_delta", "ttft_s")

    def __init__(self, script: Script, rule: Rule | None, number: int) -> None:
        rule = rule or _NO_RULE
        rate = script.tokens_per_s if rule.tokens_per_s is None else rule.tokens_per_s
        self.ttft_s = script.ttft_s if rule.ttft_s is None else rule.ttft_s
        self.per_delta = rule.tokens_per_delta or script.tokens_per_delta
        self.interval_s = 1.0 / rate if rate else 0.0
        # Token 1 comes up to one interval early: no stream is ever slower than its rate.
        self._phase = number * _GOLDEN % 1.0 * self.interval_s
        self._origin = 0.0

    def begin(self, now: float) -> int:
        """Start the clock. Returns how many tokens are due."""
        self._origin = now - self._phase
        return self.per_delta

    def next(self, now: float, emitted: int) -> tuple[int, float]:
        """How many tokens the next delta should reach, and when it is due (not after `now`: it is late)."""
        upto = emitted + self.per_delta
        if not self.interval_s:
            return upto, now
        due = self._origin + (upto - 1) * self.interval_s
        if due <= now:
            upto = max(upto, int((now - self._origin) / self.interval_s) + 1)
        return upto, due


class _PrefixCache:
    """Which blocks of 16 prompt tokens were seen lately, chained from the prompt's start, a chain for each salt."""

    BLOCK = 16
    CAPACITY = 65_536  # blocks

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, prompt: bytes, salt: str | None) -> int:
        """Count the leading tokens of `prompt` that are cached, and cache all its whole blocks."""
        chain = hash(salt)
        cached = 0
        unbroken = True
        # The last token is always computed: something has to give the first output.
        for start in range(0, len(prompt) - self.BLOCK, self.BLOCK):
            chain = hash((chain, prompt[start : start + self.BLOCK]))
            unbroken = unbroken and chain in self._blocks
            cached += self.BLOCK if unbroken else 0
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self.CAPACITY:
            self._blocks.popitem(last=False)
        self.queries += len(prompt)
        self.hits += cached
        return cached


def _again(failure: EngineFailure) -> EngineFailure:
    """A copy to raise: each stream that raises an exception adds its own traceback to it."""
    return type(failure)(*failure.args)


async def _pretend_to_start(
    script: Script, progress: Callable[[StartProgress], None], failure: Callable[[], EngineFailure | None]
) -> None:
    """Report the stages of a start over `start_s` seconds; raises EngineStartFailed if it is killed or told to."""
    begun = monotonic()
    for number, stage in enumerate(_STAGES, start=1):
        ends = begun + script.start_s * number / len(_STAGES)
        while True:
            elapsed = (monotonic() - begun) / script.start_s if script.start_s else 1.0
            progress(StartProgress(stage, min(elapsed, 1.0)))
            if (died := failure()) is not None:
                raise EngineStartFailed(f"the start was interrupted: {died}")
            if (left := ends - monotonic()) <= 0:
                break
            await asyncio.sleep(min(left, _START_TICK_S))
    if script.fail_start is not None:
        raise EngineStartFailed(script.fail_start)


def _trigram_vectors(inputs: Sequence[Sequence[int]], dimensions: int) -> Any:
    """Count each three-token sequence in the bucket that it hashes to; unit length. Shape [inputs, dimensions]."""
    import numpy as np  # here, because it takes 0.1 s to import and only an embedder needs it

    vectors = np.zeros((len(inputs), dimensions), dtype=np.float32)
    for row, ids in zip(vectors, inputs, strict=True):
        padded = np.array([0, *ids, 0, 0], dtype=np.uint64)
        mixed = (padded[:-2] * np.uint64(1_000_003) + padded[1:-1]) * np.uint64(1_000_003) + padded[2:]
        np.add.at(row, (mixed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)) % np.uint64(dimensions), 1.0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

"""The seams of the engine room: Engine and Embedder.

Both have two implementations that ship: `vllm` (AsyncLLM, or its pooling runner) and `scripted` for engines;
`encoder` (in the daemon) and `vllm` for embedders, besides the scripted one.

An engine is used from the event loop's thread only. One `generate` is one sequence. Whoever stops iterating must close
the generator (`aclose`), and that aborts the sequence in the engine. When the engine's process dies, every running
`generate` raises EngineDied promptly, and `failure` tells why from then on; an engine is never restarted, it is
replaced by a new one (see supervisor.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from agentflow.errors import EngineFailure
from agentflow.events import TokenLogprob
from agentflow.messages import Sampling


class StartProgress(Struct, frozen=True):
    """A stage of starting (`importing`, `loading`, `warming`, ...) and how far it is, 0.0 to 1.0, if known."""

    stage: str
    fraction: float | None = None


class EngineInfo(Struct, frozen=True):
    """What a started engine turned out to be.

    `max_model_len` counts tokens; `max_running` sequences at a time; `kv_cache_tokens` is the size of the KV pool, in blocks of
    `kv_block_tokens`;
    `choices` are the decisions that were made for this machine, for `acu status` (dtype, threads, preloads ...).
    """

    name: str  # "vllm" | "scripted"
    max_model_len: int
    max_running: int
    kv_cache_tokens: int | None = None
    kv_block_tokens: int = 1
    pids: tuple[int, ...] = ()
    choices: dict[str, Any] = {}


class EngineStats(Struct, frozen=True):
    """A snapshot. Ratios are 0.0 to 1.0. `outstanding` counts sequences the engine has not finished."""

    outstanding: int = 0
    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preemptions: int = 0
    last_progress_at: float = 0.0  # time.monotonic() of the last engine step that gave output


class GenerateRequest(Struct, frozen=True):
    """One sequence to generate. `cache_salt` keeps tenants' prefix caches apart; priority as in ChatRequest."""

    id: str
    prompt_token_ids: list[int]
    sampling: Sampling
    max_tokens: int
    priority: int = 0
    cache_salt: str | None = None


class Delta(Struct, frozen=True, gc=False):
    """What an engine adds to a sequence; any number of tokens, none included.

    `finish_reason` is set on the last delta only: stop | length | abort | error. `cached_tokens` counts prompt tokens
    that were found in the prefix cache (valid from the first delta on).
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    cached_tokens: int = 0


class Engine(Protocol):
    """Something that continues sequences of tokens."""

    @property
    def failure(self) -> EngineFailure | None:
        """Why the engine cannot work any more, or None while it can. Cheap: it is polled."""

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """Bring the engine up without blocking the loop. Raises EngineStartFailed. Cancelling it stops the start."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Continue one sequence. Raises InvalidRequest (before the first delta) and EngineFailure."""

    async def forget(self, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        """Drop what is cached of a sequence behind its first `keep` tokens, but for what other sequences are using.

        Whole blocks only, and none that reaches into those `keep`. Returns how many tokens are not found any more. Raises
        EngineFailure.
        """

    async def free_memory(self) -> int:
        """Give back what can be had again: cached blocks that no sequence is using, and device memory that is kept aside.

        Returns how many tokens are not found any more. Raises EngineFailure.
        """

    def stats(self) -> EngineStats:
        """A snapshot that costs no round trip."""

    def kill(self, reason: EngineFailure | None = None) -> None:
        """End the engine's processes now (SIGKILL). Running generates raise `reason`, EngineDied if None.

        Idempotent, does not block.
        """

    async def stop(self, timeout_s: float) -> None:
        """End in order, then by force after `timeout_s`. Leaves no process. Idempotent."""


class Embedder(Protocol):
    """Something that turns sequences of tokens into vectors; starts, fails and stops as an Engine does."""

    dimensions: int

    @property
    def failure(self) -> EngineFailure | None:
        """As Engine.failure."""

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """As Engine.start."""

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Any:
        """Token ids in, a float32 numpy array of unit vectors out, shape [len(inputs), dimensions]."""

    async def free_memory(self) -> int:
        """As Engine.free_memory."""

    def stats(self) -> EngineStats:
        """As Engine.stats."""

    def kill(self, reason: EngineFailure | None = None) -> None:
        """As Engine.kill."""

    async def stop(self, timeout_s: float) -> None:
        """As Engine.stop."""

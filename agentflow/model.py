"""Model: a served model at work: its names, its pool, its supervised engines, and its tokenizer.

The tokenizer is loaded in a thread while the engines start. A load that fails is told (`tokenizer_error`) and tried again
with back-off, as a supervisor does with an engine; meanwhile requests wait for it until their deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from agentflow.config import ModelConfig
from agentflow.engine.protocol import Embedder, Engine
from agentflow.engine.supervisor import Supervisor
from agentflow.errors import ContextLengthExceeded, EngineStartFailed, EngineUnavailable, InvalidRequest
from agentflow.messages import Sampling
from agentflow.parsing import choice
from agentflow.prompt import ChatEncoder
from agentflow.sampling import differing
from agentflow.scheduler import Ticket
from agentflow.scheduler.pool import Pool
from agentflow.status import HeldStatus, ModelStatus
from agentflow.tokenizer import Tokenizer
from agentflow.turns import Turns

_log = logging.getLogger(__name__)


class ServedModel(Struct, frozen=True):
    """A model to serve.

    `tokenizer` is called once, in a thread; each of `engines` makes a fresh engine (Embedder for role `embed`) whenever
    one must be started. `path` is the folder with the model's files (None for a scripted one), `created` a Unix time,
    `sampling` what a request gets that leaves the choice of tokens open.
    """

    name: str
    aliases: tuple[str, ...]
    role: str  # "chat" | "embed"
    config: ModelConfig
    path: Path | None
    created: int
    tokenizer: Callable[[], Tokenizer]
    engines: tuple[Callable[[], Engine | Embedder], ...]
    sampling: Sampling = Sampling()


class Spoken(NamedTuple):
    """What is known of a model's tokens once its tokenizer is loaded. `turns` None: it makes embeddings, and never speaks."""

    tokenizer: Tokenizer
    encoder: ChatEncoder
    turns: Turns | None


class Model:
    """A served model at work. `backoff_s` is the first and the longest wait between two tries at its tokenizer."""

    def __init__(
        self,
        served: ServedModel,
        pool: Pool[Ticket],
        supervisors: tuple[Supervisor[Any], ...],
        backoff_s: tuple[float, float],
    ) -> None:
        self.served = served
        self.pool = pool
        self.supervisors = supervisors
        self.tokenizer_error: str | None = None
        self.tool_format = "none"
        self.alone = asyncio.Lock()  # held by a run under which so many engines failed that it may be the cause
        self._backoff_s = backoff_s
        self._spoken: Spoken | None = None
        self._loaded = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether it can answer now."""
        return self.pool.ready and self._spoken is not None

    async def load(self, threads: Executor, stopping: asyncio.Event) -> None:
        """Load the tokenizer, however many tries it takes, until `stopping`."""
        loop = asyncio.get_running_loop()
        wait_s, longest_s = self._backoff_s
        while True:
            try:
                spoken, tool_format = await loop.run_in_executor(threads, _load, self.served)
            except EngineStartFailed as error:
                self.tokenizer_error = str(error)
                _log.warning("the tokenizer of %s does not load: %s", self.served.name, error)
            else:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await stopping.wait()
                    return
            wait_s = min(2 * wait_s, longest_s)
        self.tool_format = tool_format
        self.tokenizer_error = None
        self._spoken = spoken
        self._loaded.set()

    async def spoken(self, deadline_at: float) -> Spoken:
        """The tokenizer and what speaks through it, as soon as they are loaded.

        Raises EngineUnavailable at `deadline_at` (`time.monotonic()` seconds).
        """
        if self._spoken is None:
            try:
                async with asyncio.timeout(deadline_at - time.monotonic()):
                    await self._loaded.wait()
            except TimeoutError as error:
                why = self.tokenizer_error or "its tokenizer is still loading"
                raise EngineUnavailable(
                    f"The model {self.served.name} is not available: {why}", retry_after_s=5.0
                ) from error
        assert self._spoken is not None
        return self._spoken

    def fit(self, prompt: int, max_tokens: int | None, param: str) -> int:
        """How many tokens may be generated after `prompt` of them. 0 while the engine's context is not known yet.

        `max_tokens`: how many were asked for, if any. Raises InvalidRequest.
        """
        info = self.pool.info
        limit = info.max_model_len if info is not None else self.served.config.max_model_len
        if prompt == 0:
            raise InvalidRequest("The prompt has no tokens.", param=param, code="invalid_value")
        if limit is None:
            return max_tokens or 0
        name = self.served.name
        if prompt >= limit:
            raise ContextLengthExceeded(
                f"The prompt has {prompt} tokens; {name} has a context of {limit}, prompt and answer "
                "together. Shorten the prompt.",
                param=param,
            )
        if max_tokens is None:
            return limit - prompt
        if prompt + max_tokens > limit:
            raise ContextLengthExceeded(
                f"The prompt has {prompt} tokens and {max_tokens} were asked for, {prompt + max_tokens} together; "
                f"{name} has a context of {limit}. Shorten the prompt, or ask for {limit - prompt}.",
                param=param,
            )
        return max_tokens

    def status(self, held: HeldStatus | None = None) -> ModelStatus:
        """A snapshot."""
        pool = self.pool
        return ModelStatus(
            name=self.served.name,
            aliases=self.served.aliases,
            role=self.served.role,
            ready=self.ready,
            created=self.served.created,
            engines=tuple(supervisor.status() for supervisor in self.supervisors),
            max_model_len=pool.info.max_model_len if pool.info else None,
            queued=len(pool.waiting),
            running=pool.running,
            sampling=differing(self.served.sampling),
            held=held,
        )


def _load(served: ServedModel) -> tuple[Spoken, str]:
    """What is known of the model's tokens, and how it writes calls. Raises EngineStartFailed."""
    tokenizer = served.tokenizer()
    path = served.config.chat_template
    try:
        template = Path(path).read_text(encoding="utf-8") if path is not None else None
    except (OSError, UnicodeDecodeError) as error:
        raise EngineStartFailed(f"the chat template {path} cannot be read: {error}") from error
    encoder = ChatEncoder(tokenizer, template)
    spoken = Spoken(tokenizer, encoder, Turns(tokenizer, encoder) if served.role == "chat" else None)
    return spoken, _tool_format(served, encoder) if served.role == "chat" else "none"


def _tool_format(served: ServedModel, encoder: ChatEncoder) -> str:
    """How the model writes calls, with what reads them loaded. Raises EngineStartFailed where that was asked for in vain."""
    wanted = served.config.tool_format
    found = encoder.tool_format if wanted == "auto" else wanted
    try:
        choice.load(found)
    except EngineStartFailed as error:
        if wanted != "auto":
            raise
        _log.warning("the tool calls of %s are left as text: %s", served.name, error)
        return "none"
    return found

"""Encoding: texts to token ids and back, beside the loop where that takes longer than a stream should wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from agentflow import grammar
from agentflow.config import SchedulerConfig
from agentflow.messages import Structured
from agentflow.plan import check_vocabulary
from agentflow.tokenizer import Tokenizer

INLINE_BYTES = 8192  # about 2 ms of encoding; longer texts would hold the loop up
GRAMMAR_COSTS = 8  # a byte of a grammar takes about as long to check as this many bytes of text to encode
Prompts = Sequence[str | tuple[int, ...]]
T = TypeVar("T")


class Encoding:
    """Two threads, which `close` ends."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.threads = ThreadPoolExecutor(2, thread_name_prefix="encode")
        self._grammar_limits = grammar.GrammarLimits.of(config)

    async def run(self, size: int, encode: Callable[[], T]) -> T:
        """What `encode` makes of `size` bytes of text: on the loop while they are few, else in a thread."""
        if size <= INLINE_BYTES:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self.threads, encode)

    async def ids(self, tokenizer: Tokenizer, prompts: Prompts, param: str) -> list[list[int]]:
        """Token ids of each prompt. Raises InvalidRequest, which names its place in the field `param`."""

        def encode() -> list[list[int]]:
            found = []
            for number, prompt in enumerate(prompts):
                if isinstance(prompt, str):
                    found.append(tokenizer.encode(prompt, add_special_tokens=True))
                else:
                    check_vocabulary(prompt, tokenizer.vocab_size, f"{param}[{number}]")
                    found.append(list(prompt))
            return found

        return await self.run(sum(map(len, prompts)), encode)

    async def texts(self, tokenizer: Tokenizer, prompts: Prompts) -> list[str]:
        """The text of each prompt."""

        def decode() -> list[str]:
            return [
                prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=True)
                for prompt in prompts
            ]

        return await self.run(sum(map(len, prompts)), decode)

    async def check_grammar(self, structured: Structured | None) -> None:
        """Raise InvalidGrammar for a form that no answer can be held to."""
        if structured is not None:
            size = len(msgspec.json.encode(structured.value))
            await self.run(size * GRAMMAR_COSTS, lambda: grammar.check(structured, self._grammar_limits))

    def close(self) -> None:
        """Take nothing more. Does not wait."""
        self.threads.shutdown(wait=False, cancel_futures=True)

"""GrammarCheck: whether a structured output can be compiled, found out before it reaches EngineCore.

llguidance compiles lazily and with a bounded amount of fuel: a hostile schema or expression makes it give up within a
fraction of a second, and it lets go of the interpreter's lock meanwhile. Some give up only at the first token. So a
request is compiled, and its first mask computed, in one of two threads beside the loop; what fails here is the caller's
error (InvalidGrammar), instead of a stream that breaks. What still gives up later ends that sequence alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agentflow.errors import EngineUnavailable, InvalidGrammar
from agentflow.messages import Structured

WAIT_FOR_THREAD = 3  # times the limit: what others compile is not this request's fault
T = TypeVar("T")


class GrammarCheck:
    """Compiles for one model. `limit_s` bounds the wait for a verdict, in seconds."""

    def __init__(self, tokenizer: Any, vocab_size: int, limit_s: float) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._limit_s = limit_s
        self._ll_tokenizer: Any = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")

    async def run(self, structured: Structured, admit: Callable[[], T]) -> T:
        """`admit()`'s result, once `structured` has compiled; both in a thread.

        Raises InvalidGrammar, and EngineUnavailable when others keep the threads too long.
        """
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        def judge() -> T:
            loop.call_soon_threadsafe(begun.set)
            return self._judge(structured, admit)

        verdict = loop.run_in_executor(self._threads, judge)
        try:
            async with asyncio.timeout(WAIT_FOR_THREAD * self._limit_s):
                await begun.wait()
        except TimeoutError as error:
            verdict.cancel()
            raise EngineUnavailable(
                "Other requests' schemas and grammars are still being compiled.", retry_after_s=self._limit_s
            ) from error
        try:
            async with asyncio.timeout(self._limit_s):
                return await verdict
        except TimeoutError as error:
            raise InvalidGrammar(
                f"compiling it took longer than {self._limit_s:g} s (scheduler.grammar_compile_s)",
                param=structured.param,
            ) from error

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _judge(self, structured: Structured, admit: Callable[[], T]) -> T:
        admitted = admit()
        error = self._first_error(admitted)
        if error:
            raise InvalidGrammar(f"it cannot be used to constrain the output: {error}", param=structured.param)
        return admitted

    def _first_error(self, core_request: Any) -> str | None:
        import llguidance
        from vllm.v1.structured_output.backend_guidance import GuidanceBackend, serialize_guidance_grammar
        from vllm.v1.structured_output.request import get_structured_output_key

        params = core_request.sampling_params.structured_outputs
        if params is None or params._backend != "guidance":
            return None
        if self._ll_tokenizer is None:
            self._ll_tokenizer = GuidanceBackend._build_ll_tokenizer(self._tokenizer, self._vocab_size)
        grammar = serialize_guidance_grammar(*get_structured_output_key(params), disable_any_whitespace=True)
        matcher = llguidance.LLMatcher(self._ll_tokenizer, grammar, log_level=0)
        if not matcher.get_error():
            matcher.compute_bitmask()
        error = str(matcher.get_error() or "")
        return error.partition("\n")[0][:200] or None

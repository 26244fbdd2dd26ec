"""Sequence: one generation between vLLM's output and its reader.

Each engine step delivers a few tokens to each of many sequences; the work a token costs here, in the daemon's one
thread, bounds what the daemon can serve. So a token passes three calls: `take` (detokenise, look for stop strings, append
to the waiting delta), a wake-up, and `next` in the reader. vLLM's own way builds three objects and an event a token.

What the reader has not fetched is merged: there is at most one waiting delta, no larger than the sequence's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentflow.engine.protocol import Delta
from agentflow.errors import EngineFailure
from agentflow.events import TokenLogprob

STOP = 0  # vLLM's FinishReason
FINISH_REASONS = ("stop", "length", "abort", "error", "length")  # the last is its repetition detection, which is off


class Sequence:
    """Belongs to one `generate` call, on the event loop. `detokenizer` and `logprobs` are vLLM's, for this request."""

    __slots__ = (
        "_cached",
        "_decode",
        "_detokenizer",
        "_eos",
        "_failure",
        "_finish",
        "_keeps_stop",
        "_logprobs",
        "_logprobs_processor",
        "_loop",
        "_stop_reason",
        "_text",
        "_tokens",
        "_top_logprobs",
        "_waiter",
        "id",
    )

    def __init__(
        self,
        id: str,  # noqa: A002
        detokenizer: Any,
        logprobs: Any,
        eos: frozenset[int],
        top_logprobs: int = 0,
    ) -> None:
        self.id = id
        self._detokenizer = detokenizer
        plain = type(detokenizer).__name__ == "FastIncrementalDetokenizer" and not detokenizer.stop
        self._decode: Callable[[int], str] | None = detokenizer.decode_next if plain else None  # nothing is held back
        self._keeps_stop = getattr(detokenizer, "include_stop_str_in_output", False)
        self._logprobs_processor = logprobs
        self._top_logprobs = top_logprobs
        self._eos = eos
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._text = ""
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None if logprobs is None else []
        self._finish: str | None = None
        self._stop_reason: str | int | None = None
        self._cached = 0
        self._failure: EngineFailure | None = None

    @property
    def finished(self) -> bool:
        """Whether everything has been taken that will come."""
        return self._finish is not None

    def take(self, output: Any) -> bool:
        """Add what an engine step gave (an EngineCoreOutput).

        Returns whether the sequence ended here by a stop string, which the engine does not know of yet.
        """
        tokens = output.new_token_ids
        finish = output.finish_reason
        if output.prefill_stats is not None:
            self._cached = output.prefill_stats.num_cached_tokens
        stop = None
        if self._decode is not None:
            for token in tokens if finish != STOP or self._keeps_stop else tokens[:-1]:
                self._text += self._decode(token)
        else:
            detokenizer = self._detokenizer
            before = detokenizer.num_output_tokens()
            stop = detokenizer.update(tokens, finish == STOP)
            if stop is not None:
                del tokens[detokenizer.num_output_tokens() - before :]
            self._text += detokenizer.get_next_output_text(finish is not None or stop is not None, True)
        if self._logprobs_processor is not None:
            self._take_logprobs(output, len(tokens))
        if self._tokens:
            self._tokens += tokens
        else:
            self._tokens = tokens
        if stop is not None:
            self._finish, self._stop_reason = "stop", stop
        elif finish is not None:
            self._finish, self._stop_reason = FINISH_REASONS[finish], self._visible(output.stop_reason)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return stop is not None and finish is None

    def fail(self, failure: EngineFailure) -> None:
        """Make the reader raise `failure`, after what was taken before."""
        self._failure = failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Delta:
        """What came since the last call, as soon as there is something. Raises EngineFailure."""
        while not self._tokens and self._finish is None:
            if self._failure is not None:
                raise self._failure.again()
            self._waiter = waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        logprobs = None
        if self._logprobs is not None:
            logprobs = tuple(self._logprobs)
            self._logprobs.clear()
        delta = Delta(self._text, self._tokens, self._finish, self._stop_reason, logprobs, self._cached)
        self._text = ""
        self._tokens = []
        return delta

    def _visible(self, stop_reason: str | int | None) -> str | int | None:
        """The stop reason, unless it is one of the model's own ends, which are no news to the caller."""
        return None if stop_reason in self._eos else stop_reason

    def _most_probable(self, position: Any) -> list[tuple[int, Any]]:
        """As many alternatives as were asked for; vLLM adds the chosen token to them where it is not among them."""
        ranked: list[tuple[int, Any]] = sorted(position.items(), key=lambda item: -item[1].logprob)
        return ranked[: self._top_logprobs]

    def _take_logprobs(self, output: Any, count: int) -> None:
        assert self._logprobs is not None
        processor = self._logprobs_processor
        done = len(processor.logprobs)
        processor.update_from_output(output)
        for position, token_id in zip(processor.logprobs[done : done + count], output.new_token_ids, strict=False):
            own = position[token_id]
            self._logprobs.append(
                TokenLogprob(
                    own.decoded_token or "",
                    token_id,
                    own.logprob,
                    tuple(
                        TokenLogprob(other.decoded_token or "", other_id, other.logprob)
                        for other_id, other in self._most_probable(position)
                    ),
                )
            )

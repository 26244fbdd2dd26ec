"""VllmEngine: an Engine whose tokens come from vLLM.

AsyncLLM is used for what it does well (validation, the connection to EngineCore, start and end), and gone around where a
token passes: the outputs of EngineCore are read here, and each goes straight to its Sequence (see sequences.py).

The path of a sequence: `generate` has vLLM check the request, registers a Sequence, sends it to EngineCore, and then
yields what the Sequence gathers. Whatever ends the generator before the sequence is finished (closing, cancelling, an error)
sends the abort in the same turn of the loop: the message is written to the socket without waiting for anything.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

from agentflow.config import ModelConfig
from agentflow.engine.protocol import Delta, EngineInfo, EngineStats, GenerateRequest, StartProgress
from agentflow.engine.vllm import forgetting
from agentflow.engine.vllm.facts import MachineFacts, read_model
from agentflow.engine.vllm.grammar_check import GrammarCheck
from agentflow.engine.vllm.host import EngineHost
from agentflow.engine.vllm.params import refusals_translated, sampling_params
from agentflow.engine.vllm.sequences import Sequence
from agentflow.engine.vllm.startup import WARMING, Startup, expected_seconds
from agentflow.engine.vllm.tuning import choose
from agentflow.errors import EngineDied, EngineFailure, InvalidRequest, SequenceFailed
from agentflow.messages import Sampling, Structured

_log = logging.getLogger(__name__)


class VllmEngine:
    """One vLLM engine, started once. `machine` is called when it starts, so that it sees the memory of that moment.

    Compiling a grammar may take `grammar_compile_s` seconds.
    """

    def __init__(
        self, path: Path, config: ModelConfig, machine: Callable[[], MachineFacts], grammar_compile_s: float
    ) -> None:
        self._path = path
        self._config = config
        self._machine = machine
        self._grammar_compile_s = grammar_compile_s
        self._grammars: GrammarCheck | None = None
        self._host = EngineHost(on_failure=self._fail_all)
        self._sequences: dict[str, Sequence] = {}
        self._seen = _Seen()
        self._numbers = itertools.count()
        self._tasks: tuple[Any, ...] = ()
        self._eos: frozenset[int] = frozenset()
        self._pump: asyncio.Task[None] | None = None

    @property
    def failure(self) -> EngineFailure | None:
        """Why it cannot work any more."""
        return self._host.failure

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo:
        """Choose for this machine, load the model, warm up. Raises EngineStartFailed."""
        model = read_model(self._path)
        choices = choose(model, self._config, self._machine())
        self._eos = model.eos_token_ids
        startup = Startup(expected_seconds(model.weights_bytes, compiled=choices.shown["compiled"]), progress)
        await self._host.start(choices, startup)
        llm = self._host.llm
        self._pump = asyncio.create_task(self._read_outputs(llm.engine_core), name="vllm outputs")
        self._tasks = await llm.get_supported_tasks()
        config = llm.vllm_config
        self._grammars = GrammarCheck(
            llm.renderer.tokenizer, config.model_config.get_vocab_size(), self._grammar_compile_s
        )
        startup.reach(WARMING)
        await self._warm_up()
        return EngineInfo(
            name="vllm",
            max_model_len=config.model_config.max_model_len,
            max_running=choices.max_running,
            kv_cache_tokens=config.cache_config.kv_cache_size_tokens,
            kv_block_tokens=config.cache_config.block_size,
            pids=self._host.processes.pids,
            choices=choices.shown,
        )

    async def _warm_up(self) -> None:
        """Run once what vLLM makes ready only when it is first asked for, and holds up every sequence for meanwhile."""
        sampling = Sampling(logprobs=1, structured=Structured("choice", ["a"]))
        try:
            async for _ in self.generate(GenerateRequest("warm-up", [next(iter(self._eos), 0)], sampling, 2)):
                pass
        except InvalidRequest as error:
            _log.warning("this model's output cannot be constrained: %s", error)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Continue one sequence."""
        if (failure := self.failure) is not None:
            raise failure.again()
        llm = self._host.llm
        if llm is None:
            raise EngineDied("the engine has not been started")
        if (structured := request.sampling.structured) is not None and self._grammars is not None:
            core_request = await self._grammars.run(structured, functools.partial(self._admit, llm, request))
        else:
            core_request = self._admit(llm, request)
        top = request.sampling.logprobs or 0
        sequence = Sequence(core_request.request_id, *_readers(llm, core_request), self._eos, top)
        self._sequences[sequence.id] = sequence
        try:
            await llm.engine_core.add_request_async(core_request)
            while True:
                delta = await sequence.next()
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            if self._sequences.pop(sequence.id, None) is not None and self._host.failure is None:
                await llm.engine_core.abort_requests_async([sequence.id])

    async def forget(self, token_ids: SequenceOf[int], keep: int, cache_salt: str | None) -> int:
        """As Engine.forget; see forgetting.py."""
        return await self._host.call(
            forgetting.METHOD, "The engine did not forget a prompt", list(token_ids), keep, cache_salt
        )

    async def free_memory(self) -> int:
        """As Engine.free_memory; see forgetting.py."""
        return await self._host.call(forgetting.FREE_METHOD, "The engine gave no memory back")

    def stats(self) -> EngineStats:
        """A snapshot, as of EngineCore's last step."""
        seen = self._seen
        return EngineStats(
            outstanding=len(self._sequences),
            running=seen.running if self._sequences else 0,
            waiting=seen.waiting if self._sequences else 0,
            kv_cache_usage=seen.kv_cache_usage if self._sequences else 0.0,
            prefix_cache_queries=seen.prefix_queries,
            prefix_cache_hits=seen.prefix_hits,
            preemptions=seen.preemptions,
            last_progress_at=seen.progress_at,
        )

    def kill(self, reason: EngineFailure | None = None) -> None:
        """End the processes now."""
        self._host.kill(reason)

    async def stop(self, timeout_s: float) -> None:
        """End in order, then by force."""
        await self._host.stop(timeout_s)
        if self._grammars is not None:
            self._grammars.close()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    def _admit(self, llm: Any, request: GenerateRequest) -> Any:
        """The request as EngineCore wants it, checked by vLLM. Raises InvalidRequest."""
        prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": request.prompt_token_ids}
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        with refusals_translated(request):
            core_request = llm.input_processor.process_inputs(
                f"{request.id}#{next(self._numbers)}",  # unique in EngineCore, whatever ids callers choose
                prompt,
                sampling_params(request),
                supported_tasks=self._tasks,
                priority=request.priority,
            )
        core_request.external_req_id = request.id
        return core_request

    async def _read_outputs(self, engine_core: Any) -> None:
        """Hand what each step of EngineCore gave to the sequences, until the engine has failed."""
        sequences, seen = self._sequences, self._seen
        try:
            while True:
                step = await engine_core.get_output_async()
                stopped = []
                for output in step.outputs:
                    sequence = sequences.get(output.request_id)
                    if sequence is None:  # aborted meanwhile
                        continue
                    try:
                        if sequence.take(output):
                            stopped.append(sequence.id)
                    except Exception as error:  # noqa: BLE001 - vLLM's decoding; the other answers go on
                        _log.exception("an answer cannot be decoded")
                        sequence.fail(SequenceFailed(f"The engine's output cannot be decoded: {error}"))
                        del sequences[sequence.id]
                        stopped.append(sequence.id)
                        continue
                    if sequence.finished:
                        del sequences[sequence.id]
                seen.note(step)
                if stopped:
                    await engine_core.abort_requests_async(stopped)
        except Exception as error:  # noqa: BLE001 - whatever it is, no token comes any more
            self._host.fail_by(error)

    def _fail_all(self, failure: EngineFailure) -> None:
        for sequence in self._sequences.values():
            sequence.fail(failure)


class _Seen:
    """The figures of EngineCore's steps so far."""

    __slots__ = (
        "kv_cache_usage",
        "preemptions",
        "prefix_hits",
        "prefix_queries",
        "progress_at",
        "running",
        "waiting",
    )

    def __init__(self) -> None:
        self.kv_cache_usage = 0.0
        self.preemptions = self.prefix_hits = self.prefix_queries = self.running = self.waiting = 0
        self.progress_at = 0.0

    def note(self, step: Any) -> None:
        """Take over a step's figures.

        A part of a long prompt gives no output, but is progress: it fills the KV pool. (A step alone is none: EngineCore makes
        them too when it can do nothing.)
        """
        stats = step.scheduler_stats
        if step.outputs or (stats is not None and stats.kv_cache_usage != self.kv_cache_usage):
            self.progress_at = time.monotonic()
        if stats is not None:
            self.running, self.waiting = stats.num_running_reqs, stats.num_waiting_reqs
            self.kv_cache_usage = stats.kv_cache_usage
            prefix = stats.prefix_cache_stats
            self.prefix_queries += prefix.queries
            self.prefix_hits += prefix.hits
            self.preemptions += prefix.preempted_requests


def _readers(llm: Any, core_request: Any) -> tuple[Any, Any]:
    """vLLM's detokeniser and, if asked for, its reader of log probabilities, for one request."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer
    from vllm.v1.engine.logprobs import LogprobsProcessor

    tokenizer = llm.renderer.tokenizer
    wants_logprobs = core_request.sampling_params.num_logprobs is not None
    return (
        IncrementalDetokenizer.from_new_request(tokenizer, core_request),
        LogprobsProcessor.from_new_request(tokenizer, core_request) if wants_logprobs else None,
    )

"""The only door of the orchestrator.

Every call that generates or embeds becomes runs, and every run passes the scheduler. A chat is: find the model's pool,
render and encode the conversation, bound it, submit it, and hand back the stream of its events once an engine has
taken it. Encoding runs on the loop while it is short, in a thread when it is long.

Requests may arrive before an engine is up. What is known then (the tokenizer) is used at once; what is not (the context
that the engine will have) is settled when the run is seated.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agentflow import grammar
from agentflow.config import ModelConfig, SchedulerConfig
from agentflow.engine.protocol import Embedder, Engine
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.errors import AgentFlowError, ContextLengthExceeded, InvalidRequest, UnknownModel
from agentflow.events import Embeddings, FinishReason
from agentflow.messages import ChatRequest, CompletionRequest, EmbeddingRequest, Sampling, Structured
from agentflow.plan import Plan, check_token_ids, check_vocabulary, next_seed, tool_use
from agentflow.prompt import ChatEncoder
from agentflow.run import Run, RunStatus
from agentflow.scheduler import Scheduler, Seat, Ticket
from agentflow.scheduler.pool import Pool
from agentflow.status import ModelStatus, ServiceStatus
from agentflow.stream import Choice, RunStream
from agentflow.tokenizer import Tokenizer

__all__ = ["RunStream", "ServedModel", "Service"]

ENCODE_INLINE_BYTES = 8192  # about 2 ms of encoding; longer texts would hold the loop up
T = TypeVar("T")


class ServedModel(Struct, frozen=True):
    """A model to serve.

    `tokenizer` is called once, in a thread; each of `engines` makes a fresh engine (Embedder for role `embed`) whenever
    one must be started. `path` is the folder with the model's files (None for a scripted one), `created` a Unix time.
    """

    name: str
    aliases: tuple[str, ...]
    role: str  # "chat" | "embed"
    config: ModelConfig
    path: Path | None
    created: int
    tokenizer: Callable[[], Tokenizer]
    engines: tuple[Callable[[], Engine | Embedder], ...]


class _Model:
    """A served model at work: its pool, its supervisors and, once it is loaded, its tokenizer."""

    def __init__(self, served: ServedModel, pool: Pool[Ticket], supervisors: tuple[Supervisor[Any], ...]) -> None:
        self.served = served
        self.pool = pool
        self.supervisors = supervisors
        self.tokenizer: asyncio.Future[Tokenizer] = asyncio.get_running_loop().create_future()
        self.encoder: ChatEncoder | None = None
        self.tool_format = "none"


class Service:
    """Owns the scheduler and the supervised engines. Made and used on the event loop."""

    def __init__(
        self,
        models: tuple[ServedModel, ...],
        config: SchedulerConfig,
        on_run_end: Callable[[Run], None],
        on_engine_change: Callable[[Supervisor[Any]], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._on_run_end = on_run_end
        self._on_engine_change = on_engine_change
        self._scheduler = Scheduler(config, on_run_end)
        self._grammar_limits = grammar.GrammarLimits.of(config)
        self._encoder = ThreadPoolExecutor(2, thread_name_prefix="encode")
        self._tasks: asyncio.TaskGroup | None = None
        self._models = [self._model(served) for served in models]
        self._names = {name: model for model in self._models for name in (model.served.name, *model.served.aliases)}

    def _model(self, served: ServedModel) -> _Model:
        config = self._config
        limits = SupervisorLimits(
            start_timeout_s=config.start_timeout_s,
            stall_timeout_s=config.stall_timeout_s,
            backoff_s=config.restart_backoff_s,
            backoff_max_s=config.restart_backoff_max_s,
        )
        supervisors = tuple(
            Supervisor(f"{served.name}/{number}", factory, limits, self._engine_changed)
            for number, factory in enumerate(served.engines)
        )
        return _Model(served, self._scheduler.add_pool(served.name, supervisors), supervisors)

    def _engine_changed(self, supervisor: Supervisor[Any]) -> None:
        self._scheduler.pump(self._scheduler.pools[supervisor.id.rpartition("/")[0]])
        self._on_engine_change(supervisor)

    # Lifetime

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin bringing the engines up in `tasks`; returns at once (see `status`)."""
        self._tasks = tasks
        for model in self._models:
            tasks.create_task(self._load_tokenizer(model))
            for supervisor in model.supervisors:
                tasks.create_task(supervisor.run())

    async def _load_tokenizer(self, model: _Model) -> None:
        loop = asyncio.get_running_loop()
        served = model.served
        try:
            tokenizer, encoder = await loop.run_in_executor(self._encoder, _load, served)
        except AgentFlowError as error:
            model.tokenizer.set_exception(error)
            model.tokenizer.exception()  # marked as seen; every request that needs it gets it
            return
        model.encoder = encoder
        wanted = served.config.tool_format
        model.tool_format = encoder.tool_format if wanted == "auto" else wanted
        model.tokenizer.set_result(tokenizer)

    async def drain(self, timeout_s: float) -> None:
        """Take no new work (`Draining`), wait for what runs or waits, then abort what is left after `timeout_s`."""
        await self._scheduler.drain(timeout_s)

    def abort_all(self) -> None:
        """End every run now; their readers get `Draining`."""
        self._scheduler.interrupt_all()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Abort everything and stop the engines. Leaves no process."""
        self.abort_all()
        await asyncio.gather(
            *(supervisor.stop(timeout_s) for model in self._models for supervisor in model.supervisors)
        )
        self._encoder.shutdown(wait=False, cancel_futures=True)

    # Requests

    async def chat(self, request: ChatRequest) -> RunStream:
        """The answers to a conversation; returns once an engine has taken the first.

        Raises InvalidRequest, Refused; the stream raises EngineFailure and Refused.
        """
        model = self._find(request.model, "chat")
        tokenizer = await _present(model.tokenizer)
        check_token_ids(request.sampling, tokenizer.vocab_size)
        encoder = model.encoder
        assert encoder is not None, "it comes with the tokenizer"
        choice = request.tool_choice
        tools = request.tools if choice.mode != "none" else ()
        sampling, parser = tool_use(request, tools, model.tool_format)
        self._check_grammar(request.sampling.structured)
        self._check_grammar(sampling.structured)
        size = sum(len(message.content or "") for message in request.messages)
        ids = await self._encode(size, lambda: encoder.encode(request.messages, tools))
        finish: FinishReason = "stop" if choice.mode == "named" else "tool_calls"
        return await self._stream(model, request, Plan([ids], sampling, "messages", parser, finish))

    async def complete(self, request: CompletionRequest) -> RunStream:
        """Continuations of texts, with no chat template. Raises as `chat` does."""
        model = self._find(request.model, "chat")
        tokenizer = await _present(model.tokenizer)
        check_token_ids(request.sampling, tokenizer.vocab_size)
        self._check_grammar(request.sampling.structured)
        prompts = [
            await self._ids(tokenizer, prompt, f"prompt[{number}]") for number, prompt in enumerate(request.prompts)
        ]
        return await self._stream(model, request, Plan(prompts, request.sampling, "prompt"))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Vectors of `request.inputs`. Raises InvalidRequest, Refused, EngineFailure."""
        model = self._find(request.model, "embed")
        tokenizer = await _present(model.tokenizer)
        inputs = [
            await self._ids(tokenizer, value, f"input[{number}]", special=True)
            for number, value in enumerate(request.inputs)
        ]
        run = self._run(model, request, request.id, [token for ids in inputs for token in ids])
        (ticket,) = self._scheduler.submit(model.pool, [run])
        seat = await ticket.seat()
        info = model.pool.info
        assert info is not None
        for number, ids in enumerate(inputs):
            if len(ids) > info.max_model_len:
                seat.release(RunStatus.FAILED, "invalid_request")
                raise ContextLengthExceeded(
                    f"Input {number} has {len(ids)} tokens; {model.served.name} takes {info.max_model_len}.",
                    param=f"input[{number}]",
                )
        vectors = await seat.embed(inputs)
        if request.dimensions is not None:
            vectors = _truncated(vectors, request.dimensions, model.served.name)
        return Embeddings(vectors, len(run.prompt_token_ids))

    async def _stream(self, model: _Model, request: ChatRequest | CompletionRequest, plan: Plan) -> RunStream:
        """Submit `n` runs for each prompt, and hand out their events once the first has been taken."""
        runs = self._runs(model, request, plan)

        def prepare(seat: Seat) -> None:
            run = seat.run
            try:
                run.max_tokens = self._fit(model, len(run.prompt_token_ids), run.sampling.max_tokens, plan.param)
            except InvalidRequest:
                seat.release(RunStatus.FAILED, "invalid_request")
                raise

        tickets = self._scheduler.submit(model.pool, runs)
        choices = [
            Choice(index, ticket, plan.parser(), call_ids=_call_id, finish_after_calls=plan.finish_after_calls)
            for index, ticket in enumerate(tickets)
        ]
        assert self._tasks is not None, "the service was not started"
        stream = RunStream(choices, prepare, self._tasks, request.n)
        try:
            prepare(await tickets[0].seat())
        except BaseException:
            await stream.aclose()
            raise
        return stream

    def _runs(self, model: _Model, request: ChatRequest | CompletionRequest, plan: Plan) -> list[Run]:
        count = len(plan.prompts) * request.n
        if count > self._config.max_choices:
            raise InvalidRequest(
                f"{count} answers were asked for; at most {self._config.max_choices} are given to a request.",
                param="n" if len(plan.prompts) == 1 else "prompt",
                code="invalid_value",
            )
        sampling = plan.sampling
        runs: list[Run] = []
        for ids in plan.prompts:
            self._fit(model, len(ids), sampling.max_tokens, plan.param)
            for answer in range(request.n):
                # Answers to one prompt must differ, and be the same again for the same seed.
                seeded = sampling if sampling.seed is None else replace(sampling, seed=next_seed(sampling.seed, answer))
                runs.append(self._run(model, request, request.id if count == 1 else f"{request.id}-{len(runs)}", ids))
                runs[-1].sampling = seeded
        return runs

    def _run(
        self, model: _Model, request: ChatRequest | CompletionRequest | EmbeddingRequest, run_id: str, ids: list[int]
    ) -> Run:
        deadline_s = self._config.deadline_s if request.deadline_s is None else request.deadline_s
        return Run(
            id=run_id,
            request_id=request.id,
            model=model.served.name,
            prompt_token_ids=ids,
            sampling=Sampling(),
            max_tokens=0,
            caller=request.caller,
            priority=request.priority,
            deadline_at=time.monotonic() + deadline_s,
            kind="embed" if isinstance(request, EmbeddingRequest) else "generate",
        )

    def _fit(self, model: _Model, prompt: int, max_tokens: int | None, param: str) -> int:
        """How many tokens may be generated. 0 while the engine's context is not known yet."""
        info = model.pool.info
        limit = info.max_model_len if info is not None else model.served.config.max_model_len
        if prompt == 0:
            raise InvalidRequest("The prompt has no tokens.", param=param, code="invalid_value")
        if limit is None:
            return max_tokens or 0
        if prompt >= limit:
            raise ContextLengthExceeded(
                f"The prompt has {prompt} tokens; {model.served.name} has a context of {limit}, prompt and answer "
                "together. Shorten the prompt.",
                param=param,
            )
        if max_tokens is None:
            return limit - prompt
        if prompt + max_tokens > limit:
            raise ContextLengthExceeded(
                f"The prompt has {prompt} tokens and {max_tokens} were asked for, {prompt + max_tokens} together; "
                f"{model.served.name} has a context of {limit}. Shorten the prompt, or ask for {limit - prompt}.",
                param=param,
            )
        return max_tokens

    def _find(self, name: str, role: str) -> _Model:
        model = self._names.get(name)
        if model is None:
            served = ", ".join(sorted(model.served.name for model in self._models))
            raise UnknownModel(f"The model {name!r} is not served here. Served: {served}.")
        if model.served.role != role:
            does = "makes embeddings" if model.served.role == "embed" else "generates text"
            raise InvalidRequest(f"The model {name!r} {does}; it cannot serve this endpoint.", param="model")
        return model

    def _check_grammar(self, structured: Structured | None) -> None:
        if structured is not None:
            grammar.check(structured, self._grammar_limits)

    async def _ids(
        self, tokenizer: Tokenizer, prompt: str | tuple[int, ...], param: str, *, special: bool = True
    ) -> list[int]:
        if isinstance(prompt, str):
            text = prompt
            return await self._encode(len(text), lambda: tokenizer.encode(text, add_special_tokens=special))
        check_vocabulary(prompt, tokenizer.vocab_size, param)
        return list(prompt)

    async def _encode(self, size: int, encode: Callable[[], T]) -> T:
        if size <= ENCODE_INLINE_BYTES:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode)

    # Seeing

    def status(self) -> ServiceStatus:
        """A snapshot that costs no round trip to an engine."""
        models = tuple(self._model_status(model) for model in self._models)
        scheduler = self._scheduler
        missing = [model for model in models if not model.ready]
        reason = None
        if scheduler.draining:
            reason = "The daemon is shutting down."
        elif missing:
            engine = missing[0].engines[0]
            percent = "" if engine.fraction is None else f" ({engine.fraction:.0%})"
            reason = f"{missing[0].name} is {engine.state}: {engine.stage or engine.last_error or '...'}{percent}"
        return ServiceStatus(
            ready=reason is None,
            reason=reason,
            draining=scheduler.draining,
            queued=scheduler.queued,
            queued_tokens=scheduler.queued_tokens,
            running=scheduler.running,
            models=models,
        )

    def _model_status(self, model: _Model) -> ModelStatus:
        pool = model.pool
        return ModelStatus(
            name=model.served.name,
            aliases=model.served.aliases,
            role=model.served.role,
            ready=pool.ready,
            created=model.served.created,
            engines=tuple(supervisor.status() for supervisor in model.supervisors),
            max_model_len=pool.info.max_model_len if pool.info else None,
            queued=len(pool.waiting),
            running=pool.running,
        )


def _load(served: ServedModel) -> tuple[Tokenizer, ChatEncoder]:
    tokenizer = served.tokenizer()
    path = served.config.chat_template
    template = Path(path).read_text(encoding="utf-8") if path is not None else None
    return tokenizer, ChatEncoder(tokenizer, template)


def _truncated(vectors: Any, dimensions: int, model: str) -> Any:
    """The first `dimensions` of each vector, of unit length again."""
    have = vectors.shape[1]
    if not 1 <= dimensions <= have:
        raise InvalidRequest(
            f"dimensions is {dimensions}; {model} gives between 1 and {have}.", param="dimensions", code="invalid_value"
        )
    cut = vectors[:, :dimensions]
    norms = (cut**2).sum(axis=1, keepdims=True) ** 0.5
    return cut / norms.clip(min=1e-12)


async def _present(tokenizer: asyncio.Future[Tokenizer]) -> Tokenizer:
    return tokenizer.result() if tokenizer.done() else await asyncio.shield(tokenizer)


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"

"""The only door of the orchestrator.

Every call that generates or embeds becomes runs, and every run passes the scheduler. A chat is: find the model's pool,
render and encode the conversation, bound it, submit it, and hand back the stream of its events once an engine has
taken it. Encoding runs on the loop while it is short, in a thread when it is long.

Requests may arrive before an engine is up. What is known then (the tokenizer) is used at once; what is not (the context
that the engine will have) is settled when the run is seated.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from agentflow.agents.agency import PREFIX as AGENT_PREFIX
from agentflow.agents.agency import Agency
from agentflow.agents.beginnings import Beginnings
from agentflow.agents.runs import Runs
from agentflow.config import SchedulerConfig
from agentflow.encoding import Encoding
from agentflow.engine.supervisor import Supervisor, SupervisorLimits
from agentflow.errors import ContextLengthExceeded, InvalidRequest, UnknownModel
from agentflow.events import Embeddings, FinishReason
from agentflow.library.refusals import DataUnavailable
from agentflow.messages import Caller, ChatRequest, CompletionRequest, EmbeddingRequest, Sampling
from agentflow.model import Model, ServedModel
from agentflow.nearest import did_you_mean, nearest
from agentflow.plan import Plan, check_alternatives, check_token_ids, next_seed, tool_use
from agentflow.responses.responses import Responses
from agentflow.run import Run, RunStatus
from agentflow.sampling import overlaid
from agentflow.scheduler import Scheduler, Seat, Upkeep
from agentflow.speaker import Speaker
from agentflow.status import Capacity, ServiceStatus
from agentflow.stream import Choice, EventStream, RunStream
from agentflow.tokenizer import Tokenizer

__all__ = ["EventStream", "RunStream", "ServedModel", "Service"]

AnyRequest = ChatRequest | CompletionRequest | EmbeddingRequest

_log = logging.getLogger(__name__)


class Service:
    """Owns the scheduler and the supervised engines. Made and used on the event loop."""

    def __init__(
        self,
        models: tuple[ServedModel, ...],
        config: SchedulerConfig,
        on_run_end: Callable[[Run], None],
        on_engine_change: Callable[[Supervisor[Any]], None] = lambda _: None,
        agency: Agency | None = None,
    ) -> None:
        self._config = config
        self._on_engine_change = on_engine_change
        self._scheduler = Scheduler(config, on_run_end)
        self.upkeep = Upkeep(config, self._scheduler)
        self._encoding = Encoding(config)
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._models = [self._model(served) for served in models]
        self._names = {name: model for model in self._models for name in (model.served.name, *model.served.aliases)}
        self._agents: Runs | None = None
        if agency is not None:
            embed = self._embed_texts if any(model.served.role == "embed" for model in self._models) else None
            check = self._encoding.check_grammar
            beginnings = Beginnings(agency, self._speaker, config.deadline_s, check, embed)
            self._agents = Runs(agency, beginnings, self.upkeep.prefixes.forget)
        self._responses = None if self._agents is None else Responses(self._agents)

    def _model(self, served: ServedModel) -> Model:
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
        pool = self._scheduler.add_pool(served.name, supervisors)
        backoff_s = (config.restart_backoff_s, config.restart_backoff_max_s)
        return Model(served, pool, supervisors, backoff_s)

    def _engine_changed(self, supervisor: Supervisor[Any]) -> None:
        self._scheduler.pump(self._scheduler.pools[supervisor.id.rpartition("/")[0]])
        self._on_engine_change(supervisor)

    # Lifetime

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin bringing the engines up in `tasks`; returns at once (see `status`)."""
        self._tasks = tasks
        if self._agents is not None:
            self.upkeep.start(tasks)
            self._agents.start(tasks)
        for model in self._models:
            tasks.create_task(model.load(self._encoding.threads, self._stopping))
            for supervisor in model.supervisors:
                tasks.create_task(supervisor.run())

    async def drain(self, timeout_s: float) -> None:
        """Take no new work (`Draining`), wait for what runs or waits, then abort what is left after `timeout_s`."""
        began = time.monotonic()
        if self._agents is not None:
            self._agents.close_door()
        await self._scheduler.drain(timeout_s)
        if self._agents is not None:  # runs that wait for their tools hold no seat
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, timeout_s - (time.monotonic() - began))):
                    await self._agents.drain()

    def abort_all(self) -> None:
        """End every run now; their readers get `Draining`."""
        self._scheduler.interrupt_all()

    async def leave_runs(self) -> None:
        """End the agents' runs here. Those that are stored stay open, for `resume`. Before the data plane closes."""
        if self._agents is not None:
            await self._agents.stop()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Abort everything and stop the engines. Leaves no process."""
        self._stopping.set()
        await self.leave_runs()
        self.upkeep.stop()
        self.abort_all()
        await asyncio.gather(
            *(supervisor.stop(timeout_s) for model in self._models for supervisor in model.supervisors)
        )
        self._encoding.close()

    # Requests

    async def chat(self, request: ChatRequest) -> EventStream:
        """The answers to a conversation; returns once an engine has taken the first, or an agent's run has begun.

        Raises InvalidRequest, Refused; the stream raises EngineFailure and Refused.
        """
        if self._agents is not None and request.model.startswith(AGENT_PREFIX):
            return await self._agents.chat(request)
        arrived_at = time.monotonic()
        model = self._find(request.model, "chat")
        self._check_count(request.n, "n")
        tokenizer, encoder, _ = await model.spoken(self._deadline_at(request, arrived_at))
        check_token_ids(request.sampling, tokenizer.vocab_size)
        choice = request.tool_choice
        tools = request.tools if choice.mode != "none" else ()
        sampling, parser = tool_use(request, tools, model.tool_format)
        await self._encoding.check_grammar(sampling.structured)
        size = len(msgspec.json.encode((request.messages, tools)))
        ids = await self._encoding.run(size, lambda: encoder.encode(request.messages, tools))
        finish: FinishReason = "stop" if choice.mode == "named" else "tool_calls"
        return await self._stream(model, request, Plan([ids], sampling, "messages", arrived_at, parser, finish))

    async def complete(self, request: CompletionRequest) -> RunStream:
        """Continuations of texts, with no chat template. Raises as `chat` does."""
        arrived_at = time.monotonic()
        model = self._find(request.model, "chat")
        self._check_count(len(request.prompts) * request.n, "n" if len(request.prompts) == 1 else "prompt")
        if request.echo and request.sampling.logprobs is not None:
            raise InvalidRequest(
                "echo gives the prompt's text; its log probabilities are not computed. Leave logprobs out.",
                param="echo",
            )
        tokenizer, _, _ = await model.spoken(self._deadline_at(request, arrived_at))
        check_token_ids(request.sampling, tokenizer.vocab_size)
        await self._encoding.check_grammar(request.sampling.structured)
        prompts = await self._encoding.ids(tokenizer, request.prompts, "prompt")
        echoes = await self._encoding.texts(tokenizer, request.prompts) if request.echo else ()
        return await self._stream(model, request, Plan(prompts, request.sampling, "prompt", arrived_at, echoes=echoes))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Vectors of `request.inputs`. Raises InvalidRequest, Refused, EngineFailure."""
        arrived_at = time.monotonic()
        model = self._find(request.model, "embed")
        tokenizer, _, _ = await model.spoken(self._deadline_at(request, arrived_at))
        inputs = await self._encoding.ids(tokenizer, request.inputs, "input")
        run = self._run(model, request, request.id, list(itertools.chain.from_iterable(inputs)), arrived_at)
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

    async def tokenizer(self, model: str) -> Tokenizer:
        """The tokenizer of a served model, as soon as it is loaded. Raises UnknownModel, EngineUnavailable."""
        found = self._names.get(model)
        if found is None:
            raise UnknownModel(f"The model {model!r} is not served here.")
        tokenizer, _, _ = await found.spoken(time.monotonic() + self._config.deadline_s)
        return tokenizer

    async def _embed_texts(self, tenant: str, texts: Sequence[str]) -> Any:
        """As Guide wants it, by the first model that makes embeddings."""
        model = next(model for model in self._models if model.served.role == "embed")
        request = EmbeddingRequest(
            id=f"embd-{secrets.token_hex(12)}",
            model=model.served.name,
            inputs=tuple(texts),
            caller=Caller(tenant=tenant, name="router"),
        )
        return (await self.embed(request)).vectors

    @property
    def agents(self) -> Runs:
        """The agents' runs. Raises UnknownModel where no agent is configured."""
        if self._agents is None:
            raise UnknownModel("No agent is configured here: see `agents` in the configuration.")
        return self._agents

    @property
    def responses(self) -> Responses:
        """Responses and conversations. Raises DataUnavailable where there can be no runs."""
        if self._responses is None:
            raise DataUnavailable("This server was started without runs, which make responses.", retry_after_s=math.inf)
        return self._responses

    async def _speaker(self, name: str, deadline_at: float) -> Speaker:
        """A chat model for agents, as soon as it is loaded. Raises InvalidRequest, EngineUnavailable."""
        model = self._find(name, "chat")
        spoken = await model.spoken(deadline_at)
        return Speaker(model, spoken, self._scheduler, self._encoding.run, self.upkeep.prefixes)

    async def _stream(self, model: Model, request: ChatRequest | CompletionRequest, plan: Plan) -> RunStream:
        """Submit `n` runs for each prompt, and hand out their events once the first has been taken."""
        runs = self._runs(model, request, plan)

        def prepare(seat: Seat) -> None:
            run = seat.run
            try:
                run.max_tokens = model.fit(len(run.prompt_token_ids), run.sampling.max_tokens, plan.param)
            except InvalidRequest:
                seat.release(RunStatus.FAILED, "invalid_request")
                raise

        tickets = self._scheduler.submit(model.pool, runs)
        choices = [
            Choice(
                index,
                ticket,
                plan.parser(),
                call_ids=_call_id,
                finish_after_calls=plan.finish_after_calls,
                echo=plan.echoes[index // request.n] if plan.echoes else "",
            )
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

    def _runs(self, model: Model, request: ChatRequest | CompletionRequest, plan: Plan) -> list[Run]:
        count = len(plan.prompts) * request.n
        sampling = plan.sampling
        runs: list[Run] = []
        for ids in plan.prompts:
            check_alternatives(sampling, count, model.fit(len(ids), sampling.max_tokens, plan.param))
            for answer in range(request.n):
                # Answers to one prompt must differ, and be the same again for the same seed.
                seeded = sampling if sampling.seed is None else replace(sampling, seed=next_seed(sampling.seed, answer))
                run_id = request.id if count == 1 else f"{request.id}-{len(runs)}"
                runs.append(self._run(model, request, run_id, ids, plan.arrived_at))
                runs[-1].sampling = seeded
        return runs

    def _run(self, model: Model, request: AnyRequest, run_id: str, ids: list[int], arrived_at: float) -> Run:
        return Run(
            id=run_id,
            request_id=request.id,
            model=model.served.name,
            prompt_token_ids=ids,
            sampling=Sampling(),
            max_tokens=0,
            caller=request.caller,
            priority=request.priority,
            arrived_at=arrived_at,
            deadline_at=self._deadline_at(request, arrived_at),
            kind="embed" if isinstance(request, EmbeddingRequest) else "generate",
        )

    def _find(self, name: str, role: str) -> Model:
        model = self._names.get(name)
        if model is None:
            agents = () if self._agents is None or role == "embed" else sorted(self._agents.agents)
            agent_names = [AGENT_PREFIX + agent for agent in agents]
            near = AGENT_PREFIX + name if name in agents else nearest(name, [*self._names, *agent_names])
            served = [
                served.name + (f" (also {', '.join(served.aliases)})" if served.aliases else "")
                for served in sorted((model.served for model in self._models), key=lambda served: served.name)
            ]
            raise UnknownModel(
                f"The model {name!r} is not served here.{did_you_mean(near)} Served: {', '.join([*served, *agent_names])}."
            )
        if model.served.role != role:
            does = "makes embeddings" if model.served.role == "embed" else "generates text"
            raise InvalidRequest(f"The model {name!r} {does}; it cannot serve this endpoint.", param="model")
        return model

    def _deadline_at(self, request: AnyRequest, arrived_at: float) -> float:
        return arrived_at + (self._config.deadline_s if request.deadline_s is None else request.deadline_s)

    def _check_count(self, count: int, param: str) -> None:
        if count > self._config.max_choices:
            raise InvalidRequest(
                f"{count} answers were asked for; at most {self._config.max_choices} are given to a request.",
                param=param,
                code="invalid_value",
            )

    # Seeing

    def sampling_defaults(self, model: str) -> Sampling:
        """What a request to `model` gets that leaves its sampling open: the model's (by any of its names), or the agent's over
        its model's; OpenAI's if unknown.
        """
        agent = self._agents.agents.get(model.removeprefix(AGENT_PREFIX)) if self._agents is not None else None
        if agent is not None and model.startswith(AGENT_PREFIX):
            return overlaid(agent.sampling, self.sampling_defaults(agent.model))
        found = self._names.get(model)
        return found.served.sampling if found is not None else Sampling()

    def capacity(self, model: str | None) -> Capacity:
        """What is still admitted for `model` (a name or an alias), or for all models where it is unknown."""
        found = self._names.get(model) if model is not None else None
        return self._scheduler.capacity(found.pool if found is not None else None)

    def status(self) -> ServiceStatus:
        """A snapshot that costs no round trip to an engine."""
        models = tuple(model.status(self.upkeep.pools.status(model.served.name)) for model in self._models)
        scheduler = self._scheduler
        missing = [model for model in models if not model.ready]
        reason = None
        if scheduler.draining:
            reason = "The daemon is shutting down."
        elif silent := [model for model in self._models if model.tokenizer_error]:
            reason = f"{silent[0].served.name}: {silent[0].tokenizer_error}"
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
            idle_prefixes=len(self.upkeep.prefixes),
            prompt_limit=self.upkeep.prompt_limit,
            agents=None if self._agents is None else self._agents.status(),
        )


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


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"

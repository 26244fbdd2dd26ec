"""Scheduler: the sole caller of Engine.generate, Engine.forget and Embedder.embed.

A run is submitted (`submit`, which refuses at once when it must), waits as a Ticket, is seated on an engine, and leaves
its Seat when its deltas end, by whatever road: finished, client gone, engine dead, aborted by a drain.

Rules that hold at every await:
- `submit` of several runs is all or nothing, so a request with `n` answers is never half accepted.
- A ticket is in exactly one of: the pool's queue, a seat, ended. Whoever waits for it may be cancelled at any moment,
  also in the instant in which it has just been seated: then the seat is given back.
- Every run ends exactly once, and `on_run_end` hears of it exactly once.
- A seat is given back when the engine has been told to stop (the generator is closed), not when the client is done.

Deadlines bound the wait for a seat, not the generation. A run that waits while its engine loads gets EngineUnavailable
when its deadline passes, one that waits behind others gets DeadlineExceeded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from agentflow.config import SchedulerConfig
from agentflow.engine.protocol import Delta, GenerateRequest
from agentflow.engine.supervisor import Supervisor
from agentflow.errors import (
    AgentFlowError,
    DeadlineExceeded,
    Draining,
    EngineFailure,
    EngineUnavailable,
    QueueFull,
    Refused,
    SequenceFailed,
)
from agentflow.run import Run, RunStatus
from agentflow.scheduler.pool import Pool, Slot
from agentflow.scheduler.promptlimit import PromptLimit
from agentflow.status import Capacity

_log = logging.getLogger(__name__)

CLOSED_RETRY_S = 5.0  # when to come again to a scheduler that drains, or to a model whose engines do not come up
FINISHED = frozenset({"stop", "length"})  # the ends of an answer that is whole


class Ticket:
    """A run that waits for a seat. Await `seat()`; `cancel()` leaves the queue."""

    def __init__(self, run: Run, pool: Pool[Ticket], scheduler: Scheduler) -> None:
        self.run = run
        self.pool = pool
        self._scheduler = scheduler
        self.seated: asyncio.Future[Seat] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    async def seat(self) -> Seat:
        """The seat, once there is one. Raises Refused."""
        try:
            return self.seated.result() if self.seated.done() else await asyncio.shield(self.seated)
        except asyncio.CancelledError:
            self.cancel("client_gone")
            raise

    def cancel(self, reason: str) -> None:
        """Leave, from the queue or from a seat that nobody has begun to use."""
        self._scheduler.withdraw(self, reason)


class Seat:
    """A run's place on an engine. Use it once: `deltas()` or `embed()`, or give it back with `release`."""

    def __init__(self, run: Run, pool: Pool[Ticket], slot: Slot, scheduler: Scheduler) -> None:
        self.run = run
        self._pool = pool
        self._slot = slot
        self._engine: Any = slot.supervisor.engine
        self._scheduler = scheduler
        self._task: asyncio.Task[Any] | None = None
        self._interrupt: AgentFlowError | None = None
        self._released = False

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What the engine generates, for one task to read. Closing it aborts the sequence and gives the seat back."""
        run = self.run
        request = GenerateRequest(
            run.id, run.prompt_token_ids, run.sampling, run.max_tokens, run.priority, run.caller.tenant
        )
        with self._held():
            task = self._task
            async with aclosing(self._engine.generate(request)) as stream:
                async for delta in stream:
                    count = len(delta.token_ids)
                    if count:
                        if run.first_token_at is None:
                            run.first_token_at = time.monotonic()
                            run.cached_tokens = delta.cached_tokens
                        run.completion_tokens += count
                    if (reason := delta.finish_reason) is not None:
                        if reason not in FINISHED:
                            raise SequenceFailed(f"The engine gave up this answer ({reason}).")
                        run.finish_reason = reason
                        run.last_token_at = time.monotonic()
                        # Told to the pool before the client reads it: a slow reader holds no seat of a finished run.
                        self.release(RunStatus.FINISHED, reason)
                    self._task = None  # nobody waits for the engine: an interruption is for the next step
                    yield delta
                    if self._interrupt is not None:
                        raise self._interrupt
                    self._task = task

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Any:
        """The vectors of `inputs` (float32, [len(inputs), dimensions])."""
        with self._held():
            vectors = await self._engine.embed(inputs)
            self.release(RunStatus.FINISHED, "stop")
            return vectors

    @contextmanager
    def _held(self) -> Iterator[None]:
        """While the engine works for the run. However that ends, the seat is given back with the reason."""
        self._task = task = asyncio.current_task()
        try:
            if self._interrupt is not None:
                raise self._interrupt  # noqa: TRY301 - it ends the run as any later one would
            yield
        except asyncio.CancelledError:
            if self._interrupt is not None and task is not None:
                task.uncancel()
                raise self._interrupt from None
            raise
        except AgentFlowError as error:
            self.release(RunStatus.ABORTED if error is self._interrupt else RunStatus.FAILED, _reason(error))
            raise
        except Exception:
            self.release(RunStatus.FAILED, "internal_error")
            raise
        finally:
            self._task = None
            self.release(RunStatus.ABORTED, _reason(self._interrupt) if self._interrupt else "client_gone")

    def interrupt(self, error: AgentFlowError) -> None:
        """End the run from outside: whoever waits for the engine gets `error` at once, else with the next step."""
        self._interrupt = error
        if self._task is not None:
            self._task.cancel()

    def release(self, status: RunStatus, reason: str) -> None:
        """Give the seat back and end the run; later calls do nothing."""
        if self._released:
            return
        self._released = True
        self.run.advance(status, reason)
        self._scheduler.left(self, self._pool, self._slot)


class Scheduler:
    """Admission to all engines. Lives on the event loop; no locks, since nothing awaits between check and change."""

    def __init__(self, config: SchedulerConfig, on_run_end: Callable[[Run], None]) -> None:
        self._config = config
        self._on_run_end = on_run_end
        self.pools: dict[str, Pool[Ticket]] = {}
        self._seats: set[Seat] = set()
        self._queued_tokens = 0
        self.prompt_limit: PromptLimit | None = None
        self.draining = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def add_pool(self, name: str, supervisors: tuple[Supervisor[Any], ...]) -> Pool[Ticket]:
        """Serve `name` by these engines."""
        pool = self.pools[name] = Pool(name, supervisors, self._config.ageing_s)
        return pool

    @property
    def queued(self) -> int:
        """Runs that wait, over all pools."""
        return sum(len(pool.waiting) for pool in self.pools.values())

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the runs that wait."""
        return self._queued_tokens

    @property
    def running(self) -> int:
        """Runs that hold a seat, over all pools."""
        return len(self._seats)

    def capacity(self, pool: Pool[Ticket] | None) -> Capacity:
        """What is still admitted to `pool`; None: to all pools together. The queue's bounds hold over all of them."""
        queue, queue_tokens = self._config.queue_limit, self._config.queue_tokens
        pools = tuple(self.pools.values()) if pool is None else (pool,)
        requests = queue + sum(each.seats for each in pools)
        if self.draining or all(each.tripped for each in pools):
            return Capacity(requests, 0, CLOSED_RETRY_S, queue_tokens, 0, CLOSED_RETRY_S)
        seats_free = sum(each.free for each in pools if not each.tripped)
        return Capacity(
            requests=requests,
            requests_free=seats_free + max(0, queue - self.queued),
            requests_reset_s=max(_empty_s(each, running=each.running) for each in pools),
            tokens=queue_tokens,
            tokens_free=max(0, queue_tokens - self._queued_tokens),
            tokens_reset_s=self._queue_empty_s() if self._queued_tokens else 0.0,
        )

    def _queue_empty_s(self) -> float:
        return max(_empty_s(each, running=0) for each in self.pools.values())

    def submit(self, pool: Pool[Ticket], runs: Iterable[Run]) -> list[Ticket]:
        """Queue or seat all of `runs`, or none. Raises Refused."""
        runs = list(runs)
        if refusal := self._refusal(pool, runs):
            for run in runs:
                self._end(run, RunStatus.REJECTED, _reason(refusal))
            raise refusal
        tickets = [Ticket(run, pool, self) for run in runs]
        loop = asyncio.get_running_loop()
        for ticket in tickets:
            run = ticket.run
            pool.waiting.push(ticket, priority=run.priority, arrived_at=run.arrived_at)
            self._queued_tokens += len(run.prompt_token_ids)
        self._idle.clear()
        self.pump(pool)
        for ticket in tickets:
            if not ticket.seated.done():
                delay = max(0.0, ticket.run.deadline_at - time.monotonic())
                ticket.timer = loop.call_later(delay, self._expire, ticket)
        return tickets

    def pump(self, pool: Pool[Ticket]) -> None:
        """Seat whoever can be seated. Called when something arrived, a seat came free, or an engine changed state."""
        for each in pool.slots:
            each.note_state()
        if pool.tripped and len(pool.waiting):
            while (refused := pool.waiting.pop()) is not None:
                self._refuse(refused, self._unavailable(pool))
        while (slot := pool.place()) is not None and (ticket := pool.waiting.pop()) is not None:
            self._leave_queue(ticket)
            slot.taken += 1
            ticket.run.engine_id = slot.supervisor.id
            ticket.run.advance(RunStatus.RUNNING)
            seat = Seat(ticket.run, pool, slot, self)
            self._seats.add(seat)
            ticket.seated.set_result(seat)

    def withdraw(self, ticket: Ticket, reason: str) -> None:
        """The caller of `ticket` left. Idempotent."""
        if ticket.pool.waiting.discard(ticket):
            self._leave_queue(ticket)
            ticket.seated.cancel()
            self._end(ticket.run, RunStatus.ABORTED, reason)
        elif ticket.seated.done() and not ticket.seated.cancelled() and ticket.seated.exception() is None:
            ticket.seated.result().release(RunStatus.ABORTED, reason)

    def left(self, seat: Seat, pool: Pool[Ticket], slot: Slot) -> None:
        """A seat was given back; its run has ended."""
        self._seats.discard(seat)
        slot.taken -= 1
        run = seat.run
        if run.admitted_at is not None and run.status is RunStatus.FINISHED:
            pool.estimate.observe(time.monotonic() - run.admitted_at)
        self._on_run_end(run)
        self.pump(pool)
        self._note_idle()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new runs, let the others end within `timeout_s`, then interrupt what is left."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self.interrupt_all()

    def interrupt_all(self) -> None:
        """End every run now, with an error that says that the daemon is shutting down. Nothing is taken any more."""
        self.draining = self._closed = True
        error = Draining("The daemon is shutting down and could not wait longer.", retry_after_s=CLOSED_RETRY_S)
        for pool in self.pools.values():
            while (ticket := pool.waiting.pop()) is not None:
                self._refuse(ticket, error)
        for seat in list(self._seats):
            seat.interrupt(error)
        self._note_idle()

    async def forget(self, model: str, token_ids: Sequence[int], keep: int, cache_salt: str | None) -> int:
        """As Engine.forget, in all engines of `model`, for the steps of a run may have been on any. One that fails has forgotten.

        Returns how many tokens are not found any more, over all of them.
        """
        engines = [slot.supervisor.engine for slot in self.pools[model].slots if slot.ready]
        forgotten = 0
        for engine in filter(None, engines):
            try:
                forgotten += await engine.forget(token_ids, keep, cache_salt)
            except EngineFailure as error:
                _log.warning("an engine of %s did not forget a prompt: %s", model, error)
        return forgotten

    def _refusal(self, pool: Pool[Ticket], runs: list[Run]) -> Refused | None:
        continues = all(run.continues for run in runs)
        if self._closed or (self.draining and not continues):
            return Draining("The daemon is shutting down.", retry_after_s=CLOSED_RETRY_S)
        if pool.tripped:
            return self._unavailable(pool)
        if self.prompt_limit is not None and not continues and (long := self.prompt_limit.refusal(runs)) is not None:
            return long
        must_wait = runs[pool.free :]
        if not must_wait or continues:
            return None
        queued = self.queued
        retry_after_s = pool.estimate.retry_after_s(waiting=len(pool.waiting), seats=pool.seats)
        if queued + len(must_wait) > self._config.queue_limit:
            return QueueFull(
                f"The queue is full: {queued} requests wait, {self._config.queue_limit} may. "
                f"Try again in {retry_after_s:.1f} s.",
                retry_after_s=retry_after_s,
            )
        tokens = self._queued_tokens + sum(len(run.prompt_token_ids) for run in must_wait)
        if tokens > self._config.queue_tokens:
            return QueueFull(
                f"The queue is full: with this request {tokens} prompt tokens would wait, {self._config.queue_tokens} "
                f"may. Try again in {retry_after_s:.1f} s.",
                retry_after_s=retry_after_s,
            )
        wait_s = pool.estimate.wait_s(ahead=len(pool.waiting), seats=pool.seats) if pool.ready else None
        deadline_s = must_wait[0].deadline_at - time.monotonic()
        if wait_s is not None and wait_s > deadline_s:
            return QueueFull(
                f"The queue would take about {wait_s:.1f} s, longer than this request's deadline of {deadline_s:.1f} "
                f"s. Try again in {retry_after_s:.1f} s.",
                retry_after_s=retry_after_s,
            )
        return None

    def _unavailable(self, pool: Pool[Ticket]) -> EngineUnavailable:
        why = pool.last_error or "it is still loading"
        return EngineUnavailable(f"The model {pool.name} is not available: {why}", retry_after_s=CLOSED_RETRY_S)

    def _expire(self, ticket: Ticket) -> None:
        pool = ticket.pool
        if not pool.waiting.discard(ticket):
            return
        waited_s = time.monotonic() - ticket.run.arrived_at
        error: Refused
        if pool.ready:
            error = DeadlineExceeded(
                f"The request waited {waited_s:.1f} s for an engine, which was its deadline.",
                retry_after_s=pool.estimate.retry_after_s(waiting=len(pool.waiting), seats=pool.seats),
            )
        else:
            error = self._unavailable(pool)
        self._refuse(ticket, error)

    def _refuse(self, ticket: Ticket, error: Refused) -> None:
        self._leave_queue(ticket)
        ticket.seated.set_exception(error)
        ticket.seated.exception()  # marked as seen: the caller may have left in this very moment
        self._end(ticket.run, RunStatus.REJECTED, _reason(error))

    def _leave_queue(self, ticket: Ticket) -> None:
        self._queued_tokens -= len(ticket.run.prompt_token_ids)
        if ticket.timer is not None:
            ticket.timer.cancel()

    def _end(self, run: Run, status: RunStatus, reason: str) -> None:
        run.advance(status, reason)
        self._on_run_end(run)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._seats and not self.queued:
            self._idle.set()


def _empty_s(pool: Pool[Ticket], *, running: int) -> float:
    """Seconds until who waits for `pool`, and `running` besides, will have ended if nobody comes."""
    return pool.estimate.empty_s(waiting=len(pool.waiting), running=running, seats=pool.seats)


def _reason(error: AgentFlowError) -> str:
    """One word for metrics: the class's name in snake case (QueueFull -> queue_full)."""
    name = type(error).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")

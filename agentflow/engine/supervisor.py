"""Supervisor: the life of one engine slot.

    starting -> ready -> backing_off -> starting ...          stopped (final)
        └──────────────────^

An engine is never restarted: each start builds a fresh one. While it is ready, its `failure` is polled, and a *stall*
is looked for: work outstanding, and no progress for `stall_timeout_s` since the later of its last progress and the moment
when work became outstanding. A stalled engine is killed with EngineStalled as the reason that its running streams raise.
After any failure, a failed start included, what is left of the engine is killed, and the next start waits: `backoff_s` at
first, doubling up to `backoff_max_s`, and back to `backoff_s` after the engine has been ready for `HEALTHY_S`. An engine that
is to be renewed while it is ready is ended in the same way, with the caller's reason, and the next one starts at once.

All state belongs to the event loop. `on_change` is called, on the loop, after each change of state, stage or engine;
it must not raise or block. Cancelling `run` ends the engine's processes before the cancellation goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from agentflow.engine.protocol import EngineInfo, EngineStats, StartProgress
from agentflow.engine.stages import Stages
from agentflow.errors import EngineFailure, EngineStalled, EngineStartFailed
from agentflow.status import EngineState, EngineStatus

_log = logging.getLogger(__name__)

POLL_S = 0.1
HEALTHY_S = 60.0


class Supervised(Protocol):
    """What a Supervisor needs of an Engine or an Embedder."""

    @property
    def failure(self) -> EngineFailure | None: ...

    async def start(self, progress: Callable[[StartProgress], None]) -> EngineInfo: ...

    def stats(self) -> EngineStats: ...

    def kill(self, reason: EngineFailure | None = None) -> None: ...

    async def stop(self, timeout_s: float) -> None: ...


E = TypeVar("E", bound=Supervised)


class SupervisorLimits(Struct, frozen=True):
    """Times, in seconds, that a supervisor keeps (see SchedulerConfig)."""

    start_timeout_s: float = 1200.0
    stall_timeout_s: float = 60.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    kill_timeout_s: float = 5.0


class Supervisor(Generic[E]):
    """Keeps one engine alive. `run` does the work; put it in a TaskGroup."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the name it has in EngineStatus
        factory: Callable[[], E],
        limits: SupervisorLimits,
        on_change: Callable[[Supervisor[E]], None] = lambda _: None,
    ) -> None:
        self.id = id
        self._factory = factory
        self._limits = limits
        self._on_change = on_change
        self._state: EngineState = "starting"
        self._stage = ""
        self._fraction: float | None = None
        self._current: E | None = None
        self._info: EngineInfo | None = None
        self._stages = Stages()
        self._ready_at = 0.0
        self._restarts = 0
        self._last_error: str | None = None
        self._renewal: EngineFailure | None = None  # why the engine is to be replaced
        self._stop_timeout_s: float | None = None
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._running = False

    @property
    def engine(self) -> E | None:
        """The engine, while it takes work."""
        return self._current if self._state == "ready" else None

    @property
    def info(self) -> EngineInfo | None:
        """What the engine turned out to be; kept while a new one starts."""
        return self._info

    @property
    def state(self) -> EngineState:
        """Where it stands; cheaper than `status`."""
        return self._state

    def status(self) -> EngineStatus:
        """A snapshot."""
        failure = self._current.failure if self._current else None
        ready = self._state == "ready" and failure is None
        return EngineStatus(
            id=self.id,
            # A failed engine is told as such at once, not only when the next look at it has been taken.
            state="backing_off" if failure and self._state == "ready" else self._state,
            stage=self._stage,
            fraction=self._fraction,
            info=self._info,
            stats=self._current.stats() if ready and self._current else EngineStats(),
            restarts=self._restarts,
            last_error=str(failure) if failure else self._last_error,
            uptime_s=time.monotonic() - self._ready_at if ready else 0.0,
            start_s=self._stages.took(),
        )

    async def run(self) -> None:
        """Start, watch and replace the engine until `stop` or cancellation."""
        self._running = True
        backoff_s = self._limits.backoff_s
        try:
            while not self._stopping.is_set():
                lived_s = await self._one_life()
                if self._stopping.is_set():
                    break
                if self._renewal is not None:
                    self._renewal = None
                    self._restarts += 1
                    continue
                backoff_s = self._limits.backoff_s if lived_s >= HEALTHY_S else backoff_s
                self._set("backing_off", f"retry in {backoff_s:g} s")
                await self._sleep(backoff_s)
                backoff_s = min(backoff_s * 2, self._limits.backoff_max_s)
                self._restarts += 1
        finally:
            self._current = None
            self._set("stopped")
            self._stopped.set()

    async def renew(self, why: EngineFailure) -> None:
        """Replace the engine by a fresh one; what runs on it raises `why`. Returns when that is ready, or will not be soon.

        Does nothing while none is ready: a fresh one is on its way then. Cancelled before it has begun, it leaves the engine be.
        """
        if self._state != "ready" or self._renewal is not None:
            return
        self._renewal = why
        try:
            while True:
                await asyncio.sleep(POLL_S)
                if not self._renewing():
                    return
        finally:
            if self._state == "ready":  # cancelled, and not begun: the engine works on
                self._renewal = None

    def _renewing(self) -> bool:
        return not self._stopped.is_set() and (self._renewal is not None or self._state == "starting")

    async def stop(self, timeout_s: float) -> None:
        """End the engine in order, by force after `timeout_s`; returns when nothing of it is left. Idempotent."""
        if self._stop_timeout_s is None:
            self._stop_timeout_s = timeout_s
        self._stopping.set()
        if self._running:
            await self._stopped.wait()
        else:
            self._set("stopped")
            self._stopped.set()

    async def _one_life(self) -> float:
        """Build, start and watch one engine, and leave nothing of it. Returns how many seconds it was ready."""
        self._set("starting")
        self._stages = Stages()
        engine = self._factory()
        ready_at: float | None = None
        try:
            info = await self._start(engine)
            if info is None:
                return 0.0
            ready_at = self._ready_at = time.monotonic()
            self._stages.reach(None, ready_at)
            self._current, self._info, self._last_error = engine, info, None
            self._set("ready")
            await self._watch(engine)
        finally:
            self._current = None
            timeout_s = self._stop_timeout_s if self._stopping.is_set() else None
            if timeout_s is None:
                engine.kill()
            await _finish(engine.stop(self._limits.kill_timeout_s if timeout_s is None else timeout_s))
        return time.monotonic() - ready_at

    async def _start(self, engine: E) -> EngineInfo | None:
        """The started engine's info, or None if it failed (the reason is in `_last_error`) or was told to stop."""
        start = asyncio.ensure_future(engine.start(self._note_progress))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({start, stop}, timeout=self._limits.start_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                return start.result()
            if not stop.done():
                self._last_error = (
                    f"did not start within {self._limits.start_timeout_s:g} s "
                    f"(last stage: {self._stage or 'none'}); raise scheduler.start_timeout_s if it needs longer"
                )
        except (EngineStartFailed, EngineFailure) as error:
            self._last_error = str(error)
        except Exception as error:  # noqa: BLE001 - foreign code
            # An engine is foreign code: whatever its start raises costs this start, and never the daemon.
            _log.exception("engine %s did not start", self.id)
            self._last_error = f"{type(error).__name__}: {error}"
        finally:
            for task in (start, stop):
                task.cancel()
            await asyncio.gather(start, stop, return_exceptions=True)
        return None

    async def _watch(self, engine: E) -> None:
        """Return when the engine has failed, or is told to stop."""
        busy_since: float | None = None
        while not self._stopping.is_set():
            failure = engine.failure
            if failure is None and self._renewal is not None:
                self._set("starting", "ending the engine before")
                engine.kill(self._renewal)
                return
            if failure is None:
                stats = engine.stats()
                now = time.monotonic()
                busy_since = (busy_since or now) if stats.outstanding > 0 else None
                if busy_since and now - max(busy_since, stats.last_progress_at) > self._limits.stall_timeout_s:
                    failure = EngineStalled(
                        f"the engine had {stats.outstanding} sequences and made no token for "
                        f"{self._limits.stall_timeout_s:g} s"
                    )
                    engine.kill(failure)
            if failure is not None:
                self._last_error = str(failure)
                return
            await self._sleep(POLL_S)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until `stop`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _note_progress(self, progress: StartProgress) -> None:
        if self._state == "starting":
            self._stages.reach(progress.stage, time.monotonic())
            self._set("starting", progress.stage, progress.fraction)

    def _set(self, state: EngineState, stage: str = "", fraction: float | None = None) -> None:
        if (self._state, self._stage, self._fraction) == (state, stage, fraction):
            return
        self._state, self._stage, self._fraction = state, stage, fraction
        self._on_change(self)


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end, even when cancelled meanwhile; the cancellation goes on afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise

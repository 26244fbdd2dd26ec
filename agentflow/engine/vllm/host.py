"""EngineHost: the life of one AsyncLLM and its processes, for engines and embedders alike.

Importing vLLM takes seconds and AsyncLLM's constructor blocks until the model is loaded, so both run in a thread of their own
while the event loop goes on. That thread then stays, doing nothing, until the engine has ended: the kernel counts the *thread*
that spawned a process as its parent, and would kill EngineCore at the thread's end (see child.py).

    start      thread: import, construct (spawns EngineCore, and with it workers, if any)    loop: reads their output
    running    loop: sends and receives over ZMQ sockets, which are used from the loop's thread only
    failure    a process ended, or vLLM calls the engine dead: final
    kill       SIGKILL to every process; `failure` is set before it returns
    stop       as kill, then shared memory and files are removed and the thread ends

There is no gentler end: the processes hold nothing that is worth saving, and vLLM's own takes them six seconds.

ZMQ sockets that were made outside a loop bind to the first loop that uses them, which is the daemon's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, cast

from agentflow.engine.imports import heavy_imports
from agentflow.engine.vllm import leftovers
from agentflow.engine.vllm.childlog import ChildLog
from agentflow.engine.vllm.processes import Processes
from agentflow.engine.vllm.spawning import spawning
from agentflow.engine.vllm.startup import IMPORTING, INITIALIZING, MODULES, Startup
from agentflow.engine.vllm.tuning import ONE_PROCESS, EngineChoices
from agentflow.errors import EngineDied, EngineFailure, EngineStartFailed, SequenceFailed

CALL_S = 30.0  # an engine that is at work looks up between two steps; one that does not in this time is stuck


class EngineHost:
    """Starts, watches and ends one AsyncLLM. Use it from the loop's thread only, once."""

    def __init__(self, on_failure: Callable[[EngineFailure], None] = lambda _: None) -> None:
        self.llm: Any = None
        self.processes = Processes()
        self._on_failure = on_failure
        self._failure: EngineFailure | None = None
        self._log: ChildLog | None = None
        self._thread: threading.Thread | None = None
        self._unwanted = threading.Event()
        self._built = threading.Event()
        self._over = threading.Event()
        self._folder: Path | None = None
        self._shared_memory: frozenset[str] = frozenset()
        self._stopped = False

    @property
    def failure(self) -> EngineFailure | None:
        """Why the engine cannot work any more; notices by itself that a process ended."""
        running = self._failure is None and self.llm is not None and not self._stopped
        if running and (self.llm.errored or self.processes.root_ended()):
            self.fail(EngineDied(self._obituary()))
        return self._failure

    def fail(self, failure: EngineFailure) -> None:
        """Note why the engine cannot go on, the first time, and tell so."""
        if self._failure is None:
            self._failure = failure
            self._on_failure(failure)

    def fail_by(self, error: Exception) -> None:
        """The connection to the engine broke with `error`: note it, and why the processes say it happened."""
        if self._failure is None:
            failure = EngineDied(self._obituary())
            failure.__cause__ = error
            self.fail(failure)

    async def start(self, choices: EngineChoices, startup: Startup) -> None:
        """Bring AsyncLLM up. Raises EngineStartFailed. When cancelled, it ends what it had begun."""
        await asyncio.to_thread(leftovers.remove_what_the_dead_left)
        resource_tracker.ensure_running()  # by this thread: it serves the whole process and is not this engine's child
        try:
            self._folder = leftovers.new_folder()
            self._log = ChildLog(startup.reach)
        except OSError as error:
            raise EngineStartFailed(f"no temporary folder or pipe for the engine: {error}") from error
        loop = asyncio.get_running_loop()
        environment = choices.environment | {"TMPDIR": str(self._folder), "VLLM_RPC_BASE_PATH": str(self._folder)}
        built: asyncio.Future[Any] = loop.create_future()
        self._thread = threading.Thread(
            target=self._live,
            args=(spawning(environment, self._log.writing_fd, self._folder.name), choices.args, loop, built),
            name="vllm",
            daemon=True,
        )
        startup.reach(IMPORTING)
        modules = len(sys.modules)
        self._thread.start()
        try:
            while not built.done():
                await asyncio.wait({built}, timeout=0.1)
                self._find_processes()
                if startup.stage == IMPORTING and self.processes.pids:
                    startup.reach(INITIALIZING)  # before it has said a word: it imports all of it once more
                elif startup.stage == IMPORTING:
                    startup.reach(IMPORTING, (len(sys.modules) - modules) / MODULES)
            self.llm = built.result()
        except BaseException as error:
            self._unwanted.set()
            built.cancel()
            self.kill()
            if not isinstance(error, Exception) or isinstance(error, EngineStartFailed):
                raise
            raise EngineStartFailed(f"vLLM did not start: {self._log.root_cause() or _sentence(error)}") from error
        self.processes.forget_the_dead()
        self._shared_memory = frozenset().union(*map(leftovers.shared_memory_of, self.processes.pids))

    async def call(self, method: str, failed: str, *args: Any) -> int:
        """The number that EngineCore's `method` returns, between two of its steps. Raises EngineFailure, which says `failed`."""
        if (failure := self.failure) is not None or self.llm is None:
            raise failure.again() if failure is not None else EngineDied("the engine has not been started")
        try:
            async with asyncio.timeout(CALL_S):
                return int(await self.llm.engine_core.call_utility_async(method, *args))
        except Exception as error:  # vLLM raises no narrower one
            raise (self.failure or SequenceFailed(f"{failed}: {error}")).again() from error

    def kill(self, reason: EngineFailure | None = None) -> None:
        """SIGKILL to every process, now."""
        self._find_processes()
        self.fail(reason or EngineDied("the engine was killed"))
        self.processes.kill()

    async def stop(self, timeout_s: float) -> None:
        """End the engine and all its processes, which may take `timeout_s` to be gone. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._unwanted.set()
        self.fail(EngineDied("the engine was stopped"))
        await self._end_processes(timeout_s)
        if self.llm is not None:
            context = self.llm.engine_core.resources.ctx
            await asyncio.to_thread(self.llm.shutdown, 0.0)  # reaps the dead; sockets are closed by the loop
            await asyncio.sleep(0)
            context.destroy(linger=0)  # vLLM never does: each engine would leave its threads and descriptors
            self.llm.shutdown = _nothing  # its __del__ calls it, perhaps when the interpreter has no modules any more
        self.llm = None
        self._over.set()
        leftovers.remove_shared_memory(self._shared_memory, self.processes.pids)
        if self._folder is not None:
            leftovers.remove_semaphores(self._folder)
            await asyncio.to_thread(leftovers.remove_folder, self._folder)
        self.processes.close()
        if self._log is not None:
            self._log.close()

    async def _end_processes(self, timeout_s: float) -> None:
        """Kill until nothing is left; the thread may still be about to spawn."""
        deadline = time.monotonic() + timeout_s
        while True:
            building = self._thread is not None and not self._built.is_set()
            self._find_processes()
            self.processes.kill()
            if (self.processes.gone() and not building) or time.monotonic() >= deadline:
                return
            await asyncio.sleep(0.02)

    def _find_processes(self) -> None:
        if self._thread is not None and self._thread.native_id is not None and self._thread.is_alive():
            self.processes.find(self._thread.native_id)

    def _obituary(self) -> str:
        cause = self._log.root_cause() if self._log is not None else None
        return f"the engine's process ended: {cause}" if cause else "the engine's process ended unexpectedly"

    def _live(
        self,
        spawning: contextlib.AbstractContextManager[None],
        args: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        built: asyncio.Future[Any],
    ) -> None:
        """The thread's life: make AsyncLLM, hand it over, stay until the engine has ended."""
        llm: Any = None
        failure: BaseException | None = None
        try:
            with spawning:
                llm = _construct(args, self._unwanted)
        except BaseException as error:  # noqa: BLE001 - raised where start() waits
            failure = error
            _close_contexts(error)
        self._built.set()

        def hand_over() -> None:
            if built.done():  # start() was cancelled
                if llm is not None:
                    llm.shutdown(0.0)
            elif failure is not None:
                built.set_exception(failure)
            else:
                built.set_result(llm)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(hand_over)
        self._over.wait()


def _sentence(error: Exception) -> str:
    """What an exception says, without the frame that pydantic puts around it."""
    text = str(error)
    found = re.search(r"(?:Value|Assertion) error, (.+?)(?: \[type=|\n|$)", text)
    if found:
        return found[1].rstrip(".")
    if refused := re.search(r"^\d+ validation errors? for \w+\n(\S+)\n\s+(.+?)(?: \[type=|\n|$)", text):
        return f"engine_args: {refused[1]}: {refused[2]}".rstrip(".")
    kind = type(error).__name__
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line.rstrip(".") if line and kind in ("ValueError", "RuntimeError") else f"{kind}: {line}".rstrip(": .")


def _close_contexts(error: BaseException) -> None:
    """Close the ZMQ context, with its threads and descriptors, that AsyncLLM left open when it failed with `error`."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        context = frame.f_locals.get("sync_ctx")
        if context is not None:
            context.destroy(linger=0)


def _nothing() -> None: ...


def _construct(args: dict[str, Any], unwanted: threading.Event) -> Any:
    """AsyncLLM with its processes, ready to work. Takes seconds to minutes; spawns nothing once it is `unwanted`."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with heavy_imports():
        from vllm.config import StructuredOutputsConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.metrics.loggers import PrometheusStatLogger

    class NoMetrics(PrometheusStatLogger):  # type: ignore[misc]
        """Makes EngineCore send its figures, and keeps vLLM's own metrics out of the daemon's registry."""

        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None: ...

        def log_engine_initialized(self) -> None: ...

        def record(self, *_: Any, **__: Any) -> None: ...

    args = dict(args)
    structured = args.get("structured_outputs_config")
    if isinstance(structured, dict):
        args["structured_outputs_config"] = StructuredOutputsConfig(**structured)
    try:
        engine_args = AsyncEngineArgs(**args)
    except TypeError as error:
        raise EngineStartFailed(f"engine_args holds what AsyncEngineArgs does not know: {error}") from error
    with heavy_imports():  # it looks at the model's configuration through transformers
        config = engine_args.create_engine_config()
    if unwanted.is_set():
        raise EngineStartFailed("the start was given up")
    with _bound_threads(config):
        return AsyncLLM.from_vllm_config(config, stat_loggers=[NoMetrics], disable_log_stats=True)


def _bound_threads(config: Any) -> contextlib.AbstractContextManager[None]:
    """Within, EngineCore gets what vLLM tells a worker of a CPU engine about its threads, if it is to run the model itself.

    OpenMP reads it from the environment when the process begins; vLLM's executor of one process comes too late for it.
    """
    if config.parallel_config.distributed_executor_backend != ONE_PROCESS:
        return contextlib.nullcontext()
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    return cast("contextlib.AbstractContextManager[None]", OMPProcessManager(config).configure_omp_envs(0, 0))

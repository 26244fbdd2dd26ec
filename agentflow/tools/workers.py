"""Workers: the pool of processes that run the functions of one module, a call each.

Begun when a call needs one, or before (`warm`), and kept: at most `source.workers`. A call takes the one that was used last,
and waits for its turn if all are taken; it never waits behind an import where a worker is idle. A worker that was killed (its
call took too long, or was cancelled) or that died is replaced up to `source.warm`, without anybody waiting for it. When a
start fails, so do all calls that wait, with its reason: the module is at fault, and the next call tries again. Where the process
was killed over it the module need not be at fault: the reason says that, and that another try may help.

What a function starts and leaves running when it returns goes on beside the worker, which is used again, and ends with it.

All state belongs to the event loop. Processes are begun by one thread of the pool's own, with which they would die.
`close` ends all of them; so does the kernel when the daemon is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from agentflow.tools import wire
from agentflow.tools.errors import (
    InvalidArguments,
    InvalidTool,
    ToolDied,
    ToolError,
    ToolFailed,
    ToolTimeout,
    ToolUnavailable,
)
from agentflow.tools.printed import Taken
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.secrets import Secrets
from agentflow.tools.tool import CallContext, Content, ToolOutput
from agentflow.tools.toollog import log_failure, log_printed
from agentflow.tools.wire import Answered, Described, Failed, Ready, Start, WireError
from agentflow.tools.workerprocess import WorkerProcess

_MIB: Final = 1 << 20
_CLOSED: Final = "The tools are being shut down."
_log = logging.getLogger(__name__)


class Workers:
    """For one source. `environment`: all that the processes have of one. Used from one event loop; close it."""

    def __init__(self, source: PythonSource, environment: Mapping[str, str]) -> None:
        self._source = source
        self._environment = dict(environment)
        self._secrets = Secrets({}, [environment[name] for name in source.environment if name in environment])
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tool-workers")
        self._all: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._waiting: deque[asyncio.Future[WorkerProcess]] = deque()
        self._starts: set[asyncio.Task[ToolError | None]] = set()
        self._tools: tuple[Described, ...] | None = None
        self._closed = False

    @property
    def pids(self) -> frozenset[int]:
        """Of the processes that there are."""
        return frozenset(worker.pid for worker in self._all)

    @property
    def idle(self) -> int:
        """Workers that wait for a call."""
        return len(self._idle)

    async def describe(self) -> tuple[Described, ...]:
        """The module's tools, as a worker tells them. Raises InvalidTool, with the file, the line and what to do."""
        if self._tools is None:
            self._give(await self._take())
        assert self._tools is not None
        return self._tools

    async def warm(self, count: int) -> None:
        """Have so many workers, or as many as there may be, with the module imported. Raises as `describe`."""
        if self._closed:
            raise ToolUnavailable(_CLOSED)
        for _ in range(min(count, self._source.workers) - len(self._all) - len(self._starts)):
            self._begin()
        if self._starts:
            done, _ = await asyncio.wait(self._starts)
            for reason in [start.result() for start in done if not start.cancelled()]:
                if reason is not None:
                    raise reason

    async def call(self, name: str, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """Run the function of the tool `name` in a worker. Raises ToolError.

        At the context's deadline, and when it is cancelled, the worker and all that it started are dead before this returns.
        """
        try:
            frame = wire.encode(wire.call(name, arguments, context))
        except WireError as error:
            raise InvalidArguments(f"The arguments are too much for the tool {name}: {error}.") from error
        worker: WorkerProcess | None = None
        try:
            async with asyncio.timeout(context.deadline_at - time.monotonic()):
                worker = await self._take()
                reply = await worker.ask(frame)
        except TimeoutError as error:
            raise await self._too_late(name, worker, context) from error
        except ToolDied as error:
            assert worker is not None
            why = f"The tool {name} did not end its work: {error}."
            self._log_failure(name, context, why, await self._end(worker))
            if self._closed:
                raise ToolUnavailable(_CLOSED) from error
            raise ToolDied(why) from error
        except asyncio.CancelledError:
            if worker is not None:
                late = time.monotonic() >= context.deadline_at
                why = f"The tool {name} {'took too long' if late else 'was cancelled'}, and was ended."
                self._log_failure(name, context, why, await self._end(worker))
            raise
        if isinstance(reply, Answered) or (isinstance(reply, Failed) and not reply.spent):
            printed = worker.printed(self._secrets)
            self._give(worker)
        else:
            printed = await self._end(worker)
        if isinstance(reply, Failed):
            self._log_failure(name, context, reply.message, printed, reply.trace)
        else:
            log_printed(name, context, printed)
        return _output(name, reply, context)

    async def close(self) -> None:
        """End all workers; calls that wait, or that run, fail. Idempotent."""
        self._closed = True
        self._fail_waiting(ToolUnavailable(_CLOSED))
        for start in tuple(self._starts):
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        for worker in self._all:
            worker.kill()
        await asyncio.gather(*(worker.end() for worker in tuple(self._all)))
        await asyncio.to_thread(self._thread.shutdown)

    # Taking and giving back

    async def _take(self) -> WorkerProcess:
        if self._closed:
            raise ToolUnavailable(_CLOSED)
        while self._idle:
            if (worker := self._idle.pop()).alive:
                return worker
        place: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._balance()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._give(place.result())
            raise

    def _give(self, worker: WorkerProcess) -> None:
        if not worker.alive:
            return
        while self._waiting:
            if not (place := self._waiting.popleft()).done():
                place.set_result(worker)
                return
        self._idle.append(worker)

    async def _too_late(self, name: str, worker: WorkerProcess | None, context: CallContext) -> ToolError:
        if worker is None:
            return ToolUnavailable(f"All processes for the tool {name} were taken for too long. Try again later.")
        why = f"The tool {name} took too long, and was ended."
        self._log_failure(name, context, why, await self._end(worker))
        return ToolTimeout(why)

    async def _end(self, worker: WorkerProcess) -> Taken:
        """Returns what it printed last."""
        worker.kill()
        await worker.end()
        return worker.printed(self._secrets)

    def _log_failure(self, name: str, context: CallContext, why: str, printed: Taken, trace: str = "") -> None:
        log_failure(name, context, why, trace=trace, printed=printed, secrets=self._secrets)

    def _fail_waiting(self, reason: ToolError) -> None:
        while self._waiting:
            if not (place := self._waiting.popleft()).done():
                place.set_exception(type(reason)(str(reason)))  # one each: whoever raises it adds to it

    # Beginning and ending

    def _balance(self) -> None:
        """Begin as many as are waited for, within what there may be; and as many as are to be warm."""
        waiting = sum(not place.done() for place in self._waiting)
        wanted = max(waiting - len(self._starts), self._source.warm - len(self._all) - len(self._starts))
        for _ in range(min(wanted, self._source.workers - len(self._all) - len(self._starts))):
            self._begin()

    def _begin(self) -> None:
        start = asyncio.get_running_loop().create_task(self._start())
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)

    async def _start(self) -> ToolError | None:
        """Have one more worker, for the first who waits; or fail all who wait, and return the reason."""
        me = asyncio.current_task()
        try:
            worker = await self._started()
        except ToolError as error:
            self._fail_waiting(error)
            _log.warning("a process for tools did not start: %s", error)
            return error
        finally:
            if me is not None:
                self._starts.discard(me)
        self._all.add(worker)
        self._give(worker)
        return None

    async def _started(self) -> WorkerProcess:
        source = self._source
        try:
            worker = await WorkerProcess.begin(self._environment, self._thread, self._over)
        except OSError as error:
            raise ToolUnavailable(
                f"No process could be started for {source.module}: {error}. Try again later."
            ) from error
        try:
            async with asyncio.timeout(source.start_timeout_s):
                reply = await worker.ask(
                    Start(source.place, source.folders, source.memory_mb * _MIB, source.open_files)
                )
        except TimeoutError as error:
            worker.kill()
            await worker.end()
            raise InvalidTool(
                f"{source.module}: importing it took more than {source.start_timeout_s:g} s: let it do less when it is "
                "imported, or raise start_timeout_s."
            ) from error
        except (ToolDied, WireError) as error:
            await worker.end()
            words = worker.last_words()
            told = f"{error}{': ' * bool(words)}{words}"
            if worker.killed_by is not None:  # which is no fault of the module, or may be none
                raise ToolUnavailable(
                    f"{source.module}: it was being imported, and {told}: try again later."
                ) from error
            raise InvalidTool(f"{source.module}: it could not be imported: {told}: correct the module.") from error
        except BaseException:
            worker.kill()
            await worker.end()
            raise
        if not isinstance(reply, Ready):
            await worker.end()
            raise InvalidTool(reply.message if isinstance(reply, Failed) else f"{source.module}: no tools were told.")
        self._tools = self._tools or reply.tools
        log_printed(source.module, None, worker.printed(self._secrets))
        return worker

    def _over(self, worker: WorkerProcess) -> None:
        """A process has ended, whatever the reason."""
        at_work = worker in self._all and worker not in self._idle
        self._all.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        # One that cannot start, or that dies while it is idle, would do so again and again: it waits until somebody calls.
        if at_work and not self._closed:
            self._balance()


def _output(name: str, reply: wire.Reply, context: CallContext) -> ToolOutput:
    if isinstance(reply, Failed):
        raise InvalidArguments(reply.message) if reply.invalid else ToolFailed(reply.message, again=reply.again)
    if not isinstance(reply, Answered):
        raise ToolDied(f"The tool {name} did not end its work: its process said what it must not.")
    if reply.text is None:
        return ToolOutput(Content(context.result_path, reply.size, reply.media_type))
    return ToolOutput(reply.text)

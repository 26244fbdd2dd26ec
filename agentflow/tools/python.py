"""Python functions as tools: each runs in a worker process, or in the daemon if it says so and is trusted.

A module is imported by a worker first, which tells its tools. Only one that the configuration trusts is imported here too,
for the functions of it that are `@tool(trusted=True)`: the author asks for it, and the operator allows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentflow.tools import wire
from agentflow.tools.function import Function
from agentflow.tools.pythonsource import PythonSource
from agentflow.tools.result import failure, finished, trace_of
from agentflow.tools.tool import CallContext, Content, Tool, ToolOutput, ToolSpec
from agentflow.tools.toollog import log_failure
from agentflow.tools.toolmodule import load_functions
from agentflow.tools.workers import Workers


class ProcessTool:
    """A function that runs in a worker."""

    def __init__(self, spec: ToolSpec, workers: Workers) -> None:
        self.spec = spec
        self._workers = workers

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """See Tool. At its timeout, and when cancelled, its process is killed."""
        return await self._workers.call(self.spec.name, arguments, context)


class TrustedTool:
    """A function that runs in the daemon: an async one on the loop, a plain one in a thread of its own.

    A plain one that is cancelled goes on to its end all the same, and holds one of its `concurrency` threads so long.
    """

    def __init__(self, function: Function) -> None:
        self.spec = function.spec
        self._function = function
        self._threads = ThreadPoolExecutor(function.spec.concurrency, thread_name_prefix=f"tool-{function.spec.name}")

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """See Tool."""
        function, name = self._function, self.spec.name
        if not function.is_async:
            return ToolOutput(await self._in_thread(_run, function, wire.blobs(arguments), context))
        with _failures(name, context):
            ready = await self._in_thread(function.arguments, wire.blobs(arguments), context)
            value = await function.code(**ready)
            return ToolOutput(await self._in_thread(finished, value, name, context.result_path))

    def close(self) -> None:
        """Take no more calls. Does not wait for what runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        call = functools.partial(contextvars.copy_context().run, work, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _run(function: Function, given: dict[str, Any], context: CallContext) -> str | Content:
    name = function.spec.name
    with _failures(name, context):  # here, since no StopIteration passes through a future
        return finished(function.code(**function.arguments(given, context)), name, context.result_path)


@contextlib.contextmanager
def _failures(name: str, context: CallContext) -> Iterator[None]:
    """Whatever the block raises is logged, and a ToolError."""
    try:
        yield
    except (Exception, SystemExit) as error:
        told = failure(error, name)
        log_failure(name, context, str(told), trace="" if told is error else trace_of(error))
        if told is error:
            raise
        raise told from error


class PythonTools:
    """The tools of one module, and the processes behind them. Close it."""

    def __init__(self, tools: tuple[Tool, ...], workers: Workers, trusted: tuple[TrustedTool, ...]) -> None:
        self.tools = tools
        self._workers = workers
        self._trusted = trusted

    @classmethod
    async def open(cls, source: PythonSource, environment: Mapping[str, str]) -> PythonTools:
        """Find a module's tools. `environment`: see allowed_environment. Raises InvalidTool, ToolUnavailable."""
        workers = Workers(source, environment)
        try:
            described = await workers.describe()
            here: dict[str, Function] = {}
            if source.trusted and any(each.trusted for each in described):
                here = await asyncio.to_thread(load_functions, source.place, source.folders)
        except BaseException:
            await workers.close()
            raise
        trusted = {name: TrustedTool(function) for name, function in here.items() if function.trusted}
        tools = [trusted.get(each.spec.name) or ProcessTool(each.spec, workers) for each in described]
        return cls(tuple(tools), workers, tuple(trusted.values()))

    async def warm(self, count: int) -> None:
        """Have so many processes ready. Raises InvalidTool, ToolUnavailable."""
        await self._workers.warm(count)

    async def close(self) -> None:
        """End all processes. Idempotent."""
        for tool in self._trusted:
            tool.close()
        await self._workers.close()

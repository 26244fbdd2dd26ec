"""Toolbox: the tools that there are, and all that is the same for every one of them.

A call has two halves, and whoever calls may write down in between that it will be made:

    prepare   finds the tool; JSON text becomes arguments that fit its schema; handles become the Content that they stand
              for, which stays until the call is over. Quick; tells what is wrong with the call as a ToolError.
    run       makes the call. It never raises: what goes wrong is an outcome like any other.

A try is one call of the tool, in a task of its own. Waiting for one of its `concurrency` places counts against its time
(`timeout_s`). What failed and could succeed a moment later is tried again, if the tool is idempotent, after a pause that
doubles each time and is partly chance. All tries together have `within_s`.

Invariants. What a tool raises, returns or writes touches its own call alone. What it wrote and nobody kept is gone when
the call is over, also after a cancellation. A tool that will not be cancelled is left behind after a few seconds: it keeps its
place, so that no more of them run than may, and what it gives is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from agentflow.nearest import did_you_mean, nearest
from agentflow.tools.arguments import parsed, places_of_handles
from agentflow.tools.errors import (
    InvalidArguments,
    InvalidTool,
    ToolError,
    ToolFailed,
    ToolTimeout,
    ToolUnavailable,
    UnknownTool,
)
from agentflow.tools.handles import HandleStore
from agentflow.tools.outcome import Outcome, Reader, Reading, clipped
from agentflow.tools.schemacheck import ArgumentCheck
from agentflow.tools.tool import CallContext, Content, Tool, ToolOutput, ToolSpec

__all__ = ["CallId", "Outcome", "Prepared", "Toolbox"]

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 8.0

_log = logging.getLogger(__name__)


class CallId(Struct, frozen=True):
    """Which call of which run of which tenant it is."""

    tenant: str
    run_id: str
    call_id: str


@dataclass(slots=True)
class Prepared:
    """A call that may be made: with arguments that fit. `coerced`: what was read otherwise than the model wrote it.

    `held`: the contents among the arguments, by handle, which stay until `run` is over or it is dropped.
    """

    spec: ToolSpec
    tenant: str
    arguments: dict[str, Any]
    coerced: tuple[str, ...] = ()
    held: dict[str, Content] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """A tool in the box."""

    tool: Tool
    check: ArgumentCheck
    free: asyncio.Semaphore


class Toolbox:
    """Used on the event loop. Raises InvalidTool for two tools of one name, and for a tool that cannot be called.

    `grace_s`: how long a cancelled tool may take to end.
    """

    def __init__(self, tools: Iterable[Tool], handles: HandleStore, *, grace_s: float = 5.0) -> None:
        self._grace_s = grace_s
        self._handles = handles
        self._reader = Reader(handles)
        self._places: dict[str, _Place] = {}
        self._calls: set[asyncio.Task[ToolOutput]] = set()  # the loop itself holds tasks weakly
        self.version = 0
        self.changing = False  # tools may come later: a name that is not there is no mistake
        self.renew(tools)

    def renew(self, tools: Iterable[Tool]) -> None:
        """Have these tools from now on. Calls that are under way go on. `version` is another one then.

        Raises InvalidTool as the constructor does; then all is as it was.
        """
        places: dict[str, _Place] = {}
        for tool in tools:
            name, spec = tool.spec.name, tool.spec
            if name in places:
                raise InvalidTool(f"Two tools are called {name}. Rename one of them.")
            old = self._places.get(name)
            if old is not None and old.tool.spec == spec:
                places[name] = _Place(tool, old.check, old.free)  # whose calls count still
                continue
            _check(spec)
            places[name] = _Place(tool, ArgumentCheck(name, spec.parameters), asyncio.Semaphore(spec.concurrency))
        self._places = places
        self.version += 1

    # What there is

    def specs(self, names: Iterable[str] = ("*",)) -> tuple[ToolSpec, ...]:
        """The tools of these names, each once. A name that ends in `*` stands for all that begin so, which may be none.

        Raises UnknownTool, unless tools come and go (`changing`): then those are given that are there.
        """
        found: dict[str, ToolSpec] = {}
        for name in names:
            if self.changing and name not in self._places and not name.endswith("*"):
                continue
            found |= {key: self._place(key).tool.spec for key in self._matching(name)}
        return tuple(found.values())

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that stand for no tool that is there now, whether tools come and go or not."""
        return tuple(name for name in names if not any(key in self._places for key in self._matching(name)))

    def _matching(self, name: str) -> list[str]:
        return [key for key in self._places if key.startswith(name[:-1])] if name.endswith("*") else [name]

    def _place(self, name: str) -> _Place:
        if (place := self._places.get(name)) is None:
            raise UnknownTool(f"There is no tool {name[:64]!r}.{did_you_mean(nearest(name, self._places))}")
        return place

    async def erase(self, tenant: str) -> None:
        """Remove what is kept of a tenant's results. After its runs have ended."""
        await self._handles.erase(tenant)

    async def forget(self, tenant: str, run_id: str) -> None:
        """Remove what is kept of a run's results. After it has ended."""
        await self._handles.forget(tenant, run_id)

    # Before the call

    def prepare(self, tenant: str, name: str, arguments: str) -> Prepared:
        """Make a call of the JSON text that a model wrote. Raises UnknownTool, InvalidArguments, UnknownHandle, ToolFailed.

        `run` or `drop` must follow.
        """
        place = self._place(name)
        try:
            prepared = Prepared(place.tool.spec, tenant, parsed(arguments))
        except InvalidArguments as error:
            raise InvalidArguments(f"{error} {place.check.fields()}") from error
        try:
            self._resolve(prepared)
            prepared.arguments, prepared.coerced = place.check.check(prepared.arguments)
            if prepared.coerced:  # a list that was written as a text can have handles in it
                self._resolve(prepared)
        except BaseException:
            self.drop(prepared)
            raise
        return prepared

    def _resolve(self, prepared: Prepared) -> None:
        for around, key in places_of_handles(prepared.arguments):
            handle = around[key]
            if handle not in prepared.held:
                prepared.held[handle] = self._handles.hold(prepared.tenant, handle)
            around[key] = prepared.held[handle]

    def drop(self, prepared: Prepared) -> None:
        """Let go of what a call holds. Again, or after `run`: does nothing."""
        while prepared.held:
            self._handles.release(prepared.tenant, prepared.held.popitem()[0])

    # The call

    async def run(self, prepared: Prepared, call: CallId, within_s: float) -> Outcome:
        """Make a prepared call, and let go of what it holds. `within_s` bounds all tries and pauses together.

        Raises nothing but CancelledError.
        """
        began, started_at = time.monotonic(), time.time()
        attempts, reading = 0, None
        try:
            while reading is None:
                attempts += 1
                reading = await self._tried(prepared, call, began + within_s, attempts)
        finally:
            self.drop(prepared)
        return Outcome(
            text=reading.text,
            is_error=reading.is_error,
            handle=reading.handle,
            seconds=time.monotonic() - began,
            attempts=attempts,
            started_at=started_at,
            finished_at=time.time(),
        )

    async def _tried(self, prepared: Prepared, call: CallId, ends_at: float, attempt: int) -> Reading | None:
        """One try. None, after a pause, if there should be another."""
        spec = prepared.spec
        try:
            return await self._attempt(prepared, call, ends_at)
        except ToolError as error:
            pause_s = _pause(attempt)
            may = spec.idempotent and attempt <= spec.retries and time.monotonic() + pause_s < ends_at
            if not (may and error.again):
                return Reading(clipped(str(error), spec.result_bytes), is_error=True)
        await asyncio.sleep(pause_s)
        return None

    async def _attempt(self, prepared: Prepared, call: CallId, ends_at: float) -> Reading:
        """Raises ToolError."""
        spec = prepared.spec
        now = time.monotonic()
        if (allowed_s := min(spec.timeout_s, ends_at - now)) <= 0:
            raise ToolTimeout(f"The run has no time left to call {spec.name}.")
        place = self._place(spec.name)
        await _take(place, allowed_s)
        try:
            context = self._context(call, now + allowed_s)
        except BaseException:
            place.free.release()
            raise
        try:
            output = await self._called(place, dict(prepared.arguments), context)
            if output is None:
                raise ToolTimeout(f"{spec.name} took longer than {round(allowed_s, 2):g} s and was ended.")
            return await self._read(output, prepared, context)
        finally:
            await self._handles.discard(context.result_path)

    def _context(self, call: CallId, ends_at: float) -> CallContext:
        try:
            path = self._handles.new_path()
        except OSError as error:
            raise ToolFailed("Results cannot be kept on this machine now.") from error
        return CallContext(
            tenant=call.tenant,
            run_id=call.run_id,
            call_id=call.call_id,
            key=f"{call.run_id}/{call.call_id}",
            deadline_at=ends_at,
            result_path=path,
        )

    async def _called(self, place: _Place, arguments: dict[str, Any], context: CallContext) -> ToolOutput | None:
        """What the tool gave, or None if it took too long. Its place is free again when its task has ended. Raises ToolError."""
        spec = place.tool.spec
        task = asyncio.create_task(_guarded(place.tool, arguments, context), name=f"tool {spec.name} {context.key}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(lambda _: place.free.release())
        try:
            await asyncio.wait({task}, timeout=max(0.0, context.deadline_at - time.monotonic()))
            in_time = task.done()
        finally:
            await _end(task, spec.name, self._grace_s)
        if not in_time:
            return None
        if task.cancelled():  # by itself: the run was not
            raise ToolFailed(f"{spec.name} gave up.")
        return task.result()

    async def _read(self, output: ToolOutput, prepared: Prepared, context: CallContext) -> Reading:
        given = {content.path: handle for handle, content in prepared.held.items()}
        try:
            return await self._reader.read(output, context, prepared.spec.result_bytes, given)
        except ToolError as error:  # the tool did its work: another try would do it twice
            return Reading(str(error), is_error=True)
        except OSError as error:
            _log.error("a result could not be kept: %s", error, extra={"tool": prepared.spec.name})
            return Reading("The result could not be kept on this machine; it is lost.", is_error=True)


def _check(spec: ToolSpec) -> None:
    if not _NAME.fullmatch(spec.name):
        raise InvalidTool(f"A tool cannot be called {spec.name[:64]!r}: use letters, digits, `_`, `.` and `-`.")
    if min(spec.concurrency, spec.result_bytes) < 1 or spec.timeout_s <= 0 or spec.retries < 0:
        raise InvalidTool(f"The tool {spec.name} needs timeout_s, concurrency and result_bytes above 0.")


def _pause(attempt: int) -> float:
    """Seconds before the next try: twice as many each time, of which up to a half is chance."""
    longest: float = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(attempt - 1, 16))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311


async def _take(place: _Place, wait_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await place.free.acquire()
            return
    spec = place.tool.spec
    raise ToolUnavailable(
        f"{spec.name} is busy: none of its {spec.concurrency} places came free in {round(wait_s, 2):g} s."
    )


async def _guarded(tool: Tool, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
    """The tool's call, from which nothing comes but a true output, a ToolError or a cancellation."""
    try:
        output: object = await tool.call(arguments, context)
    except (ToolError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit too, which would end the daemon
        # What it says may hold secrets, or text that is nobody's to read.
        _log.exception("a tool raised", extra={"tool": tool.spec.name, "run": context.run_id})
        raise ToolFailed(f"{tool.spec.name} failed.") from error
    if not isinstance(output, ToolOutput) or not isinstance(output.content, str | Content):
        _log.error("a tool returned no output", extra={"tool": tool.spec.name, "run": context.run_id})
        raise ToolFailed(f"{tool.spec.name} gave a result that cannot be used.")
    return output


async def _end(task: asyncio.Task[ToolOutput], name: str, grace_s: float) -> None:
    """Cancel what still runs, and give it a moment to end."""
    if task.done():
        return
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
    task.cancel()
    await asyncio.wait({task}, timeout=grace_s)
    if not task.done():
        _log.warning("a tool goes on although it was cancelled", extra={"tool": name})

"""ToolWork: the calls of one run: at most so many at a time, each logged before it is made and again before it is read."""

from __future__ import annotations

import asyncio
import time

from msgspec.structs import replace

from agentflow.agents.clock import RunClock
from agentflow.agents.live import LiveRun
from agentflow.agents.progress import Call
from agentflow.agents.record import ApprovalAsked, CallEnded, CallStarted
from agentflow.tools.errors import ToolError, ToolFailed, UnknownTool
from agentflow.tools.tool import ToolSpec
from agentflow.tools.toolbox import CallId, Prepared, Toolbox

_OLD = "(This result is "


class ToolWork:
    """For one run. `names`: the tools that it may use; `most_s`: the longest that one call may take, in seconds.

    `most_calls`: how many calls the run may make in all; None: any number.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        names: frozenset[str],
        *,
        parallel: int,
        most_s: float,
        most_calls: int | None = None,
    ) -> None:
        self._toolbox = toolbox
        self._names = names
        self._places = asyncio.Semaphore(parallel)
        self._most_s = most_s
        self._most_calls = most_calls

    async def call(self, live: LiveRun, call: Call, clock: RunClock) -> None:
        """Make a call whose arguments are whole, or say why not. When it returns, the run's log has its result."""
        try:
            if self._must_ask(live.tenant, call):
                await self._ask(live, call, clock)
            async with self._places:
                prepared = self._prepared(live.tenant, call)
                await self._make(live, call, prepared)
        except ToolError as error:
            await live.tell(CallEnded(call_id=call.id, text=str(error), is_error=True))

    async def _make(self, live: LiveRun, call: Call, prepared: Prepared) -> None:
        started = CallStarted(
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            idempotent=prepared.spec.idempotent,
            attempt=call.attempt + 1,
        )
        try:
            # What may be done twice needs not wait for the disk.
            await (live.tell(started) if prepared.spec.idempotent else live.keep(started))
        except BaseException:
            self._toolbox.drop(prepared)
            raise
        outcome = await self._toolbox.run(prepared, CallId(live.tenant, live.id, call.id), self._most_s)
        await live.tell(
            CallEnded(
                call_id=call.id,
                text=outcome.text,
                is_error=outcome.is_error,
                handle=outcome.handle,
                seconds=outcome.seconds,
            )
        )

    def is_stale(self, call: Call) -> bool:
        """Whether a result is older than its tool says that it holds."""
        if call.ended is None or call.ended.is_error:
            return False
        spec = self._spec(call.name)
        return spec is not None and spec.fresh_for_s is not None and _age_s(call.ended) > spec.fresh_for_s

    async def renew(self, live: LiveRun, call: Call, clock: RunClock) -> None:
        """Fetch a stale result again, if its tool is idempotent; else the model reads how old it is."""
        assert call.ended is not None
        if call.idempotent:
            await self.call(live, call, clock)
        elif not call.ended.text.startswith(_OLD):
            aged = f"{_OLD}{_in_words(_age_s(call.ended))} old, and may not hold any more.)\n{call.ended.text}"
            await live.tell(replace(call.ended, text=aged))

    def _must_ask(self, tenant: str, call: Call) -> bool:
        """Whether a person must allow the call. Nobody is asked about one that cannot be made. Raises ToolError."""
        spec = self._spec(call.name)
        if spec is None or not spec.approval:
            return False
        self._toolbox.drop(self._prepared(tenant, call))  # what it holds must not be held until somebody answers
        return True

    async def _ask(self, live: LiveRun, call: Call, clock: RunClock) -> None:
        """Wait for a person's word. Raises ToolFailed if it is no."""
        if not call.asked:
            await live.tell(ApprovalAsked(call_id=call.id))
        async with clock.stopped():
            await live.until(lambda: call.answer is not None)
        if call.answer is None:
            raise ToolFailed("The run is over.")
        if not call.answer.allowed:
            raise ToolFailed("This call was not allowed" + (f": {call.answer.why}" if call.answer.why else "."))

    def _spec(self, name: str) -> ToolSpec | None:
        """What a tool of this run is; None for one that is not there (any more)."""
        try:
            found = self._toolbox.specs((name,)) if name in self._names else ()
        except UnknownTool:
            return None
        return found[0] if found else None

    def _prepared(self, tenant: str, call: Call) -> Prepared:
        # A model may know other tools' names from its training, or from a text that it has read.
        if call.name not in self._names:
            offered = ", ".join(sorted(self._names)) or "none"
            raise UnknownTool(f"There is no tool {call.name[:64]!r}. Tools: {offered}.")
        if self._most_calls is not None and call.number >= self._most_calls:
            raise ToolFailed(
                f"No more calls can be made: all {self._most_calls} are used up. Answer with what you have."
            )
        return self._toolbox.prepare(tenant, call.name, call.arguments)


def _age_s(ended: CallEnded) -> float:
    return time.time() - ended.at / 1000


def _in_words(seconds: float) -> str:
    for size, word in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = round(seconds / size)
            return f"{count} {word}{'s' if count > 1 else ''}"
    return f"{round(seconds)} seconds"

"""ToolWork: the calls of one run: at most so many at a time, each logged before it is made and again before it is read."""

from __future__ import annotations

import asyncio
import time

from msgspec.structs import replace

from agentflow.agents.aging import holds_of, is_old, mark, remark
from agentflow.agents.clock import RunClock
from agentflow.agents.config import AgentLimits
from agentflow.agents.live import LiveRun
from agentflow.agents.progress import Call
from agentflow.agents.record import Aged, ApprovalAsked, ApprovalGiven, CallEnded, CallStarted
from agentflow.tools.errors import ToolError, ToolFailed, UnknownTool
from agentflow.tools.tool import ToolSpec
from agentflow.tools.toolbox import CallId, Prepared, Toolbox


class ToolWork:
    """For one run. `names`: the tools that it may use; `most_calls`: how many it may call in all, None: any number."""

    def __init__(
        self, toolbox: Toolbox, names: frozenset[str], limits: AgentLimits, most_calls: int | None = None
    ) -> None:
        self._toolbox = toolbox
        self._names = names
        self._limits = limits
        self._places = asyncio.Semaphore(limits.parallel_tools)
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
        outcome = await self._toolbox.run(prepared, CallId(live.tenant, live.id, call.id), self._limits.tool_s)
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
        """Whether a result is older than its tool says that it holds, and the model was not told so."""
        if call.ended is None or call.ended.is_error or call.ended.answered_at:
            return False
        spec = self._spec(call.name)
        return spec is not None and is_old(call.name, call.ended.at, holds_of([spec]), int(time.time() * 1000))

    async def renew(self, live: LiveRun, call: Call, clock: RunClock) -> None:
        """Fetch a stale result again, if its tool is idempotent; else the model reads how old it is."""
        assert call.ended is not None
        if call.idempotent:
            await self.call(live, call, clock)
        else:
            ended = call.ended
            await live.tell(replace(ended, text=mark(ended.text, ended.at), answered_at=ended.at))

    async def remark(self, live: LiveRun) -> None:
        """Tell the model which results of earlier steps have become too old since it read them; each once."""
        old = [call for call in live.progress.past if self.is_stale(call)]
        if old:
            text = remark([(call.name, call.ended.at) for call in old if call.ended is not None])
            await live.tell(Aged(call_ids=tuple(call.id for call in old), text=text))

    def _must_ask(self, tenant: str, call: Call) -> bool:
        """Whether a person must allow the call. Nobody is asked about one that cannot be made. Raises ToolError."""
        spec = self._spec(call.name)
        if spec is None or not spec.approval:
            return False
        self._toolbox.drop(self._prepared(tenant, call))  # what it holds must not be held until somebody answers
        return True

    async def _ask(self, live: LiveRun, call: Call, clock: RunClock) -> None:
        """Wait for a person's word. Raises ToolFailed if it is no, or does not come in time."""
        if not call.asked:
            await live.tell(ApprovalAsked(call_id=call.id))
        most_s = self._limits.approval_s
        try:
            async with clock.stopped(), asyncio.timeout(most_s - (time.time() - (call.asked_at or 0) / 1000)):
                await live.until(lambda: call.answer is not None)
        except TimeoutError:
            await live.tell(ApprovalGiven(call_id=call.id, allowed=False, why=f"nobody answered within {most_s:g} s"))
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

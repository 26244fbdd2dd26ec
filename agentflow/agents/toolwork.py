"""ToolWork: the calls of one run: at most so many at a time, each logged before it is made and again before it is read."""

from __future__ import annotations

import asyncio

from agentflow.agents.live import LiveRun
from agentflow.agents.progress import Call
from agentflow.agents.record import CallEnded, CallStarted
from agentflow.tools.errors import ToolError, ToolFailed, UnknownTool
from agentflow.tools.toolbox import CallId, Prepared, Toolbox


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

    async def call(self, live: LiveRun, call: Call) -> None:
        """Make a call whose arguments are whole, or say why not. When it returns, the run's log has its result."""
        async with self._places:
            try:
                prepared = self._prepared(live.tenant, call)
            except ToolError as error:
                await live.tell(CallEnded(call_id=call.id, text=str(error), is_error=True))
                return
            await live.tell(
                CallStarted(
                    call_id=call.id,
                    name=call.name,
                    arguments=call.arguments,
                    idempotent=prepared.spec.idempotent,
                    attempt=call.attempt + 1,
                )
            )
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

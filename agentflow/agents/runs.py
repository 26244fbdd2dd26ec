"""Runs: the agents, and their runs that are going on. Begins them, finds them, ends them.

A run is a task of its own in the service's TaskGroup. Who follows it (a stream, a poll) may come and go; a run that nobody
stores ends with the one stream that it was begun for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agentflow.agents.agency import Agency, Asked
from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.beginnings import Beginning, Beginnings
from agentflow.agents.config import AgentConfig
from agentflow.agents.going import Going, note_end, shutting_down, to_its_end
from agentflow.agents.journal import MemoryJournal, StoredJournal
from agentflow.agents.live import LiveRun
from agentflow.agents.loop import AgentLoop
from agentflow.agents.record import Added, ApprovalGiven, Began, Ended, Paused, Unpaused
from agentflow.agents.stream import AgentStream
from agentflow.agents.toolwork import ToolWork
from agentflow.errors import AgentFlowError, Draining, InvalidRequest, Refused, SequenceFailed
from agentflow.library.refusals import DataDamaged, DataUnavailable
from agentflow.messages import ChatRequest
from agentflow.status import AgentsStatus, AgentStatus

if TYPE_CHECKING:
    from agentflow.memory.agentmemory import Keeping

_log = logging.getLogger(__name__)
LOOK_S = 0.5  # between two looks at the runs that a drain waits for
TAKEN_UP_AT_ONCE = 16  # runs, after a start
_LAST_MS = (1 << 48) - 1  # of time as run ids have it


class Runs:
    """Lives on the event loop. `forget`: has the engines forget a tenant that is erased."""

    def __init__(self, agency: Agency, beginnings: Beginnings, forget: Callable[[str], None]) -> None:
        self._agency = agency
        self._forget = forget
        self._beginnings = beginnings
        self._tasks: asyncio.TaskGroup | None = None
        self._archive: Archive | None = None
        self._opening = asyncio.Lock()
        self._going: dict[tuple[str, str], Going] = {}  # by tenant and id
        self._stopping: Draining | None = None
        self._draining = False
        self._closed: set[str] = set()  # tenants that are being erased
        self._own: list[asyncio.Task[None]] = []

    @property
    def agents(self) -> Mapping[str, AgentConfig]:
        """The agents, by their names."""
        return self._agency.agents

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Runs may begin, in `tasks`."""
        self._tasks = tasks
        self._beginnings.start(tasks)
        if self._agency.memory is not None:
            self._own.append(tasks.create_task(self._agency.memory.diary.run()))

    @property
    def going(self) -> int:
        """How many runs are going on."""
        return len(self._going)

    def status(self) -> AgentsStatus:
        """The agents with their tools, and how many runs of each go on."""
        agency, going = self._agency, [run.live.progress for run in self._going.values()]
        running = Counter(progress.began.agent for progress in going if progress.began is not None)
        waiting = Counter(each.began.agent for each in going if each.began is not None and each.asks)
        told: list[AgentStatus] = []
        for name, agent in agency.agents.items():
            tools = tuple(spec.name for spec in agency.toolbox.specs(agent.tools))
            told.append(AgentStatus(name, agent.model, tools, running[name], waiting[name]))
        return AgentsStatus(tuple(told), dict(agency.mcp_problems()))

    async def chat(self, request: ChatRequest) -> AgentStream:
        """An agent's answer to a conversation. Returns once the run is under way. Raises InvalidRequest, Refused."""
        going = await self.begin(request, Asked(new_run_id()))
        return AgentStream(going)

    async def begin(self, request: ChatRequest, asked: Asked) -> Going:
        """A run of an agent, or of a plain model: one answer. Returns once it is under way. Raises InvalidRequest, Refused."""
        tenant = request.caller.tenant
        self._check_open(tenant)
        beginning = await self._beginnings.of(request, asked)
        self._check_open(tenant)
        live = await self._opened(beginning.began, asked.run_id, tenant, stored=request.store)
        return await self._set_going(live, beginning)

    async def resume(self) -> int:
        """Take up every stored run that is open, and return how many there were. Raises Refused for those that it could not.

        One whose agent or model is gone from the configuration ends as failed.
        """
        archive = await self.archive()
        if self._agency.memory is not None:
            await self._agency.memory.diary.take_up(await archive.tenants())
        waiting = [key for key in await archive.open_runs() if key not in self._going]
        places = asyncio.Semaphore(TAKEN_UP_AT_ONCE)

        async def take_up(tenant: str, run_id: str) -> bool:
            async with places:
                try:
                    return await self._take_up(archive, tenant, run_id)
                except Refused:
                    raise
                except DataDamaged as error:  # it stays as it is, for whoever restores a backup
                    _log.error("a run cannot be taken up", extra={"run": run_id, "why": str(error)})
                except Exception:  # noqa: BLE001 - one run's defect must not keep the daemon from coming up
                    _log.exception("a run cannot be taken up, for a defect", extra={"run": run_id})
                return False

        outcomes = await asyncio.gather(*(take_up(*key) for key in waiting), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return sum(map(bool, outcomes))

    def ids(self, tenant: str) -> tuple[str, ...]:
        """The ids of a tenant's runs that are going on, oldest first."""
        return tuple(run_id for owner, run_id in self._going if owner == tenant)

    def live(self, tenant: str, run_id: str) -> LiveRun | None:
        """A run that is going on, or None."""
        going = self._going.get((tenant, run_id))
        return None if going is None else going.live

    def going_of(self, tenant: str, run_id: str) -> Going | None:
        """A run that is going on with its task, or None."""
        return self._going.get((tenant, run_id))

    async def cancel(self, tenant: str, run_id: str) -> bool:
        """End a run that is going on, and wait until it has; False if there is none."""
        going = self._going.get((tenant, run_id))
        if going is None:
            return False
        going.cancel()
        await going.ended()
        return True

    def keeping(self, tenant: str, run_id: str) -> Keeping | None:
        """How the memory of a run's agent is kept; None where it has none, or the run does not go on here."""
        live, memory = self.live(tenant, run_id), self._agency.memory
        if live is None or memory is None or live.progress.began is None:
            return None
        return memory.keeping(live.progress.began.agent)

    async def settled(self, tenant: str, run_id: str) -> None:
        """Wait until a run that is over is noted as such."""
        going = self._going.get((tenant, run_id))
        if going is not None:
            await going.ended()

    @property
    def stores(self) -> bool:
        """Whether runs are stored anywhere."""
        return self._agency.state is not None

    async def tell(self, tenant: str, run_id: str, event: Paused | Unpaused | Added) -> bool:
        """Pause a run, let it go on, or give it a message; False if none of that name goes on."""
        going = self._going.get((tenant, run_id))
        if going is None:
            return False
        began = going.live.progress.began
        if isinstance(event, Added) and began is not None and not began.agent:
            raise InvalidRequest("A plain model's answer takes no messages: it has one step.", param="content")
        return await going.live.keep(event)

    async def approve(self, tenant: str, run_id: str, given: ApprovalGiven) -> bool:
        """A person's word about a call that waits for one; False if no run of that name goes on.

        Raises InvalidRequest for a call that does not wait. The first word counts.
        """
        going = self._going.get((tenant, run_id))
        if going is None:
            return False
        live = going.live

        def waiting() -> list[str]:
            return [call.id for call in live.progress.waiting if call.asked and call.answer is None]

        if await live.keep_while(lambda: given.call_id in waiting(), given):
            return True
        if live.over:
            return False
        told = f"Calls that do: {', '.join(waiting())}." if waiting() else "None does."
        raise InvalidRequest(f"The call {given.call_id[:64]!r} does not wait for approval. {told}", param="call_id")

    @asynccontextmanager
    async def closed(self, tenant: str) -> AsyncIterator[None]:
        """End all of a tenant's runs, remove its tools' results, and begin none of it within: for erasing it."""
        self._closed.add(tenant)
        try:
            for run_id in self.ids(tenant):
                await self.cancel(tenant, run_id)
            await self._agency.toolbox.erase(tenant)
            self._forget(tenant)
            yield
        finally:
            self._closed.discard(tenant)

    # Beginning

    async def _opened(self, began: Began, run_id: str, tenant: str, *, stored: bool) -> LiveRun:
        """The run, of which nothing is told yet."""
        if not stored or self._agency.state is None:
            return LiveRun(run_id, tenant, MemoryJournal())
        archive = await self.archive()
        run = RunRecord(id=run_id, agent=began.agent, model=began.model, created_ms=int(time.time() * 1000))
        try:
            return LiveRun(run_id, tenant, await archive.open(tenant, run), archive=archive)
        except BaseException:
            await to_its_end(archive.drop_open(tenant, run_id))
            raise

    async def _set_going(self, live: LiveRun, beginning: Beginning) -> Going:
        """Begin the run's task. Returns once its beginning is kept; raises what kept it from that."""
        assert self._tasks is not None, "the service was not started"
        going = self._going[live.tenant, live.id] = Going(live)
        going.task = self._tasks.create_task(self._drive(going, beginning))
        try:
            await asyncio.shield(going.begun)
            await live.kept()
        except asyncio.CancelledError:
            going.cancel()
            raise
        return going

    def _work(self, began: Began, agent: AgentConfig) -> ToolWork | None:
        if not began.agent:
            return None
        names = frozenset(tool.name for tool in began.tools).difference(began.client_tools)
        return ToolWork(self._agency.toolbox, names, agent.limits, began.max_calls)

    async def _drive(self, going: Going, beginning: Beginning) -> None:
        """The run's task, from its beginning to its end, which is noted whatever happens."""
        live, ended = going.live, None
        try:
            going.check()
            if live.progress.began is None:
                await live.tell(beginning.began)
            if self._agency.watcher is not None:
                live.watched(self._agency.watcher)
            going.begun.set_result(None)
            going.check()
            work = self._work(beginning.began, beginning.terms.agent)
            await AgentLoop(live, beginning.planner, work, beginning.terms).run()
        except asyncio.CancelledError:
            if (self._stopping is None and not going.left) or live.archive is None:
                ended = Ended(end="cancelled", why="cancelled")
            raise
        except Exception as error:  # noqa: BLE001 - nothing of a run may end the daemon
            self._leave(going, error)
        finally:
            await to_its_end(self._finish(going, ended))

    def _leave(self, going: Going, error: Exception) -> None:
        """The daemon ends, or the log cannot be written: whoever starts next takes the run up where its log ends."""
        live = going.live
        if not going.begun.done():  # whoever asked for it is told
            going.refuse(error)
        elif isinstance(error, AgentFlowError):
            _log.warning("a run is left as it is", extra={"run": live.id, "why": str(error)})
            live.leave(error)
        else:
            _log.error("a run is left as it is, for a defect", extra={"run": live.id}, exc_info=error)
            live.leave(DataDamaged("The server failed at this run. The log has the details."))

    async def _finish(self, going: Going, ended: Ended | None) -> None:
        """Tell the end of a run that was cancelled, and note that of any. Raises nothing: it would end the daemon."""
        live = going.live
        try:
            if not going.begun.done():
                going.refuse(self._stopping or SequenceFailed("The run was cancelled."))
            if live.progress.began is None and live.archive is not None:
                await live.archive.drop_open(live.tenant, live.id)
            elif ended is not None:
                await live.tell(ended)
            if self._stopping is not None or going.left:
                live.leave(self._stopping or shutting_down())
            await self._close(live)
        except Exception as error:  # noqa: BLE001 - see above
            self._leave(going, error)
        finally:
            self._going.pop((live.tenant, live.id), None)  # a list shows it as going on, or as it ended

    def _check_open(self, tenant: str) -> None:
        if self._draining:
            raise shutting_down()
        if tenant in self._closed:
            raise DataUnavailable("What this tenant has stored is being erased.", retry_after_s=5.0)

    async def forget(self, tenant: str, run_id: str) -> None:
        """Remove what a run's tools gave that was too long for its model."""
        await self._agency.toolbox.forget(tenant, run_id)

    async def _take_up(self, archive: Archive, tenant: str, run_id: str) -> bool:
        """Go on with a stored run, or end it; False if it had never begun."""
        events = await archive.events(tenant, run_id)
        if not events:
            await archive.delete(tenant, run_id)  # with parts of an event that did not come into the log
            await archive.drop_open(tenant, run_id)
            return False
        journal = StoredJournal(archive.state, tenant, run_id, last=events[-1][0])
        live = LiveRun(run_id, tenant, journal, [event for _, event in events], archive=archive)
        began = live.progress.began
        if live.over or began is None:
            await self._close(live)
            return False
        try:
            beginning = await self._beginnings.again(began, tenant)
        except InvalidRequest as error:
            await live.tell(Ended(end="failed", why="agent_gone", error=str(error)))
            await self._close(live)
            return True
        self._check_open(tenant)
        await self._set_going(live, beginning)
        return True

    async def _close(self, live: LiveRun) -> None:
        """Note the end of a run that has one, once that is kept; what it is to be remembered by before that.

        Of one that was not to be stored nothing stays.
        """
        if live.over:
            await live.kept()
        if self._agency.memory is not None and live.over:
            await self._agency.memory.remember(live)
        await note_end(live)
        if live.archive is None and self.stores:
            await self.forget(live.tenant, live.id)

    async def archive(self) -> Archive:
        """Where runs are stored. Raises Refused; DataUnavailable for good where nothing is stored."""
        if self._agency.state is None:
            raise DataUnavailable(
                "This server was started without a data plane, and stores nothing.", retry_after_s=math.inf
            )
        async with self._opening:
            if self._archive is None:
                self._archive = Archive(await self._agency.state())
            return self._archive

    # The end

    def close_door(self) -> None:
        """Begin no run any more."""
        self._draining = True

    async def drain(self) -> None:
        """Wait until no run goes on, but for those that are stored and wait for a person: the next daemon takes them up.

        Once the door is closed, these are left here, so that who reads one is told at once.
        """
        while True:
            waiting = [going for going in self._going.values() if going.waits]
            if self._draining:
                for going in waiting:
                    going.leave()
            still = [going for going in self._going.values() if going.left or going not in waiting]
            tasks = [going.task for going in still if going.task is not None]
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=LOOK_S)

    async def stop(self) -> None:
        """End all runs here. Those that are stored stay open, and are taken up by whoever starts next."""
        self._beginnings.stop()
        for task in self._own:
            task.cancel()
        self._stopping = shutting_down()
        for going in list(self._going.values()):
            going.cancel()
        tasks = [going.task for going in self._going.values() if going.task is not None]
        if tasks:
            await asyncio.wait(tasks)


def new_run_id() -> str:
    """An id that no other run has. Later ones sort first, so that a scan by names is a list with the newest on top."""
    return f"run_{_LAST_MS - int(time.time() * 1000):012x}{secrets.token_hex(6)}"

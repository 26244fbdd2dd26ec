"""Overview: a tenant's runs, those that go on and those that are stored, as one list; and a hand on those that go on.

A run that is going on is told of from memory, as far as it is kept; one that is over from its record in the archive; and one that
is neither yet (it is taken up after a start, or its end is being noted) from its log there. Any other is unknown, be it that it
never was, was not stored, or is another tenant's: which of these cannot be told.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable
from typing import Literal

from msgspec import Struct

from agentflow.agents.account import RunAccount, RunSummary, Status, account, summary
from agentflow.agents.archive import Archive, RunRecord
from agentflow.agents.live import LiveRun
from agentflow.agents.progress import Progress
from agentflow.agents.record import Added, ApprovalGiven, Event, Paused, Unpaused
from agentflow.agents.refusals import RunConflict
from agentflow.agents.runindex import ENDS
from agentflow.agents.runs import Runs
from agentflow.library.planeerrors import damage_of
from agentflow.library.refusals import DataDamaged, NotStored
from agentflow.messages import Message

PAGE = 200
ACCOUNTED_INLINE = 500  # events, of which an account takes about 2 ms
_ID = re.compile(r"[!-~]{1,128}")
_log = logging.getLogger(__name__)

Drop = Callable[[str, str], Awaitable[None]]
"""Takes a tenant and a run's id, which may be unknown."""

Steer = Literal["cancel", "pause", "resume", "step"]


class Wanted(Struct, frozen=True, kw_only=True):
    """Which runs a list is of: at most `limit` that come after the id `after`, of this agent and status (None: of any)."""

    limit: int
    after: str | None = None
    agent: str | None = None
    status: Status | None = None

    @property
    def all(self) -> bool:
        """Whether it is a list of all runs."""
        return self.agent is None and self.status is None

    def fits(self, run: RunSummary) -> bool:
        """Whether it is one of them."""
        return self.agent in (None, run.agent) and self.status in (None, run.status)


class Overview:
    """All methods raise NotStored for a run that is unknown, Refused where the data plane cannot say, and DataDamaged.

    `drop`: removes what others keep of a run that is to be deleted.
    """

    def __init__(self, runs: Runs, drop: Drop | None = None) -> None:
        self._runs = runs
        self._drop = drop

    async def page(self, tenant: str, wanted: Wanted) -> tuple[list[RunSummary], bool]:
        """Runs, the newest first, and whether there are more."""
        archive = await self._archive()
        after = wanted.after or ""
        others = await self._others(archive, tenant, wanted)
        found: list[RunSummary] = []
        while True:
            records = [] if archive is None else await _records(archive, tenant, wanted, after)
            batch = {run.id: run for run in others if after < run.id and (not records or run.id <= records[-1].id)}
            batch |= {run.id: run for run in await self._of_records(tenant, records)}
            if wanted.all:
                batch |= {run.id: run for run in await self._unread(tenant, after, records, batch)}
            found += sorted(filter(wanted.fits, batch.values()), key=lambda run: run.id)  # later runs' ids sort first
            if not records or len(found) > wanted.limit:
                return found[: wanted.limit], len(found) > wanted.limit
            after = records[-1].id

    async def account(self, tenant: str, run_id: str) -> RunAccount:
        """Everything about a run."""
        with damage_of(f"run {run_id}"):
            return await self._account(tenant, run_id)

    async def _account(self, tenant: str, run_id: str) -> RunAccount:
        live, now = self._live(tenant, run_id), time.time()
        events: Iterable[tuple[int, Event]]
        if live is not None:
            told = live.told()
            events, count = enumerate(told, 1), len(told)
        else:
            archive = await self._archive()
            events = stored = [] if archive is None else await archive.events(tenant, run_id)
            count = len(stored)
        if count <= ACCOUNTED_INLINE:
            found = account(run_id, events, now, going=live is not None)
        else:
            found = await asyncio.to_thread(account, run_id, events, now, going=live is not None)
        if found is None:
            raise _unknown(run_id)
        return found

    async def events(self, tenant: str, run_id: str, after: int, limit: int) -> list[tuple[int, Event]]:
        """At most `limit` (up to 1000) of a run's events with numbers above `after`."""
        live = self._live(tenant, run_id)
        if live is not None:
            return list(enumerate(live.told(after, limit), after + 1))
        archive = await self._archive()
        with damage_of(f"run {run_id}"):
            found = [] if archive is None else await archive.events_page(tenant, run_id, after, limit)
        if not found:
            await self._stored(tenant, run_id)
        return found

    async def follow(self, tenant: str, run_id: str, after: int) -> AsyncGenerator[tuple[int, Event], None]:
        """A run's events with numbers above `after`, as they come, until its end, or the end of what is stored.

        Raises also what a run was left with, that does not go on here any more. Nothing is held for who reads slowly.
        """
        live = self._live(tenant, run_id)
        if live is not None:
            return live.follow(after)
        await self._stored(tenant, run_id)
        return self._replay(tenant, run_id, after)

    async def steer(self, tenant: str, run_id: str, how: Steer) -> RunSummary:
        """Cancel a run (and wait until it has ended), pause it, let it go on, or for one step; what is so already stays so.

        Raises RunConflict.
        """
        live = self._live(tenant, run_id)
        if live is None or live.over:
            run = await self._stored(tenant, run_id) if live is None else await _shown(live)
            if how == "cancel" and run.status == "cancelled":
                return run
            raise _not_going(run)
        if how == "cancel":
            await self._runs.cancel(tenant, run_id)
        elif how != "pause":
            await self._tell(live, Unpaused(one_step=how == "step"))
        elif not live.progress.paused:
            await self._tell(live, Paused())
        return await _shown(live)

    async def add(self, tenant: str, run_id: str, content: str) -> RunSummary:
        """Give a run a message of the user's, which its model reads with the next step. Raises RunConflict."""
        live = self._live(tenant, run_id)
        if live is None:
            raise _not_going(await self._stored(tenant, run_id))
        await self._tell(live, Added(message=Message("user", content)))
        return await _shown(live)

    async def approve(self, tenant: str, run_id: str, given: ApprovalGiven) -> RunSummary:
        """A person's word about a call that waits for it. Raises RunConflict, InvalidRequest for a call that does not."""
        live = self._live(tenant, run_id)
        if live is None:
            raise _not_going(await self._stored(tenant, run_id))
        if not await self._runs.approve(tenant, run_id, given):
            raise _not_going(await _shown(live))
        return await _shown(live)

    async def delete(self, tenant: str, run_id: str) -> None:
        """Remove a stored run that does not go on, with all that is kept of it: its log last, so that it can be repeated.

        Raises RunConflict.
        """
        live = self._live(tenant, run_id)
        if live is not None and not live.over:
            raise RunConflict(f"The run {run_id} goes on. Cancel it first.", code="run_goes_on")
        await self._runs.settled(tenant, run_id)
        archive = await self._archive()
        if archive is not None and self._drop is not None:
            await self._drop(tenant, run_id)
        await self._runs.forget(tenant, run_id)
        if archive is None or not await archive.delete(tenant, run_id):
            raise _unknown(run_id)
        await archive.drop_open(tenant, run_id)

    async def _others(self, archive: Archive | None, tenant: str, wanted: Wanted) -> list[RunSummary]:
        """Runs that `_records` does not give: those that are not stored, and of a part of all runs also those that are open."""
        going = [live for run_id in self._runs.ids(tenant) if (live := self._runs.live(tenant, run_id)) is not None]
        if archive is None or wanted.all:
            return await _summaries(live for live in going if live.archive is None)
        found, ids = await _summaries(going), {live.id for live in going}
        waiting = [
            record
            for record in await archive.open_of(tenant)
            if record.id not in ids and wanted.agent in (None, record.agent)  # else its log would be read for nothing
        ]
        return found + await self._of_records(tenant, waiting)

    async def _unread(
        self, tenant: str, after: str, records: list[RunRecord], found: Container[str]
    ) -> list[RunSummary]:
        """Runs behind `after` that go on and were not found, up to the last record: theirs could not be read."""
        last = records[-1].id if records else None
        behind = (run_id for run_id in self._runs.ids(tenant) if after < run_id and (last is None or run_id <= last))
        lives = [self._runs.live(tenant, run_id) for run_id in behind if run_id not in found]
        return await _summaries(live for live in lives if live is not None)

    async def _archive(self) -> Archive | None:
        return await self._runs.archive() if self._runs.stores else None

    def _live(self, tenant: str, run_id: str) -> LiveRun | None:
        if not _ID.fullmatch(run_id):
            raise _unknown(run_id)
        return self._runs.live(tenant, run_id)

    async def _of_records(self, tenant: str, records: list[RunRecord]) -> list[RunSummary]:
        """Those of the records' runs; of one that ended since: its end."""
        going = [live for record in records if (live := self._runs.live(tenant, record.id)) is not None]
        found, ids = await _summaries(going), {live.id for live in going}
        return found + [await self._told(tenant, record) for record in records if record.id not in ids]

    async def _told(self, tenant: str, record: RunRecord) -> RunSummary:
        """The summary of a run that does not go on here: without its end a record is as it was when the run began."""
        archive = None if record.end is not None else await self._archive()
        if archive is None:
            return stored_summary(record)
        try:
            events = [event for _, event in await archive.events(tenant, record.id)]
            if len(events) > ACCOUNTED_INLINE:
                return await asyncio.to_thread(_summary, record.id, events, going=False)
            return _summary(record.id, events, going=False) if events else stored_summary(record)
        except DataDamaged as error:  # which was told when it could not be taken up, and would be at each list
            _log.debug("a run is listed without its log", extra={"run": record.id, "why": str(error)})
            return stored_summary(record)

    async def _stored(self, tenant: str, run_id: str) -> RunSummary:
        archive = await self._archive()
        with damage_of(f"run {run_id}"):
            found = None if archive is None else await archive.find(tenant, run_id)
        if found is None:
            raise _unknown(run_id)
        return await self._told(tenant, found)

    async def _replay(self, tenant: str, run_id: str, after: int) -> AsyncGenerator[tuple[int, Event], None]:
        while page := await self.events(tenant, run_id, after, PAGE):
            for number, event in page:
                yield number, event
            after = page[-1][0]

    async def _tell(self, live: LiveRun, event: Paused | Unpaused | Added) -> None:
        if not await self._runs.tell(live.tenant, live.id, event):
            raise _not_going(await _shown(live))


async def _shown(live: LiveRun) -> RunSummary:
    """The summary of a run that goes on here, or did just now, with all that was told of it before this was asked."""
    await live.kept()
    found = await _summaries([live])
    if not found:
        raise _unknown(live.id)
    return found[0]


async def _summaries(runs: Iterable[LiveRun]) -> list[RunSummary]:
    """The summaries of runs that go on, of what is kept of them: nobody sees what a crash may undo. None of one without that."""
    found: list[RunSummary] = []
    for live in runs:
        told = live.told()
        if told and len(told) == live.count:
            found.append(summary(live.progress))
        elif len(told) > ACCOUNTED_INLINE:
            found.append(await asyncio.to_thread(_summary, live.id, told))
        elif told:
            await asyncio.sleep(0)  # others want to be served between two of them
            found.append(_summary(live.id, told))
    return found


def _summary(run_id: str, events: Iterable[Event], *, going: bool = True) -> RunSummary:
    progress = Progress(run_id)
    for event in events:
        progress.apply(event)
    return summary(progress, going=going)


def stored_summary(record: RunRecord) -> RunSummary:
    """The summary of a run as its record has it."""
    return RunSummary(
        id=record.id,
        agent=record.agent,
        model=record.model,
        status=record.end or "open",
        why=record.why,
        created_at=record.created_ms / 1000,
        ended_at=None if record.ended_ms is None else record.ended_ms / 1000,
        steps=record.steps,
        calls=record.calls,
        usage=record.usage,
    )


async def _records(archive: Archive, tenant: str, wanted: Wanted, after: str) -> list[RunRecord]:
    """The next stored runs, of a part of all runs those of them that are over; none at the end."""
    if wanted.all:
        return await archive.page(tenant, after or None, PAGE)
    if wanted.status is not None and wanted.status not in ENDS:
        return []
    return await archive.closed(tenant, wanted.agent, wanted.status, after, min(PAGE, wanted.limit + 1))


def _unknown(run_id: str) -> NotStored:
    return NotStored(f"There is no run {run_id[:64]!r}, or it is not kept any more.", param="run_id")


def _not_going(run: RunSummary) -> RunConflict:
    if run.ended_at is None:
        return RunConflict(
            f"The run {run.id} is stored, and does not go on now. It is taken up when the daemon starts.",
            code="run_open",
        )
    return RunConflict(f"The run {run.id} is over: {run.status}. Begin another.", code="run_over")

"""Archive: the runs that are stored, and which of them are open. Records in the data plane's state store.

    kind        name       value
    tenant      <tenant>   empty; under the tenant HOUSE, which no key can have: who has ever stored a run
    open_run    <run id>   empty: the run has begun, and its log has no end yet
    run         <run id>   RunRecord, as it was at its beginning or at its end

an index of them (runindex.py), and for each run the log `run/<run id>` (journal.py), which is the truth: a record is what a
list shows.

Order: the tenant and the open run are written before the log's first event, and so are durable when that is; the open run is
removed after its last one. So whatever a crash leaves, a run with a log is found by `open_runs` until its log has an end, and
one that is listed as open without a log had not begun for anybody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from agentflow.agents import journal
from agentflow.agents.record import Event, RunEnd
from agentflow.agents.runindex import RunIndex
from agentflow.events import Usage
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged

if TYPE_CHECKING:
    from dataplane import StateStore

HOUSE: Final = "/agents"
_PAGE = 1000

_log = logging.getLogger(__name__)


class RunRecord(Struct, frozen=True, kw_only=True):
    """What a list shows of a run. Times are milliseconds since 1970, UTC. `end` None: it goes on."""

    id: str
    agent: str
    model: str
    created_ms: int
    ended_ms: int | None = None
    end: RunEnd | None = None
    why: str | None = None
    steps: int = 0
    calls: int = 0
    usage: Usage = Usage()


class Archive:
    """All methods raise Refused (the data plane's troubles) and DataDamaged. What they have done is durable, but for `open`."""

    def __init__(self, state: StateStore) -> None:
        self.state = state
        self._index = RunIndex(state)

    async def open(self, tenant: str, run: RunRecord) -> journal.StoredJournal:
        """Note that a run begins, and return where its events are kept. Durable with the first of them."""
        with translated():
            await self._index.begin(tenant)
            await asyncio.gather(  # the tenant each time, since it may have been erased meanwhile
                self.state.put(HOUSE, "tenant", tenant, b"", wait="visible"),
                self.state.put(tenant, "open_run", run.id, b"", wait="visible"),
                self.state.put(tenant, "run", run.id, msgspec.json.encode(run), wait="visible"),
            )
        return journal.StoredJournal(self.state, tenant, run.id)

    async def close(self, tenant: str, run: RunRecord) -> None:
        """Note that a run's log has its end."""
        with translated():
            await self._index.note(tenant, run)
            await self._put(tenant, run)
            await self.state.delete(tenant, "open_run", run.id)

    async def open_runs(self) -> list[tuple[str, str]]:
        """(tenant, run id) of all runs that had begun and were not closed."""
        with translated():
            tenants = await self._names(HOUSE, "tenant")
            return [(tenant, name) for tenant in tenants for name in await self._names(tenant, "open_run")]

    async def tenants(self) -> list[str]:
        """Who has ever stored a run."""
        with translated():
            return await self._names(HOUSE, "tenant")

    async def drop_open(self, tenant: str, run_id: str) -> None:
        """Forget that a run is open, which has no log."""
        with translated():
            await self.state.delete(tenant, "open_run", run_id)
            await self.state.delete(tenant, "run", run_id)

    async def events(self, tenant: str, run_id: str, after: int = 0) -> list[tuple[int, Event]]:
        """A run's events with numbers above `after`; none for a run that is not there."""
        return await journal.stored(self.state, tenant, run_id, after)

    async def events_page(self, tenant: str, run_id: str, after: int, limit: int) -> list[tuple[int, Event]]:
        """At most `limit` (up to 1000) of a run's events with numbers above `after`. An empty page is the end."""
        return await journal.page(self.state, tenant, run_id, after, limit)

    async def page(self, tenant: str, after: str | None, limit: int) -> list[RunRecord]:
        """A tenant's runs whose ids come after `after`, the newest first. An empty page is the end.

        Records that cannot be read are left out, with a warning: the others can be listed.
        """
        while True:
            with translated():
                found = await self.state.scan(tenant, "run", after=after, limit=limit)
            runs = [run for name, each in found if (run := _readable(name, each.value)) is not None]
            if runs or not found:
                return runs
            after = found[-1][0]

    async def closed(
        self, tenant: str, agent: str | None, end: RunEnd | None, after: str, limit: int
    ) -> list[RunRecord]:
        """As `page`, of the runs of an agent that are over, or that ended so, or both: read are only as many as are given.

        Where there are runs from before the index of them, all are read, once.
        """
        with translated():
            await self._index.complete(tenant, lambda behind, most: self.page(tenant, behind, most))
            while True:
                ids = await self._index.ids(tenant, agent, end, after, limit)
                found = await self._records(tenant, ids)
                if found or not ids:
                    return found
                after = ids[-1]

    async def open_of(self, tenant: str) -> list[RunRecord]:
        """A tenant's runs that had begun and were not closed."""
        with translated():
            return await self._records(tenant, await self._names(tenant, "open_run"))

    async def find(self, tenant: str, run_id: str) -> RunRecord | None:
        """The record of a run."""
        with translated():
            found = await self.state.get(tenant, "run", run_id)
        return None if found is None else _decoded(run_id, found.value)

    async def delete(self, tenant: str, run_id: str) -> bool:
        """Remove a run that is closed; False if there is none."""
        dropped = await journal.remove(self.state, tenant, run_id)
        with translated():
            stored = await self.state.get(tenant, "run", run_id)
            if stored is not None:
                try:
                    await self._index.forget(tenant, _decoded(run_id, stored.value))
                except DataDamaged as error:
                    _log.warning("a run is removed that cannot be read", extra={"run": run_id, "why": str(error)})
                    await self._index.forget_id(tenant, run_id)
            return await self.state.delete(tenant, "run", run_id) or dropped

    async def _put(self, tenant: str, run: RunRecord) -> int:
        return await self.state.put(tenant, "run", run.id, msgspec.json.encode(run))

    async def _records(self, tenant: str, ids: Sequence[str]) -> list[RunRecord]:
        """Those that are there and can be read."""
        stored = await asyncio.gather(*(self.state.get(tenant, "run", run_id) for run_id in ids))
        return [
            run
            for run_id, each in zip(ids, stored, strict=True)
            if each is not None and (run := _readable(run_id, each.value)) is not None
        ]

    async def _names(self, tenant: str, kind: str) -> list[str]:
        names: list[str] = []
        after = None
        while page := await self.state.scan(tenant, kind, after=after, limit=_PAGE):
            names += [name for name, _ in page]
            after = page[-1][0]
        return names


def _decoded(run_id: str, stored: bytes) -> RunRecord:
    try:
        record = msgspec.json.decode(stored, type=RunRecord)
    except msgspec.DecodeError as error:
        raise DataDamaged(f"the record of {run_id!r} cannot be read: restore it from a backup.") from error
    if record.id != run_id:
        raise DataDamaged(f"the record of {run_id!r} is that of {record.id!r}: restore it from a backup.")
    return record


def _readable(run_id: str, stored: bytes) -> RunRecord | None:
    try:
        return _decoded(run_id, stored)
    except DataDamaged as error:
        _log.warning("a run is left out of a list", extra={"run": run_id, "why": str(error)})
        return None

"""Journal: where a run's events are kept. In memory, for a run that nobody stores, or in the data plane's log of the run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from agentflow.agents import record
from agentflow.agents.record import Began, Event
from agentflow.errors import AgentFlowError, EngineStartFailed
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged
from agentflow.parsing import choice
from dataplane import EventRecord

if TYPE_CHECKING:
    from dataplane import StateStore

PAGE = 500
LONGEST = 512 << 10  # bytes of one event in a log
PARTS = "run_part"
ELSEWHERE = "@"  # what the kind of an event begins with whose payload names a part

Kept = Callable[[AgentFlowError | None], None]
"""Hears that events are durable, or why they may not be."""


class Journal(Protocol):
    """Takes a run's events in order. One run, one journal."""

    async def append(self, events: Sequence[Event], kept: Kept) -> None:
        """Put them at the log's end, all or none, behind all that was put there before.

        `kept` is called once, in the order of the appends: when they are durable, or with the error for which they are not, or
        may not be. Raises Refused, or DataDamaged: `kept` is not called then.
        """


class MemoryJournal:
    """Keeps nothing: with the process the run is gone."""

    async def append(self, events: Sequence[Event], kept: Kept) -> None:
        """As Journal.append."""
        kept(None)


class StoredJournal:
    """The log `run/ID` of a tenant.

    An event that is longer than a log takes at once (the conversation of a whole book) lies in a record of the kind
    `run_part`, which is durable before the log names it.
    """

    def __init__(self, state: StateStore, tenant: str, run_id: str, last: int = 0) -> None:
        self._state = state
        self._tenant = tenant
        self._run_id = run_id
        self._last = last

    async def append(self, events: Sequence[Event], kept: Kept) -> None:
        """As Journal.append."""
        stream = stream_name(self._run_id)
        with translated():
            records = [await self._record(event, place) for place, event in enumerate(events, self._last + 1)]
            durable = await self._state.append_ahead(self._tenant, stream, records, expected_last=self._last)
        self._last += len(records)
        durable.add_done_callback(functools.partial(_tell, kept))

    async def _record(self, event: Event, place: int) -> EventRecord:
        kind, payload = str(event.__struct_config__.tag), record.encode(event)
        if len(payload) <= LONGEST:
            return EventRecord(kind, event.at, payload)
        name = f"{self._run_id}/{place}"
        await self._state.put(self._tenant, PARTS, name, payload)
        return EventRecord(ELSEWHERE + kind, event.at, name.encode())


async def page(state: StateStore, tenant: str, run_id: str, after: int, limit: int = PAGE) -> list[tuple[int, Event]]:
    """At most `limit` (up to 1000) of a run's events with numbers above `after`, in order. An empty page is the end.

    Raises Refused, and DataDamaged for an event that cannot be read.
    """
    with translated():
        found = await state.read(tenant, stream_name(run_id), after=after, limit=limit)
        payloads = [await _payload(state, tenant, each) for _, each in found]
    try:
        events = [(number, record.decode(payload)) for (number, _), payload in zip(found, payloads, strict=True)]
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"the log of {run_id} cannot be read: {error}") from error
    for _, event in events:
        if isinstance(event, Began) and choice.needs_loading(event.tool_format):
            with contextlib.suppress(EngineStartFailed):  # whoever has to understand the log is told
                await asyncio.to_thread(choice.load, event.tool_format)
    return events


async def stored(state: StateStore, tenant: str, run_id: str, after: int = 0) -> list[tuple[int, Event]]:
    """All events of a stored run with numbers above `after`, in order; none for a run that is not there. Raises as `page`."""
    found: list[tuple[int, Event]] = []
    while more := await page(state, tenant, run_id, after):
        found += more
        after = more[-1][0]
    return found


async def remove(state: StateStore, tenant: str, run_id: str) -> bool:
    """Remove a run's log, and all its parts; False if there is no log. Raises Refused."""
    with translated():
        dropped = await state.drop_stream(tenant, stream_name(run_id))
        while parts := await state.scan(tenant, PARTS, prefix=f"{run_id}/", limit=PAGE):
            await asyncio.gather(*(state.delete(tenant, PARTS, name) for name, _ in parts))
    return dropped


def stream_name(run_id: str) -> str:
    """The name of a run's log."""
    return f"run/{run_id}"


def _tell(kept: Kept, durable: asyncio.Future[int]) -> None:
    try:
        with translated():
            durable.result()
    except AgentFlowError as error:
        kept(error)
    else:
        kept(None)


async def _payload(state: StateStore, tenant: str, stored: EventRecord) -> bytes:
    if not stored.kind.startswith(ELSEWHERE):
        return stored.payload
    part = await state.get(tenant, PARTS, stored.payload.decode())
    return b"" if part is None else part.value

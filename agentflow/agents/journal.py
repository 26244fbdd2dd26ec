"""Journal: where a run's events are kept. In memory, for a run that nobody stores, or in the data plane's log of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentflow.agents import record
from agentflow.agents.record import Event
from agentflow.library.planeerrors import translated
from dataplane import EventRecord, StateStore

PAGE = 500


class Journal(Protocol):
    """Takes a run's events in order. One run, one journal."""

    async def append(self, events: Sequence[Event]) -> int:
        """Keep them, all or none; returns the number of the last one (the first has 1). Whatever it returned stays.

        Raises Refused, or DataDamaged.
        """


class MemoryJournal:
    """Keeps nothing: with the process the run is gone."""

    def __init__(self) -> None:
        self._last = 0

    async def append(self, events: Sequence[Event]) -> int:
        """As Journal.append."""
        self._last += len(events)
        return self._last


class StoredJournal:
    """The log `run/ID` of a tenant. Durable before `append` returns."""

    def __init__(self, state: StateStore, tenant: str, run_id: str, last: int = 0) -> None:
        self._state = state
        self._tenant = tenant
        self._stream = stream_name(run_id)
        self._last = last

    async def append(self, events: Sequence[Event]) -> int:
        """As Journal.append."""
        records = [EventRecord(_kind(event), event.at, record.encode(event)) for event in events]
        with translated():
            self._last = await self._state.append(self._tenant, self._stream, records, expected_last=self._last)
        return self._last


async def stored(state: StateStore, tenant: str, run_id: str, after: int = 0) -> list[tuple[int, Event]]:
    """All events of a stored run with numbers above `after`, in order; none for a run that is not there."""
    found: list[tuple[int, Event]] = []
    with translated():
        while page := await state.read(tenant, stream_name(run_id), after=after, limit=PAGE):
            found += [(number, record.decode(each.payload)) for number, each in page]
            after = page[-1][0]
    return found


def stream_name(run_id: str) -> str:
    """The name of a run's log."""
    return f"run/{run_id}"


def _kind(event: Event) -> str:
    return str(event.__struct_config__.tag)

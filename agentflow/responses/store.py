"""ResponseStore: the responses that are stored, each a record and the log of its run (see records.py).

Of a run that goes on in this process only those events are read that are durable, as everywhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from msgspec.structs import replace

from agentflow.agents.archive import Archive
from agentflow.agents.record import Event
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged
from agentflow.responses.ids import response_of
from agentflow.responses.items import Item
from agentflow.responses.projection import Projection
from agentflow.responses.records import ResponseRecord

_ID = re.compile(r"resp_[0-9a-f]{24}")
_KIND = "response"
_DUE = "conversation_due"
_PART = "response_part"
_FIRST_BETWEEN = 0x4000  # in ids of what came before a response: those of its own items count from 0
_INLINE_EVENTS = 100  # about 2 ms of parsing; more would hold the loop up


class ResponseStore:
    """All methods raise Refused and DataDamaged. What they have done is durable.

    `told`: the durable events of a tenant's run that goes on in this process; None for any other, which the archive has.
    """

    def __init__(
        self,
        archive: Callable[[], Awaitable[Archive]],
        told: Callable[[str, str], list[Event] | None] = lambda _, __: None,
    ) -> None:
        self._archive = archive
        self._told = told

    async def put(self, tenant: str, record: ResponseRecord) -> None:
        """Keep what was asked, and that its items are due in its conversation, if it has one."""
        state = (await self._archive()).state
        writes = [state.put(tenant, _KIND, record.id, msgspec.json.encode(record))]
        if conversation := record.settings.conversation:
            writes.append(state.put(tenant, _DUE, f"{conversation}/{record.id}", b""))
        if record.run:
            writes.append(state.put(tenant, _PART, f"{record.run}/{record.id}", b""))
        with translated():
            await asyncio.gather(*writes)

    async def record(self, tenant: str, response_id: str) -> ResponseRecord | None:
        """What was asked; None for a response that there is not."""
        if not _ID.fullmatch(response_id):
            return None
        with translated():
            found = await (await self._archive()).state.get(tenant, _KIND, response_id)
        if found is None:
            return None
        try:
            return msgspec.json.decode(found.value, type=ResponseRecord)
        except msgspec.DecodeError as error:
            raise DataDamaged(f"the record of {response_id!r} cannot be read: restore it from a backup.") from error

    async def events(self, tenant: str, record: ResponseRecord) -> list[tuple[int, Event]]:
        """The log of its run; empty if there is none."""
        told = self._told(tenant, record.run_id)
        if told is not None:
            return list(enumerate(told, 1))
        return await (await self._archive()).events(tenant, record.run_id)

    async def is_told(self, tenant: str, record: ResponseRecord) -> bool:
        """Whether its run has a log."""
        told = self._told(tenant, record.run_id)
        if told is not None:
            return bool(told)
        return bool(await (await self._archive()).events_page(tenant, record.run_id, 0, 1))

    async def of_run(self, tenant: str, run_id: str) -> list[ResponseRecord]:
        """The responses that a run makes, or made; none for a run of no response's."""
        prefix = f"{run_id}/"
        with translated():
            parts = await (await self._archive()).state.scan(tenant, _PART, prefix=prefix, limit=1000)
        ids = [response_of(run_id), *(name.removeprefix(prefix) for name, _ in parts)]
        records = [await self.record(tenant, each) for each in ids]
        return [record for record in records if record is not None]

    async def projection(self, tenant: str, record: ResponseRecord) -> Projection | None:
        """The response as its log tells it; None if it has no log."""
        events = await self.events(tenant, record)
        return await _projection(record, events) if events else None

    async def outcome(self, tenant: str, record: ResponseRecord) -> Projection | None:
        """As `projection`; but of one that asked, once its run went on, with the rest of the run if no other response tells it.

        None does where the word was given at the run itself, or by somebody who left at once, or where nobody gave one in time.
        """
        projection = await self.projection(tenant, record)
        if projection is None or not projection.asks or projection.waits:
            return projection
        if is_gone_on(projection, await self.of_run(tenant, record.run_id)):
            return projection
        return await self.projection(tenant, replace(record, store=False))

    async def told(self, tenant: str, run_id: str, after: int) -> dict[str, int]:
        """What a record's `told` is that goes on with a run behind the first `after` events of its log."""
        earlier = [each for each in await self.of_run(tenant, run_id) if each.after < after]
        if not earlier:
            return {}
        last = max(earlier, key=lambda each: each.after)  # while the run goes on, it is not forgotten
        projection = await self.projection(tenant, last)
        conversation = last.settings.conversation
        if conversation is None or projection is None or not projection.asks:
            return last.told
        return {**last.told, conversation: projection.applied}

    async def between(self, tenant: str, record: ResponseRecord) -> tuple[Item, ...]:
        """What came of a run between what its conversation was told of it before and `record`, which no other tells there.

        None does where the word was given at the run itself, in a response that is not stored, or outside of the conversation.
        """
        told = record.told.get(record.settings.conversation or "", record.after)
        if told == record.after:
            return ()
        events = (await self.events(tenant, record))[: record.after]
        part = replace(record, input=(), store=False, after=told)
        return (await _projection(part, events, _FIRST_BETWEEN)).items()

    async def behind(self, tenant: str, projection: Projection) -> list[Event]:
        """The events of a run behind those that a response of it tells."""
        events = await self.events(tenant, projection.record)
        return [event for _, event in events[projection.applied :]]

    async def delete(self, tenant: str, record: ResponseRecord) -> None:
        """Forget a response, and its run, which is over."""
        await (await self._archive()).delete(tenant, record.run_id)
        await self.drop(tenant, record)

    async def drop(self, tenant: str, record: ResponseRecord) -> None:
        """Forget what was asked, and that its items were due; the log of its run stays."""
        state = (await self._archive()).state
        with translated():
            if conversation := record.settings.conversation:
                await state.delete(tenant, _DUE, f"{conversation}/{record.id}")
            if record.run:
                await state.delete(tenant, _PART, f"{record.run}/{record.id}")
            await state.delete(tenant, _KIND, record.id)

    async def due(self, tenant: str, conversation: str) -> list[str]:
        """The responses whose items a conversation waits for."""
        prefix = f"{conversation}/"
        with translated():
            found = await (await self._archive()).state.scan(tenant, _DUE, prefix=prefix, limit=1000)
        return [name.removeprefix(prefix) for name, _ in found]

    async def drop_due(self, tenant: str, conversation: str, response_id: str) -> None:
        """The items of a response are in its conversation, or will never be."""
        with translated():
            await (await self._archive()).state.delete(tenant, _DUE, f"{conversation}/{response_id}")


def is_gone_on(projection: Projection, of_run: Iterable[ResponseRecord]) -> bool:
    """Whether another response of the same run tells what came of it behind that one, which asked a person."""
    return any(record.after >= projection.applied for record in of_run)


async def _projection(record: ResponseRecord, events: list[tuple[int, Event]], first: int = 0) -> Projection:
    if len(events) <= _INLINE_EVENTS:
        return _projected(record, events, first)
    return await asyncio.to_thread(_projected, record, events, first)


def _projected(record: ResponseRecord, events: list[tuple[int, Event]], first: int) -> Projection:
    projection = Projection(record, first)
    for _, event in events:
        projection.apply(event)
    return projection

"""ResponseStore: the responses that are stored, each a record and the log of its run (see records.py).

Of a run that goes on in this process only those events are read that are durable, as everywhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

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
        if not events:
            return None
        if len(events) <= _INLINE_EVENTS:
            return _projected(record, events)
        return await asyncio.to_thread(_projected, record, events)

    async def outcome(self, tenant: str, record: ResponseRecord) -> Projection | None:
        """As `projection`; but of one that asked, once its run went on, with the rest of the run if no other response tells it.

        None does where the word was given at the run itself, or by somebody who left at once, or where nobody gave one in time.
        """
        projection = await self.projection(tenant, record)
        if projection is None or not projection.asks or projection.waits:
            return projection
        of_run = await self.of_run(tenant, record.run_id)
        if any(each.after >= projection.applied for each in of_run):
            return projection
        return await self.projection(tenant, replace(record, store=False))

    async def between(self, tenant: str, record: ResponseRecord) -> tuple[Item, ...]:
        """What came of a run between the last response of it in the same conversation and `record`, which no other tells there.

        None does where the word was given at the run itself, in a response that is not stored, or outside of the conversation.
        """
        earlier = [
            each
            for each in (await self.of_run(tenant, record.run_id) if record.run else ())
            if each.settings.conversation == record.settings.conversation and each.after < record.after
        ]
        if not earlier:
            return ()
        last = max(earlier, key=lambda each: each.after)
        events = (await self.events(tenant, last))[: record.after]
        if len(events) <= _INLINE_EVENTS:
            return _behind_the_question(last, events)
        return await asyncio.to_thread(_behind_the_question, last, events)

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


def _behind_the_question(record: ResponseRecord, events: list[tuple[int, Event]]) -> tuple[Item, ...]:
    """What the run did after `record`, which asked in it."""
    own, whole, size = Projection(record), Projection(replace(record, store=False)), None
    for _, event in events:
        own.apply(event)
        whole.apply(event)
        if own.asks and size is None:
            size = len(whole.items())
    return () if size is None else whole.items()[size:]


def _projected(record: ResponseRecord, events: list[tuple[int, Event]]) -> Projection:
    projection = Projection(record)
    for _, event in events:
        projection.apply(event)
    return projection

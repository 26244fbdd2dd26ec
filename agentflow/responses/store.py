"""ResponseStore: the responses that are stored, each a record and the log of its run (see records.py).

Of a run that goes on in this process only those events are read that are durable, as everywhere else.

A record of which its run's log does not tell is one that a response is begun with here (`beginning`), or else what a crash left.
What cannot be read of a run or of a conversation hides no other, and can be removed: where it lies follows from what names it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from agentflow.agents.archive import Archive
from agentflow.agents.record import ApprovalGiven, Event
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged
from agentflow.responses.ids import response_of
from agentflow.responses.items import Item
from agentflow.responses.projection import Projection
from agentflow.responses.records import ResponseRecord, Settings

_ID = re.compile(r"resp_[0-9a-f]{24}")
_KIND = "response"
_DUE = "conversation_due"
_PART = "response_part"
_FIRST_BETWEEN = 0x4000  # in ids of what came before a response: those of its own items count from 0
_INLINE_EVENTS = 100  # about 2 ms of parsing; more would hold the loop up
_PAGE = 1000

_log = logging.getLogger(__name__)


class OfRun(NamedTuple):
    """The responses of a run, as they were asked for: those that its log tells of, and the other records.

    `lost`: the log does not tell of them (yet). `damaged`: the ids of those that cannot be read.
    """

    told: list[ResponseRecord]
    lost: list[ResponseRecord]
    damaged: list[str]


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
        self._beginning: set[str] = set()  # ids, which no two tenants share

    @contextmanager
    def beginning(self, response_id: str) -> Iterator[None]:
        """Within, a response is begun: its record is no crash's, though no log tells of it yet."""
        self._beginning.add(response_id)
        try:
            yield
        finally:
            self._beginning.discard(response_id)

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
            record = msgspec.json.decode(found.value, type=ResponseRecord)
        except msgspec.DecodeError as error:
            raise DataDamaged(f"the record of {response_id!r} cannot be read: restore it from a backup.") from error
        if record.id != response_id:
            raise DataDamaged(f"the record of {response_id!r} is that of {record.id!r}: restore it from a backup.")
        return record

    async def events(self, tenant: str, record: ResponseRecord) -> list[tuple[int, Event]]:
        """The log of its run; empty if there is none."""
        told = self._told(tenant, record.run_id)
        if told is not None:
            return list(enumerate(told, 1))
        return await (await self._archive()).events(tenant, record.run_id)

    async def is_told(self, tenant: str, record: ResponseRecord) -> bool:
        """Whether its run's log tells of it."""
        told = self._told(tenant, record.run_id)
        if told is not None:
            return _tells(told[record.after : record.after + 1], record)
        page = await (await self._archive()).events_page(tenant, record.run_id, record.after, 1)
        return _tells([event for _, event in page], record)

    async def is_lost(self, tenant: str, record: ResponseRecord) -> bool:
        """Whether no log tells of it, nor ever will."""
        return record.id not in self._beginning and not await self.is_told(tenant, record)

    async def of_run(self, tenant: str, run_id: str) -> list[ResponseRecord]:
        """The responses that a run makes, or made; none for a run of no response's. Those that cannot be read are left out."""
        return (await self.all_of_run(tenant, run_id)).told

    async def all_of_run(self, tenant: str, run_id: str) -> OfRun:
        """As `of_run`, with what there is besides."""
        prefix = f"{run_id}/"
        with translated():
            parts = await (await self._archive()).state.scan(tenant, _PART, prefix=prefix, limit=_PAGE)
        found = OfRun([], [], [])
        for response_id in [response_of(run_id), *(name.removeprefix(prefix) for name, _ in parts)]:
            try:
                record = await self.record(tenant, response_id)
            except DataDamaged as error:
                _log.warning("a response of a run is left out", extra={"response": response_id, "why": str(error)})
                found.damaged.append(response_id)
                continue
            if record is not None:
                told = not record.run or await self._tells(tenant, record)
                (found.told if told else found.lost).append(record)
        return found

    async def _tells(self, tenant: str, record: ResponseRecord) -> bool:
        """As `is_told`; of a log that cannot be read nobody knows better."""
        try:
            return await self.is_told(tenant, record)
        except DataDamaged:
            return True

    async def projection(self, tenant: str, record: ResponseRecord) -> Projection | None:
        """The response as its log tells it; None if it does not."""
        events = await self.events(tenant, record)
        behind = [event for number, event in events if number == record.after + 1]
        return await _projection(record, events) if _tells(behind, record) else None

    async def outcome(self, tenant: str, record: ResponseRecord) -> Projection | None:
        """As `projection`; but of one that asked, once its run went on, with the rest of the run if no other response tells it.

        None does where the word was given at the run itself, or by somebody who left at once, or where nobody gave one in time.
        """
        projection = await self.projection(tenant, record)
        if projection is None or not projection.asks or projection.waits:
            return projection
        if await self.is_gone_on(tenant, projection, await self.all_of_run(tenant, record.run_id)):
            return projection
        return await self.projection(tenant, replace(record, store=False))

    async def is_gone_on(self, tenant: str, projection: Projection, of_run: OfRun) -> bool:
        """Whether another response tells what came of a run behind that one, which asked a person, or one that is damaged may."""
        gone_on = any(record.after >= projection.applied for record in of_run.told)
        return gone_on or await self._is_hidden(tenant, projection, of_run)

    async def _is_hidden(self, tenant: str, projection: Projection, of_run: OfRun) -> bool:
        """Whether a response that is damaged went on with a run behind that one, as far as the log's words tell.

        A word with no name came at the run itself, or in a response of an earlier release.
        """
        record = projection.record
        others = set(of_run.damaged) - {record.id}
        if not others:
            return False
        events = [event for _, event in await self.events(tenant, record)]
        named = {event.response for event in events if isinstance(event, ApprovalGiven)}
        behind = {event.response for event in events[projection.applied :] if isinstance(event, ApprovalGiven)}
        nowhere = others - named - {response_of(record.run_id)}
        return bool(others & behind) or ("" in behind and bool(nowhere))

    async def told(self, tenant: str, run_id: str, after: int) -> dict[str, int]:
        """What a record's `told` is that goes on with a run behind the first `after` events of its log.

        One that is damaged is taken to tell all up to there: it may have done so already, or a backup brings it back.
        """
        of_run = await self.all_of_run(tenant, run_id)
        earlier = [each for each in of_run.told if each.after < after]
        if not earlier:
            return {}
        last = max(earlier, key=lambda each: each.after)  # while the run goes on, it is not forgotten
        conversation = last.settings.conversation
        projection = await self.projection(tenant, last)
        if projection is not None and await self._is_hidden(tenant, projection, of_run):
            return dict.fromkeys([*last.told, *([conversation] if conversation is not None else [])], after)
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
        """Forget a response, and its run, which does not go on."""
        archive = await self._archive()
        await archive.delete(tenant, record.run_id)
        await archive.drop_open(tenant, record.run_id)
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

    async def traces(self, tenant: str, response_id: str) -> ResponseRecord:
        """Of a response whose record cannot be read: one with what else is known of it, its run and its conversation."""
        run = await self._named_with(tenant, _PART, response_id)
        settings = Settings(conversation=await self._named_with(tenant, _DUE, response_id) or None)
        return ResponseRecord(id=response_id, model="", input=(), settings=settings, run=run)

    async def _named_with(self, tenant: str, kind: str, response_id: str) -> str:
        """What stands before a response's id in the name of a record; empty: there is none."""
        state, after = (await self._archive()).state, None
        with translated():
            while page := await state.scan(tenant, kind, after=after, limit=_PAGE):
                for name, _ in page:
                    before, _, last = name.rpartition("/")
                    if last == response_id:
                        return before
                after = page[-1][0]
        return ""

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


def _tells(behind: list[Event], record: ResponseRecord) -> bool:
    """Whether a log tells of a response: `behind` begins with the event where that begins, if there is one."""
    if not behind or not record.named:
        return bool(behind)
    return isinstance(behind[0], ApprovalGiven) and behind[0].response == record.id


async def _projection(record: ResponseRecord, events: list[tuple[int, Event]], first: int = 0) -> Projection:
    if len(events) <= _INLINE_EVENTS:
        return _projected(record, events, first)
    return await asyncio.to_thread(_projected, record, events, first)


def _projected(record: ResponseRecord, events: list[tuple[int, Event]], first: int) -> Projection:
    projection = Projection(record, first)
    for _, event in events:
        projection.apply(event)
    return projection

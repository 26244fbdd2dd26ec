"""Conversations: items that are added to, by their owner and by responses.

A response's items come in when it is over, whoever noticed: its place is noted when it begins (`conversation_due`), and whoever
next looks at the conversation writes the items, under names that follow from the response's log, and removes the note. So
neither a crash nor a client that went away loses them, and nothing is there twice. One at a time does so for a conversation.

Those of a response that asks a person come in once its run has gone on; with all that came of it, when the run is over, where
no other response tells that. What came of it before the next response of the conversation went on with the run comes in with
that one, where no other response of the conversation tells it: its record says from where on.

One that failed gives nothing of its own. But what was done before it, and behind a question, was done.

What cannot be read is left out, with a warning: a response whose note stays (a backup may bring it back), or an item.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from agentflow.agents.archive import Archive
from agentflow.library.ids import Ids
from agentflow.library.paging import paged
from agentflow.library.planeerrors import translated
from agentflow.library.refusals import DataDamaged, NotStored
from agentflow.library.values import Page, PageRequest
from agentflow.responses.items import Item, kept
from agentflow.responses.projection import Projection
from agentflow.responses.records import ConversationRecord, ItemRecord
from agentflow.responses.store import ResponseStore

_ID = re.compile(r"conv_[0-9a-f]{28}")
_KIND = "conversation"
_ITEM = "conversation_item"
_PAGE = 1000
_INLINE_ITEMS = 100  # about a millisecond of decoding; more would hold the loop up

_log = logging.getLogger(__name__)


class Stored(NamedTuple):
    """A conversation's items by the names of their records, oldest first, and the bytes of those that cannot be read."""

    items: list[tuple[str, Item]]
    damaged: dict[str, bytes]

    def damaged_of(self, item_id: str) -> list[str]:
        """The names of the records that cannot be read in which the item's own id still stands."""
        # Within a text or an item's arguments the quotes are escaped, so that no word of them is taken for it.
        own = b'"id":' + msgspec.json.encode(item_id)
        return [name for name, value in self.damaged.items() if own in value]


class Conversations:
    """Lives on the event loop. All methods raise NotStored, Refused and DataDamaged. What they have done is durable.

    `goes_on`: whether a tenant's run is under way in this process, so that its log need not be read. `end_waiting` ends one
    that waits for a person.
    """

    def __init__(
        self,
        archive: Callable[[], Awaitable[Archive]],
        responses: ResponseStore,
        goes_on: Callable[[str, str], bool],
        end_waiting: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._archive = archive
        self._responses = responses
        self._goes_on = goes_on
        self._end_waiting = end_waiting
        self._ids = Ids()
        # By tenant and conversation; gone with the last who holds or awaits it.
        self._settling: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def create(self, tenant: str, metadata: dict[str, str], items: Sequence[Item]) -> ConversationRecord:
        """A new conversation, with its first items."""
        conversation_id, now = self._ids.new("conv_")
        record = ConversationRecord(id=conversation_id, created_ms=now, metadata=metadata)
        await self._write(tenant, conversation_id, items)
        await self._put(tenant, record)
        return record

    async def retrieve(self, tenant: str, conversation_id: str) -> ConversationRecord:
        """A conversation."""
        found = await self._bytes(tenant, conversation_id)
        try:
            return msgspec.json.decode(found, type=ConversationRecord)
        except msgspec.DecodeError as error:
            raise DataDamaged(
                f"the record of {conversation_id!r} cannot be read: restore it from a backup.",
                of=_called(conversation_id),
            ) from error

    async def _bytes(self, tenant: str, conversation_id: str) -> bytes:
        found = None
        if _ID.fullmatch(conversation_id):
            with translated():
                found = await (await self._archive()).state.get(tenant, _KIND, conversation_id)
        if found is None:
            raise NotStored(f"Conversation with id '{conversation_id[:64]}' not found.", param="conversation")
        return found.value

    async def update(self, tenant: str, conversation_id: str, metadata: dict[str, str]) -> ConversationRecord:
        """Give a conversation other metadata."""
        record = replace(await self.retrieve(tenant, conversation_id), metadata=metadata)
        await self._put(tenant, record)
        return record

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Remove a conversation with its items. Responses stay, but a run that waits for a person's word is ended.

        The record goes last: what was cut short can be repeated. What cannot be read of it goes too.
        """
        await self._bytes(tenant, conversation_id)
        for response_id in await self._responses.due(tenant, conversation_id):
            try:
                record = await self._responses.record(tenant, response_id)
            except DataDamaged as error:
                _log.warning("a conversation is removed without its response", extra=_told(response_id, error))
                record = await self._responses.traces(tenant, response_id)
            if record is not None:
                await self._end_waiting(tenant, record.run_id)
            await self._responses.drop_due(tenant, conversation_id, response_id)
        async with self._alone(tenant, conversation_id):
            stored = await self._stored(tenant, conversation_id)
            names = [*(name for name, _ in stored.items), *stored.damaged]
            with translated():
                state = (await self._archive()).state
                await asyncio.gather(*(state.delete(tenant, _ITEM, name) for name in names))
                await state.delete(tenant, _KIND, conversation_id)

    async def add(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> None:
        """Add items at the end."""
        await self.retrieve(tenant, conversation_id)
        await self.settle(tenant, conversation_id)
        await self._write(tenant, conversation_id, items)

    async def items(self, tenant: str, conversation_id: str, request: PageRequest) -> Page[Item]:
        """A part of a conversation's items."""
        return paged(await self.all_items(tenant, conversation_id), lambda item: item.id, request)

    async def all_items(self, tenant: str, conversation_id: str) -> list[Item]:
        """All of a conversation's items, oldest first, but for those that cannot be read."""
        return [item for _, item in (await self._all(tenant, conversation_id)).items]

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> Item:
        """One item of a conversation."""
        stored = await self._all(tenant, conversation_id)
        for _, item in stored.items:
            if item.id == item_id:
                return item
        if names := stored.damaged_of(item_id):
            raise DataDamaged(
                f"the item {names[0]!r} cannot be read: restore it from a backup.",
                of=f"item '{item_id[:64]}' of {_called(conversation_id)}",
            )
        raise _no_item(item_id)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> ConversationRecord:
        """Remove an item; returns its conversation. One that cannot be read is found if its id can be."""
        stored = await self._all(tenant, conversation_id)
        record = await self.retrieve(tenant, conversation_id)
        names = [name for name, item in stored.items if item.id == item_id]
        names += stored.damaged_of(item_id)
        if not names:
            raise _no_item(item_id)
        with translated():
            await (await self._archive()).state.delete(tenant, _ITEM, names[0])
        return record

    async def settle(self, tenant: str, conversation_id: str, run_id: str = "") -> None:
        """Take in the items of the responses that are over and do not wait for a person; of a run that is under way, only of
        `run_id`. One that cannot be read is left out, with a warning.
        """
        async with self._alone(tenant, conversation_id):
            for response_id in await self._responses.due(tenant, conversation_id):
                try:
                    await self._settle(tenant, conversation_id, response_id, run_id)
                except DataDamaged as error:
                    _log.warning("a conversation goes on without a response", extra=_told(response_id, error))

    async def _settle(self, tenant: str, conversation_id: str, response_id: str, run_id: str) -> None:
        """As `settle`, of one response."""
        record = await self._responses.record(tenant, response_id)
        if record is not None:
            if record.run_id != run_id and self._goes_on(tenant, record.run_id):
                return
            if await self._responses.is_lost(tenant, record):
                await self._responses.drop(tenant, record)
                return
            projection = await self._responses.outcome(tenant, record)
            if projection is None or not projection.over or projection.waits:
                return
            await self._take_in(tenant, conversation_id, projection)
        await self._responses.drop_due(tenant, conversation_id, response_id)

    async def _all(self, tenant: str, conversation_id: str) -> Stored:
        """What a conversation has, once all is taken in."""
        await self.retrieve(tenant, conversation_id)
        await self.settle(tenant, conversation_id)
        return await self._stored(tenant, conversation_id)

    def _alone(self, tenant: str, conversation_id: str) -> asyncio.Lock:
        return self._settling.setdefault((tenant, conversation_id), asyncio.Lock())

    async def _take_in(self, tenant: str, conversation_id: str, projection: Projection) -> None:
        record = projection.record
        between = await self._responses.between(tenant, record)
        failed = (
            projection.state().status == "failed" and record.store
        )  # one that asked is complete, whatever its run came to
        items = kept(between if failed else (*between, *record.input, *projection.items()))
        place = f"{projection.over_ms:012x}{record.id[-16:]}"
        await self._put_items(tenant, [(f"{conversation_id}/{place}{n:04x}", item) for n, item in enumerate(items)])

    async def _write(self, tenant: str, conversation_id: str, items: Sequence[Item]) -> None:
        place, _ = self._ids.new("")
        await self._put_items(tenant, [(f"{conversation_id}/{place}{n:04x}", item) for n, item in enumerate(items)])

    async def _put_items(self, tenant: str, named: Sequence[tuple[str, Item]]) -> None:
        state = (await self._archive()).state
        with translated():
            await asyncio.gather(
                *(state.put(tenant, _ITEM, name, msgspec.json.encode(ItemRecord(item=item))) for name, item in named)
            )

    async def _put(self, tenant: str, record: ConversationRecord) -> None:
        with translated():
            await (await self._archive()).state.put(tenant, _KIND, record.id, msgspec.json.encode(record))

    async def _stored(self, tenant: str, conversation_id: str) -> Stored:
        found = Stored([], {})
        state, after = (await self._archive()).state, None
        with translated():
            while page := await state.scan(tenant, _ITEM, prefix=f"{conversation_id}/", after=after, limit=_PAGE):
                values = [(name, each.value) for name, each in page]
                if len(values) <= _INLINE_ITEMS:
                    _decode(values, found)
                else:
                    await asyncio.to_thread(_decode, values, found)
                after = page[-1][0]
        for name in found.damaged:
            _log.warning("an item that cannot be read is left out: restore it from a backup", extra={"item": name})
        return found


def _decode(values: Sequence[tuple[str, bytes]], into: Stored) -> None:
    for name, value in values:
        try:
            into.items.append((name, msgspec.json.decode(value, type=ItemRecord).item))
        except msgspec.DecodeError:
            into.damaged[name] = value


def _called(conversation_id: str) -> str:
    return f"conversation '{conversation_id}'"


def _told(response_id: str, error: DataDamaged) -> dict[str, str]:
    return {"response": response_id, "why": str(error)}


def _no_item(item_id: str) -> NotStored:
    return NotStored(f"Item with id '{item_id[:64]}' not found.", param="item_id")

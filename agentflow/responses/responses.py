"""Responses: the door of the answers that are kept.

A response is a run, of an agent or of a plain model, and a record of what was asked. What it answered is read from the run's log
each time (projection.py), so that a stream, a stream that is resumed and a later look cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from msgspec.structs import replace

from agentflow.agents.agency import Asked
from agentflow.agents.record import Event
from agentflow.agents.runs import Runs, new_run_id
from agentflow.errors import InvalidRequest
from agentflow.library.paging import paged
from agentflow.library.refusals import NotStored
from agentflow.library.values import Page, PageRequest
from agentflow.messages import ChatRequest, Message
from agentflow.responses.conversations import Conversations
from agentflow.responses.events import ResponseState
from agentflow.responses.history import check_calls, context_of, messages_of
from agentflow.responses.ids import response_of, run_of
from agentflow.responses.items import Item
from agentflow.responses.records import ResponseRecord
from agentflow.responses.store import ResponseStore
from agentflow.responses.stream import ResponseStream
from agentflow.responses.values import NewResponse

_AT_ONCE = 50  # events of a log that are told without a break
_NO_MESSAGE = "A response needs something to answer: give `input`."


class Responses:
    """Lives on the event loop. What another tenant has is as unknown as what nobody has."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._store = ResponseStore(runs.archive)
        self.conversations = Conversations(runs.archive, self._store, self._goes_on)

    async def create(self, new: NewResponse) -> ResponseStream:
        """Begin a response; returns with the model's first word. Raises InvalidRequest, Refused, EngineFailure.

        Closing the stream before the end ends the response, which is `cancelled` then.
        """
        request, settings, tenant = new.request, new.settings, new.request.caller.tenant
        before = await self._before(tenant, new)
        added = messages_of(new.input)
        check_calls(before, added)
        if not before and not added:
            raise InvalidRequest(_NO_MESSAGE, param="input", code="missing_required_parameter")
        run_id = new_run_id()
        record = ResponseRecord(
            id=response_of(run_id),
            model=request.model,
            input=new.input,
            settings=settings,
            store=request.store,
        )
        if request.store:
            await self._store.put(tenant, record)
        try:
            return await self._begun(record, replace(request, messages=(*before, *added)))
        except BaseException:
            if request.store and await self._ended(tenant, run_id):
                await self._store.delete(tenant, record)  # whose id its caller never learns
            raise

    async def _begun(self, record: ResponseRecord, request: ChatRequest) -> ResponseStream:
        """The response's stream, with the model's first word."""
        settings = record.settings
        asked = Asked(run_of(record.id), settings.instructions or "", settings.max_tool_calls)
        going = await self._runs.begin(request, asked)
        stream = ResponseStream(record, going.live.follow(), going=going)
        try:
            await stream.begun()
        except BaseException:
            await stream.aclose()
            await going.ended()  # which notes the run's end
            raise
        return stream

    async def _ended(self, tenant: str, run_id: str) -> bool:
        """End a run that did not come to a word. False for one that the next daemon goes on with."""
        live = self._runs.live(tenant, run_id)
        await self._runs.cancel(tenant, run_id)
        if live is not None:
            return live.over
        run = await (await self._runs.archive()).find(tenant, run_id)
        return run is None or run.end is not None

    def _goes_on(self, tenant: str, response_id: str) -> bool:
        live = self._runs.live(tenant, run_of(response_id))
        return live is not None and not live.over

    async def retrieve(self, tenant: str, response_id: str) -> ResponseState:
        """A response as it stands. Raises NotStored, Refused, DataDamaged, as all below do."""
        record = await self._record(tenant, response_id)
        projection = await self._store.projection(tenant, record)
        if projection is None:
            raise _unknown(response_id)
        return projection.state()

    async def stream(self, tenant: str, response_id: str, after: int) -> ResponseStream:
        """A response's events with numbers above `after`, and those to come while it goes on."""
        record = await self._record(tenant, response_id)
        live = self._runs.live(tenant, run_of(response_id))
        if live is not None:
            return ResponseStream(record, live.follow(), after=after)
        events = await self._store.events(tenant, response_id)
        if not events:
            raise _unknown(response_id)
        return ResponseStream(record, _replayed(events), after=after)

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response and its run. One that goes on is ended. What it gave to a conversation stays there."""
        record, run_id = await self._record(tenant, response_id), run_of(response_id)
        await self._runs.cancel(tenant, run_id)
        if record.settings.conversation is not None:
            await self.conversations.settle(tenant, record.settings.conversation)
        await self._runs.forget(tenant, run_id)
        await self._store.delete(tenant, record)

    async def drop(self, tenant: str, run_id: str) -> None:
        """Forget the response that a run makes, which is over and whose log goes next; does nothing for any other run."""
        record = await self._store.record(tenant, response_of(run_id))
        if record is None:
            return
        if record.settings.conversation is not None:
            await self.conversations.settle(tenant, record.settings.conversation)
        await self._store.drop(tenant, record)

    async def input_items(self, tenant: str, response_id: str, request: PageRequest) -> Page[Item]:
        """A part of the items that came with a response's request."""
        record = await self._record(tenant, response_id)
        return paged(record.input, lambda item: item.id, request)

    async def cancel(self, tenant: str, response_id: str) -> ResponseState:
        """End a response that is made in the background. Raises InvalidRequest for any other."""
        await self._record(tenant, response_id)
        raise InvalidRequest(
            "Cannot cancel a synchronous response: close its connection instead.",
            param="response_id",
            code="invalid_value",
        )

    async def _before(self, tenant: str, new: NewResponse) -> tuple[Message, ...]:
        """What the new input is added to."""
        if new.settings.conversation is not None:
            return messages_of(await self.conversations.all_items(tenant, new.settings.conversation))
        if new.settings.previous_response_id is not None:
            return await self._previous(tenant, new.settings.previous_response_id)
        return ()

    async def _previous(self, tenant: str, response_id: str) -> tuple[Message, ...]:
        param = "previous_response_id"
        record = await self._store.record(tenant, response_id)
        projection = None if record is None else await self._store.projection(tenant, record)
        if projection is None:
            raise InvalidRequest(
                f"Previous response with id '{response_id[:64]}' not found.",
                param=param,
                code="previous_response_not_found",
            )
        if not projection.over:
            raise InvalidRequest(
                f"The response '{response_id}' is not over yet: wait until it is, or ask without it.",
                param=param,
                code="previous_response_in_progress",
            )
        return context_of(projection.progress)

    async def _record(self, tenant: str, response_id: str) -> ResponseRecord:
        record = await self._store.record(tenant, response_id)
        if record is None:
            raise _unknown(response_id)
        return record


def _unknown(response_id: str) -> NotStored:
    return NotStored(f"Response with id '{response_id[:64]}' not found.", param="response_id")


async def _replayed(events: Iterable[tuple[int, Event]]) -> AsyncGenerator[tuple[int, Event], None]:
    for number, each in enumerate(events):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # nothing else here waits, and others want to be served
        yield each

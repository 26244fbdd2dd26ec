"""Responses: the door of the answers that are kept.

A response is a run, of an agent or of a plain model, and a record of what was asked. What it answered is read from the run's log
each time (projection.py), so that a stream, a stream that is resumed and a later look cannot differ.

Where a run waits for a person's word about calls, its response is complete, with the question as its last item; the word comes
with the next response, which goes on with the same run. Its record is durable before the word is in the run's log. A word that
is given at the run itself lets the run go on with nobody to listen; what came of it can be asked from the run's last response
on, and comes into that one's conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable

from msgspec.structs import replace

from agentflow.agents.agency import Asked
from agentflow.agents.record import Event
from agentflow.agents.runs import Runs, new_run_id
from agentflow.errors import AgentFlowError, InvalidRequest
from agentflow.library.paging import paged
from agentflow.library.planeerrors import damage_of
from agentflow.library.refusals import DataDamaged, DataUnavailable, NotStored
from agentflow.library.values import Page, PageRequest
from agentflow.messages import ChatRequest, Message
from agentflow.responses.conversations import Conversations
from agentflow.responses.events import ResponseState
from agentflow.responses.history import check_calls, context_of, messages_of, take_results
from agentflow.responses.ids import response_of, run_of
from agentflow.responses.items import Item, WordItem
from agentflow.responses.records import ResponseRecord, Settings
from agentflow.responses.store import OfRun, ResponseStore
from agentflow.responses.stream import ResponseStream
from agentflow.responses.values import NewResponse
from agentflow.responses.words import Words, check_heard, same_run

_PREVIOUS = "previous_response_id"
_AT_ONCE = 50  # events of a log that are told without a break
_NO_MESSAGE = "A response needs something to answer: give `input`."

_log = logging.getLogger(__name__)


class Responses:
    """Lives on the event loop. What another tenant has is as unknown as what nobody has."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._store = ResponseStore(runs.archive, self._told)
        self.conversations = Conversations(runs.archive, self._store, self._goes_on, self._end_waiting)

    async def create(self, new: NewResponse) -> ResponseStream:
        """Begin a response; returns with the model's first word. Raises InvalidRequest, Refused, EngineFailure.

        Closing the stream before the end ends the response, which is `cancelled` then.
        """
        request, settings, tenant = new.request, new.settings, new.request.caller.tenant
        if any(isinstance(item, WordItem) for item in new.input):
            return await self._gone_on(new)
        before, chain = await self._before(tenant, new)
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
        with self._store.beginning(record.id):
            if request.store:
                await self._store.put(tenant, record)
            try:
                chain = chain or (record.id if request.store else "")
                return await self._begun(record, replace(request, messages=(*before, *added)), chain)
            except BaseException:
                if request.store and await self._ended(tenant, run_id):
                    await self._store.delete(tenant, record)  # whose id its caller never learns
                raise

    async def _gone_on(self, new: NewResponse) -> ResponseStream:
        """A response that goes on with a run which waits for a person, by that person's word."""
        tenant = new.request.caller.tenant
        words = Words.of(new)
        before = await self._waiting(tenant, new.settings, words)
        going = self._runs.going_of(tenant, words.run_id)
        if before.model != new.request.model:
            raise InvalidRequest(f"The approval was asked for by '{before.model}': name that.", param="model")
        if going is None:
            raise await self._not_waiting(tenant, words)
        if not words.fit(going.live.progress):
            raise await self._answered(tenant, words)
        after = going.live.count
        record = ResponseRecord(
            id=response_of(new_run_id()),
            model=before.model,
            input=new.input,
            settings=same_run(before.settings, new),
            store=new.request.store,
            run=words.run_id,
            after=after,
            told=await self._store.told(tenant, words.run_id, after),
            named=True,
        )
        with self._store.beginning(record.id):
            if record.store:
                await self._store.put(tenant, record)
            taken = False
            try:
                taken = await going.answer(words.events(new.request.caller.name, record.id), record.after, record.id)
            finally:
                if record.store and not taken:
                    await self._store.drop(tenant, record)  # whose id its caller never learns
        if not taken:
            raise await self._answered(tenant, words)
        return ResponseStream(record, going.live.follow(), going=going)

    async def _waiting(self, tenant: str, settings: Settings, words: Words) -> ResponseRecord:
        """The response that an approval was asked for in. Raises InvalidRequest."""
        found = await self._store.of_run(tenant, words.run_id)
        if settings.previous_response_id is not None:
            await self._previous_record(tenant, settings.previous_response_id)
            found = [record for record in found if record.id == settings.previous_response_id]
        elif settings.conversation is not None:
            await self.conversations.retrieve(tenant, settings.conversation)
            found = [record for record in found if record.settings.conversation == settings.conversation]
        else:
            raise InvalidRequest(
                "An approval goes on from a response that is stored: give its `previous_response_id`, or its `conversation`.",
                param="previous_response_id",
                code="missing_required_parameter",
            )
        if not found:
            raise words.unknown()
        return found[-1]

    async def _not_waiting(self, tenant: str, words: Words) -> AgentFlowError:
        """Why a run that does not go on here cannot be answered."""
        run = await (await self._runs.archive()).find(tenant, words.run_id)
        if run is not None and run.end is None:
            return DataUnavailable("The run that asked is being taken up after a start. Try again.", retry_after_s=1.0)
        return await self._answered(tenant, words)

    async def _answered(self, tenant: str, words: Words) -> InvalidRequest:
        return words.answered(await self._store.of_run(tenant, words.run_id))

    async def _begun(self, record: ResponseRecord, request: ChatRequest, chain: str) -> ResponseStream:
        """The response's stream, with the model's first word."""
        settings = record.settings
        asked = Asked(run_of(record.id), settings.instructions or "", settings.max_tool_calls, chain)
        going = await self._runs.begin(request, asked)
        going.response = record.id
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

    def _goes_on(self, tenant: str, run_id: str) -> bool:
        live = self._runs.live(tenant, run_id)
        return live is not None and not live.over and not live.progress.waits_for_word

    async def _end_waiting(self, tenant: str, run_id: str) -> None:
        live = self._runs.live(tenant, run_id)
        if live is not None and live.progress.waits_for_word:
            await self._runs.cancel(tenant, run_id)

    def _told(self, tenant: str, run_id: str) -> list[Event] | None:
        live = self._runs.live(tenant, run_id)
        return None if live is None else live.told()

    async def retrieve(self, tenant: str, response_id: str) -> ResponseState:
        """A response as it stands. Raises NotStored, Refused, DataDamaged, as all below do."""
        with damage_of(_called(response_id)):
            record = await self._record(tenant, response_id)
            projection = await self._store.projection(tenant, record)
        if projection is None:
            raise _unknown(response_id)
        return projection.state()

    async def stream(self, tenant: str, response_id: str, after: int) -> ResponseStream:
        """A response's events with numbers above `after`, and those to come while it goes on."""
        record = await self._told_record(tenant, response_id)
        live = self._runs.live(tenant, record.run_id)
        if live is not None:
            return ResponseStream(record, live.follow(), after=after)
        with damage_of(_called(response_id)):
            events = await self._store.events(tenant, record)
        return ResponseStream(record, _replayed(events), after=after)

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response, and its run with the last of its responses. A run with which no other response goes on is ended.

        What it gave to a conversation stays there. What cannot be read of it is removed all the same.
        """
        try:
            record = await self._record(tenant, response_id)
        except DataDamaged as error:
            _log.warning(
                "a response is removed that cannot be read", extra={"response": response_id, "why": str(error)}
            )
            record = await self._store.traces(tenant, response_id)
        of_run = await self._store.all_of_run(tenant, record.run_id)
        if record in of_run.lost:
            await self._store.drop(tenant, record)
            return
        if await self._ends_with(tenant, record, of_run):
            await self._runs.cancel(tenant, record.run_id)
        await self._settle(tenant, of_run.told)
        if any(each != response_id for each in [*(other.id for other in of_run.told), *of_run.damaged]):
            await self._store.drop(tenant, record)
            return
        for lost in of_run.lost:
            await self._store.drop(tenant, lost)
        await self._runs.forget(tenant, record.run_id)
        await self._store.delete(tenant, record)

    async def _ends_with(self, tenant: str, record: ResponseRecord, of_run: OfRun) -> bool:
        """Whether a response's run, if it goes on here, ends once the response is deleted: no other goes on with it."""
        if self._runs.live(tenant, record.run_id) is None:
            return False  # there is nothing to end, and its log may be damaged
        projection = await self._store.projection(tenant, record)
        return (
            projection is None
            or not projection.followed
            or not await self._store.is_gone_on(tenant, projection, of_run)
        )

    async def drop(self, tenant: str, run_id: str) -> None:
        """Forget the responses that a run makes, which is over and whose log goes next; does nothing for any other run."""
        of_run = await self._store.all_of_run(tenant, run_id)
        await self._settle(tenant, of_run.told)
        damaged = [await self._store.traces(tenant, each) for each in of_run.damaged]
        for record in (*of_run.told, *of_run.lost, *damaged):
            await self._store.drop(tenant, record)

    async def _settle(self, tenant: str, of_run: list[ResponseRecord]) -> None:
        """Take in what each conversation is due of a run, before any of its responses goes: others would tell its part then."""
        for record in of_run:
            if record.settings.conversation is not None:
                await self.conversations.settle(tenant, record.settings.conversation, record.run_id)

    async def input_items(self, tenant: str, response_id: str, request: PageRequest) -> Page[Item]:
        """A part of the items that came with a response's request."""
        record = await self._told_record(tenant, response_id)
        return paged(record.input, lambda item: item.id, request)

    async def cancel(self, tenant: str, response_id: str) -> ResponseState:
        """End a response that is made in the background. Raises InvalidRequest for any other."""
        await self._told_record(tenant, response_id)
        raise InvalidRequest(
            "Cannot cancel a synchronous response: close its connection instead.",
            param="response_id",
            code="invalid_value",
        )

    async def _before(self, tenant: str, new: NewResponse) -> tuple[tuple[Message, ...], str]:
        """What the new input is added to; and what it belongs to: a conversation, or the first response of the chain."""
        if new.settings.conversation is not None:
            items = await self.conversations.all_items(tenant, new.settings.conversation)
            return messages_of(items), new.settings.conversation
        if new.settings.previous_response_id is not None:
            return await self._previous(tenant, new.settings.previous_response_id)
        return (), ""

    async def _previous(self, tenant: str, response_id: str) -> tuple[tuple[Message, ...], str]:
        record = await self._previous_record(tenant, response_id)
        with damage_of(_called(response_id)):
            projection = await self._store.outcome(tenant, record)
        if projection is None:
            raise _no_previous(response_id)
        if projection.asks:  # another tells the rest; what came of the calls belongs to this one too
            take_results(projection.progress, await self._store.behind(tenant, projection))
        check_heard(response_id, projection.progress)
        if not projection.over:
            raise InvalidRequest(
                f"The response '{response_id}' is not over yet: wait until it is, or ask without it.",
                param=_PREVIOUS,
                code="previous_response_in_progress",
            )
        began = projection.progress.began
        return context_of(projection.progress), (began.conversation if began is not None else "") or response_id

    async def _previous_record(self, tenant: str, response_id: str) -> ResponseRecord:
        with damage_of(_called(response_id)):
            record = await self._store.record(tenant, response_id)
        if record is None:
            raise _no_previous(response_id)
        return record

    async def _record(self, tenant: str, response_id: str) -> ResponseRecord:
        record = await self._store.record(tenant, response_id)
        if record is None:
            raise _unknown(response_id)
        return record

    async def _told_record(self, tenant: str, response_id: str) -> ResponseRecord:
        """As `_record`, of a response whose log tells of it."""
        with damage_of(_called(response_id)):
            record = await self._record(tenant, response_id)
            if not await self._store.is_told(tenant, record):
                raise _unknown(response_id)
        return record


def _called(response_id: str) -> str:
    return f"response '{response_id[:64]}'"


def _no_previous(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"Previous response with id '{response_id[:64]}' not found.",
        param=_PREVIOUS,
        code="previous_response_not_found",
    )


def _unknown(response_id: str) -> NotStored:
    return NotStored(f"Response with id '{response_id[:64]}' not found.", param="response_id")


async def _replayed(events: Iterable[tuple[int, Event]]) -> AsyncGenerator[tuple[int, Event], None]:
    """What is stored of a run that does not go on here. Raises DataUnavailable behind it: who has heard all reads no further."""
    for number, each in enumerate(events):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # nothing else here waits, and others want to be served
        yield each
    raise DataUnavailable(
        "The response is not over, and does not go on now: it does once the daemon has started. Ask again for the rest.",
        retry_after_s=1.0,
    )

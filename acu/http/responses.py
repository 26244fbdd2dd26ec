"""/v1/responses: answers that are kept, streamed as typed events, and gone on from."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType
from multidict import MultiDict

from acu.http.entry import Entry, bound
from acu.http.errors import BadRequest, translate
from acu.http.exchange import Exchange, encoded, new_id
from acu.http.generation import REFUSALS
from acu.http.paging import Cursor, Order, decode_query, ends, given
from acu.http.route import Answer, Route
from acu.http.runstream import HEARTBEAT_S, Heart
from acu.http.sse import EventWriter
from acu.http.wire.response_body import RESPONSE_DECODER, ResponseBody, new_response
from acu.http.wire.response_events import ResponseStreamEvent, error_bytes, event_bytes
from acu.http.wire.response_objects import ItemList, ResponseDeleted, ResponseObject, item_object, response_object
from acu.http.wire.sampling import Envelope
from agentflow.library.values import PageRequest
from agentflow.responses.events import ResponseState
from agentflow.responses.stream import ResponseStream
from agentflow.service import Service

QueryT = TypeVar("QueryT", bound=Struct)

RESPONSE = "/v1/responses/{response_id}"
_HINTS = frozenset({"include", "include[]"})  # lists in queries, which change nothing


class RetrieveQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a response. `starting_after` is a sequence number, and needs `stream`; the last is a hint."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=2**53)] | UnsetType = UNSET
    include_obfuscation: bool = False


class ItemsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of items."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Order = "desc"
    after: Cursor | UnsetType = UNSET


async def create(service: Service, exchange: Exchange) -> web.StreamResponse:
    body = RESPONSE_DECODER.decode(exchange.take_body())
    exchange.model = body.model
    exchange.streamed = bool(body.stream)
    defaults = service.sampling_defaults(body.model)
    envelope = Envelope(new_id("resp-"), exchange.caller, exchange.deadline_s(), defaults)
    new = new_response(body, envelope)
    async with aclosing(await service.responses.create(new)) as stream:
        exchange.run_id = stream.run_id
        try:
            if body.stream:
                return await stream_response(exchange, stream)
            return await _answer(exchange, await stream.finish())
        finally:
            exchange.usage, exchange.queue_s, exchange.ttft_s = stream.usage, stream.queue_s, stream.ttft_s


async def retrieve(service: Service, exchange: Exchange) -> web.StreamResponse:
    query = _query(exchange, RetrieveQuery)
    after = -1 if query.starting_after is UNSET else query.starting_after
    if not query.stream:
        if after >= 0:
            raise BadRequest("'starting_after' needs 'stream' to be true.", param="starting_after")
        return await _answer(exchange, await service.responses.retrieve(exchange.caller.tenant, _id(exchange)))
    exchange.streamed = True
    async with aclosing(await service.responses.stream(exchange.caller.tenant, _id(exchange), after)) as stream:
        return await stream_response(exchange, stream)


async def delete(service: Service, exchange: Exchange) -> web.StreamResponse:
    await service.responses.delete(exchange.caller.tenant, _id(exchange))
    return exchange.json(msgspec.json.encode(ResponseDeleted(id=_id(exchange))))


async def input_items(service: Service, exchange: Exchange) -> web.StreamResponse:
    part = items_request(exchange)
    page = await service.responses.input_items(exchange.caller.tenant, _id(exchange), part)
    first, last = ends(page.data)
    items = [item_object(item) for item in page.data]
    answer = ItemList(data=items, first_id=first, last_id=last, has_more=page.has_more)
    return exchange.json(msgspec.json.encode(answer))


async def cancel(service: Service, exchange: Exchange) -> web.StreamResponse:
    return await _answer(exchange, await service.responses.cancel(exchange.caller.tenant, _id(exchange)))


def items_request(exchange: Exchange) -> PageRequest:
    """The part of a list of items that a request asks for. Raises BadRequest."""
    query = _query(exchange, ItemsQuery)
    return PageRequest(limit=query.limit, order=query.order, after=given(query.after))


_ANSWER = Answer("The response.", body=ResponseObject)
_STREAM = Answer("With `stream`: its events as they come.", "text/event-stream", ResponseStreamEvent)
TABLE: tuple[Entry[Service], ...] = (
    Entry(
        method="POST",
        path="/v1/responses",
        endpoint=create,
        name="createResponse",
        summary="Answer, with a model or an agent, and keep the answer.",
        body=ResponseBody,
        answers=(_ANSWER, _STREAM),
        refusals=(*REFUSALS, 507),
        rate_limited=True,
    ),
    Entry(
        method="GET",
        path=RESPONSE,
        endpoint=retrieve,
        name="retrieveResponse",
        summary="A response as it stands, or its events from any number on.",
        query=RetrieveQuery,
        answers=(_ANSWER, _STREAM),
        refusals=(404,),
    ),
    Entry(
        method="DELETE",
        path=RESPONSE,
        endpoint=delete,
        name="deleteResponse",
        summary="Forget a response.",
        answers=(Answer("It is gone.", body=ResponseDeleted),),
        refusals=(404, 507),
    ),
    Entry(
        method="GET",
        path=f"{RESPONSE}/input_items",
        endpoint=input_items,
        name="listResponseInputItems",
        summary="The items that came with a response's request.",
        query=ItemsQuery,
        answers=(Answer("A page of them.", body=ItemList),),
        refusals=(404,),
    ),
    Entry(
        method="POST",
        path=f"{RESPONSE}/cancel",
        endpoint=cancel,
        name="cancelResponse",
        summary="End a response that is made in the background.",
        answers=(_ANSWER,),
        refusals=(404,),
    ),
)


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""
    return bound(TABLE, service)


async def _answer(exchange: Exchange, state: ResponseState) -> web.StreamResponse:
    size = sum(1 + len(getattr(item, "texts", ())) for item in state.output)
    return exchange.json(await encoded(lambda: msgspec.json.encode(response_object(state)), size))


async def stream_response(
    exchange: Exchange, stream: ResponseStream, heartbeat_s: float = HEARTBEAT_S
) -> web.StreamResponse:
    """Answer with a response's events. What fails before the first of them gets a status of its own.

    While nothing happens (a tool works, a call waits for a person), a comment every `heartbeat_s` tells that all is alive.
    """
    events = aiter(stream)
    first = await anext(events, None)
    out = await EventWriter.open(exchange)
    heart = Heart(out, exchange, heartbeat_s)
    broken = False
    try:
        if first is not None:
            out.write(event_bytes(first))
        async for event in events:
            heart.busy = True
            if out.write(event_bytes(event)):
                await out.drain()
    except Exception as error:
        if isinstance(error, ConnectionError):
            raise
        broken = True
        out.write(_error(exchange, stream, error))
    finally:
        heart.stop()
    return await out.close(broken=broken)


def _error(exchange: Exchange, stream: ResponseStream, error: Exception) -> bytes:
    refusal = translate(error)
    if refusal.status == 500:
        logging.getLogger(__name__).error("stream failed", extra={"request_id": exchange.id}, exc_info=error)
    exchange.error_code = refusal.code
    exchange.end_reason = "failed"
    return error_bytes(stream.next_number, refusal.code, str(refusal), refusal.param)


def _query(exchange: Exchange, kind: type[QueryT]) -> QueryT:
    given_ = MultiDict((name, text) for name, text in exchange.request.query.items() if name not in _HINTS)
    return decode_query(given_, kind)


def _id(exchange: Exchange) -> str:
    return exchange.path_arguments["response_id"]

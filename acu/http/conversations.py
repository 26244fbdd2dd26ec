"""/v1/conversations and their items."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from acu.http.entry import BODY_REFUSALS, READ_REFUSALS, WRITE_REFUSALS, Entry, bound
from acu.http.exchange import Exchange
from acu.http.paging import ends
from acu.http.responses import ItemsQuery, items_request
from acu.http.route import Answer, Route
from acu.http.wire.conversation_body import (
    CONVERSATION_DECODER,
    CONVERSATION_ITEMS_DECODER,
    CONVERSATION_UPDATE_DECODER,
    ConversationBody,
    ConversationItemsBody,
    ConversationUpdateBody,
)
from acu.http.wire.conversation_objects import ConversationDeleted, ConversationObject, conversation_object
from acu.http.wire.response_body import clean_metadata
from acu.http.wire.response_items import read_items
from acu.http.wire.response_objects import ItemList, ItemObject, item_object
from agentflow.responses.items import Item
from agentflow.service import Service

CONVERSATION = "/v1/conversations/{conversation_id}"
ITEMS = f"{CONVERSATION}/items"
ITEM = f"{ITEMS}/{{item_id}}"


async def create(service: Service, exchange: Exchange) -> web.StreamResponse:
    body = CONVERSATION_DECODER.decode(exchange.take_body())
    metadata, items = clean_metadata(body.metadata), read_items(body.items or [], "items")
    made = await service.responses.conversations.create(exchange.caller.tenant, metadata, items)
    return exchange.json(msgspec.json.encode(conversation_object(made)))


async def retrieve(service: Service, exchange: Exchange) -> web.StreamResponse:
    found = await service.responses.conversations.retrieve(exchange.caller.tenant, _id(exchange))
    return exchange.json(msgspec.json.encode(conversation_object(found)))


async def update(service: Service, exchange: Exchange) -> web.StreamResponse:
    metadata = clean_metadata(CONVERSATION_UPDATE_DECODER.decode(exchange.take_body()).metadata)
    changed = await service.responses.conversations.update(exchange.caller.tenant, _id(exchange), metadata)
    return exchange.json(msgspec.json.encode(conversation_object(changed)))


async def delete(service: Service, exchange: Exchange) -> web.StreamResponse:
    await service.responses.conversations.delete(exchange.caller.tenant, _id(exchange))
    return exchange.json(msgspec.json.encode(ConversationDeleted(id=_id(exchange))))


async def add_items(service: Service, exchange: Exchange) -> web.StreamResponse:
    items = read_items(CONVERSATION_ITEMS_DECODER.decode(exchange.take_body()).items, "items")
    await service.responses.conversations.add(exchange.caller.tenant, _id(exchange), items)
    return _listed(exchange, items, has_more=False)


async def list_items(service: Service, exchange: Exchange) -> web.StreamResponse:
    part = items_request(exchange)
    page = await service.responses.conversations.items(exchange.caller.tenant, _id(exchange), part)
    return _listed(exchange, page.data, has_more=page.has_more)


async def retrieve_item(service: Service, exchange: Exchange) -> web.StreamResponse:
    tenant, item_id = exchange.caller.tenant, exchange.path_arguments["item_id"]
    item = await service.responses.conversations.item(tenant, _id(exchange), item_id)
    return exchange.json(msgspec.json.encode(item_object(item)))


async def delete_item(service: Service, exchange: Exchange) -> web.StreamResponse:
    tenant, item_id = exchange.caller.tenant, exchange.path_arguments["item_id"]
    left = await service.responses.conversations.delete_item(tenant, _id(exchange), item_id)
    return exchange.json(msgspec.json.encode(conversation_object(left)))


def _listed(exchange: Exchange, items: Sequence[Item], *, has_more: bool) -> web.StreamResponse:
    first, last = ends(items)
    listed = ItemList(data=[item_object(item) for item in items], first_id=first, last_id=last, has_more=has_more)
    return exchange.json(msgspec.json.encode(listed))


def _id(exchange: Exchange) -> str:
    return exchange.path_arguments["conversation_id"]


_CONVERSATION = (Answer("The conversation.", body=ConversationObject),)
_PAGE = (Answer("A page of items.", body=ItemList),)
TABLE: tuple[Entry[Service], ...] = (
    Entry(
        method="POST",
        path="/v1/conversations",
        endpoint=create,
        name="createConversation",
        summary="Make a conversation.",
        body=ConversationBody,
        answers=_CONVERSATION,
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="GET",
        path=CONVERSATION,
        endpoint=retrieve,
        name="retrieveConversation",
        summary="One conversation.",
        answers=_CONVERSATION,
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="POST",
        path=CONVERSATION,
        endpoint=update,
        name="updateConversation",
        summary="Give a conversation other metadata.",
        body=ConversationUpdateBody,
        answers=_CONVERSATION,
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="DELETE",
        path=CONVERSATION,
        endpoint=delete,
        name="deleteConversation",
        summary="Remove a conversation with its items.",
        answers=(Answer("It is gone.", body=ConversationDeleted),),
        refusals=WRITE_REFUSALS,
    ),
    Entry(
        method="POST",
        path=ITEMS,
        endpoint=add_items,
        name="createConversationItems",
        summary="Add items to a conversation.",
        body=ConversationItemsBody,
        answers=_PAGE,
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="GET",
        path=ITEMS,
        endpoint=list_items,
        name="listConversationItems",
        summary="A conversation's items.",
        query=ItemsQuery,
        answers=_PAGE,
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="GET",
        path=ITEM,
        endpoint=retrieve_item,
        name="retrieveConversationItem",
        summary="One item of a conversation.",
        answers=(Answer("The item.", body=ItemObject),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="DELETE",
        path=ITEM,
        endpoint=delete_item,
        name="deleteConversationItem",
        summary="Remove an item from a conversation.",
        answers=_CONVERSATION,
        refusals=WRITE_REFUSALS,
    ),
)


def routes(service: Service) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""
    return bound(TABLE, service)

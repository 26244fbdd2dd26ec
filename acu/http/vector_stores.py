"""/v1/vector_stores and /v1/vector_stores/{id}/search."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from acu.http.entry import BODY_REFUSALS, READ_REFUSALS, WRITE_REFUSALS, Entry, bound
from acu.http.exchange import Exchange
from acu.http.generation import REFUSALS
from acu.http.library import LibrarySource
from acu.http.paging import StoresQuery, decode_query, ends, page_request
from acu.http.route import Answer, Route
from acu.http.wire.store_objects import (
    SearchResults,
    VectorStore,
    VectorStoreDeleted,
    VectorStoreList,
    search_results,
    store_object,
)
from acu.http.wire.vector_stores import (
    SEARCH_DECODER,
    STORE_DECODER,
    STORE_UPDATE_DECODER,
    SearchBody,
    StoreBody,
    StoreUpdateBody,
    new_store,
    search_request,
    store_changes,
)

STORE = "/v1/vector_stores/{vector_store_id}"


async def create(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    body = STORE_DECODER.decode(exchange.take_body())
    store = await (await library()).create_store(exchange.caller.tenant, new_store(body))
    return exchange.json(msgspec.json.encode(store_object(store)))


async def listing(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    query = decode_query(exchange.request.query, StoresQuery)
    page = await (await library()).stores(exchange.caller.tenant, page_request(query))
    first, last = ends(page.data)
    stores = [store_object(store) for store in page.data]
    answer = VectorStoreList(data=stores, first_id=first, last_id=last, has_more=page.has_more)
    return exchange.json(msgspec.json.encode(answer))


async def retrieve(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    store = await (await library()).store(exchange.caller.tenant, store_id(exchange))
    return exchange.json(msgspec.json.encode(store_object(store)))


async def update(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    changes = store_changes(STORE_UPDATE_DECODER.decode(exchange.take_body()))
    store = await (await library()).update_store(exchange.caller.tenant, store_id(exchange), changes)
    return exchange.json(msgspec.json.encode(store_object(store)))


async def delete(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    await (await library()).delete_store(exchange.caller.tenant, store_id(exchange))
    return exchange.json(msgspec.json.encode(VectorStoreDeleted(id=store_id(exchange))))


async def search(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    request = search_request(SEARCH_DECODER.decode(exchange.take_body()), exchange.deadline_s())
    hits = await (await library()).search(exchange.caller.tenant, store_id(exchange), request)
    return exchange.json(msgspec.json.encode(search_results(request.queries, hits)))


TABLE: Final = (
    Entry(
        method="POST",
        path="/v1/vector_stores",
        endpoint=create,
        name="createVectorStore",
        summary="Make a vector store, and begin to put files into it.",
        body=StoreBody,
        answers=(Answer("The vector store.", body=VectorStore),),
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="GET",
        path="/v1/vector_stores",
        endpoint=listing,
        name="listVectorStores",
        summary="The caller's vector stores.",
        query=StoresQuery,
        answers=(Answer("A page of them.", body=VectorStoreList),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="GET",
        path=STORE,
        endpoint=retrieve,
        name="retrieveVectorStore",
        summary="One vector store.",
        answers=(Answer("The vector store.", body=VectorStore),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="POST",
        path=STORE,
        endpoint=update,
        name="updateVectorStore",
        summary="Change a vector store's name, metadata or expiry.",
        body=StoreUpdateBody,
        answers=(Answer("The vector store as it is now.", body=VectorStore),),
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="DELETE",
        path=STORE,
        endpoint=delete,
        name="deleteVectorStore",
        summary="Remove a vector store. Its files stay.",
        answers=(Answer("It is gone.", body=VectorStoreDeleted),),
        refusals=WRITE_REFUSALS,
    ),
    Entry(
        method="POST",
        path=f"{STORE}/search",
        endpoint=search,
        name="searchVectorStore",
        summary="Find the chunks of a vector store that fit a query best.",
        body=SearchBody,
        answers=(Answer("The chunks, best first.", body=SearchResults),),
        refusals=(*REFUSALS, 507),
        rate_limited=True,
    ),
)
"""Vector stores."""


def routes(library: LibrarySource) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""
    return bound(TABLE, library)


def store_id(exchange: Exchange) -> str:
    """The id of the vector store that the path names."""
    return exchange.path_arguments["vector_store_id"]

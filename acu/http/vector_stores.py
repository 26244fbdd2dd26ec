"""/v1/vector_stores and /v1/vector_stores/{id}/search."""

from __future__ import annotations

import msgspec
from aiohttp import web

from acu.http.exchange import Exchange
from acu.http.generation import REFUSALS
from acu.http.library import BODY_REFUSALS, READ_REFUSALS, WRITE_REFUSALS, LibrarySource
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


def routes(library: LibrarySource) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""

    async def create(exchange: Exchange) -> web.StreamResponse:
        body = STORE_DECODER.decode(exchange.take_body())
        store = await (await library()).create_store(exchange.caller.tenant, new_store(body))
        return exchange.json(msgspec.json.encode(store_object(store)))

    async def listing(exchange: Exchange) -> web.StreamResponse:
        query = decode_query(exchange.request.query, StoresQuery)
        page = await (await library()).stores(exchange.caller.tenant, page_request(query))
        first, last = ends(page.data)
        stores = [store_object(store) for store in page.data]
        answer = VectorStoreList(data=stores, first_id=first, last_id=last, has_more=page.has_more)
        return exchange.json(msgspec.json.encode(answer))

    async def retrieve(exchange: Exchange) -> web.StreamResponse:
        store = await (await library()).store(exchange.caller.tenant, store_id(exchange))
        return exchange.json(msgspec.json.encode(store_object(store)))

    async def update(exchange: Exchange) -> web.StreamResponse:
        changes = store_changes(STORE_UPDATE_DECODER.decode(exchange.take_body()))
        store = await (await library()).update_store(exchange.caller.tenant, store_id(exchange), changes)
        return exchange.json(msgspec.json.encode(store_object(store)))

    async def delete(exchange: Exchange) -> web.StreamResponse:
        await (await library()).delete_store(exchange.caller.tenant, store_id(exchange))
        return exchange.json(msgspec.json.encode(VectorStoreDeleted(id=store_id(exchange))))

    async def search(exchange: Exchange) -> web.StreamResponse:
        request = search_request(SEARCH_DECODER.decode(exchange.take_body()), exchange.deadline_s())
        hits = await (await library()).search(exchange.caller.tenant, store_id(exchange), request)
        return exchange.json(msgspec.json.encode(search_results(request.queries, hits)))

    return (
        Route(
            method="POST",
            path="/v1/vector_stores",
            endpoint=create,
            scope="inference",
            name="createVectorStore",
            summary="Make a vector store, and begin to put files into it.",
            body=StoreBody,
            answers={200: (Answer("The vector store.", body=VectorStore),)},
            refusals=BODY_REFUSALS,
        ),
        Route(
            method="GET",
            path="/v1/vector_stores",
            endpoint=listing,
            scope="inference",
            name="listVectorStores",
            summary="The caller's vector stores.",
            query=StoresQuery,
            answers={200: (Answer("A page of them.", body=VectorStoreList),)},
            refusals=READ_REFUSALS,
        ),
        Route(
            method="GET",
            path=STORE,
            endpoint=retrieve,
            scope="inference",
            name="retrieveVectorStore",
            summary="One vector store.",
            answers={200: (Answer("The vector store.", body=VectorStore),)},
            refusals=READ_REFUSALS,
        ),
        Route(
            method="POST",
            path=STORE,
            endpoint=update,
            scope="inference",
            name="updateVectorStore",
            summary="Change a vector store's name, metadata or expiry.",
            body=StoreUpdateBody,
            answers={200: (Answer("The vector store as it is now.", body=VectorStore),)},
            refusals=BODY_REFUSALS,
        ),
        Route(
            method="DELETE",
            path=STORE,
            endpoint=delete,
            scope="inference",
            name="deleteVectorStore",
            summary="Remove a vector store. Its files stay.",
            answers={200: (Answer("It is gone.", body=VectorStoreDeleted),)},
            refusals=WRITE_REFUSALS,
        ),
        Route(
            method="POST",
            path=f"{STORE}/search",
            endpoint=search,
            scope="inference",
            name="searchVectorStore",
            summary="Find the chunks of a vector store that fit a query best.",
            body=SearchBody,
            answers={200: (Answer("The chunks, best first.", body=SearchResults),)},
            refusals=(*REFUSALS, 507),
            rate_limited=True,
        ),
    )


def store_id(exchange: Exchange) -> str:
    """The id of the vector store that the path names."""
    return exchange.path_arguments["vector_store_id"]

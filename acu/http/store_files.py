"""/v1/vector_stores/{id}/files and /v1/vector_stores/{id}/file_batches."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web
from msgspec import UNSET

from acu.http.entry import BODY_REFUSALS, READ_REFUSALS, WRITE_REFUSALS, Entry, bound
from acu.http.exchange import Exchange, encoded
from acu.http.library import LibrarySource
from acu.http.paging import ContentQuery, StoreFilesQuery, decode_query, ends, page_request
from acu.http.route import Answer, Route
from acu.http.vector_stores import STORE, store_id
from acu.http.wire.store_objects import (
    FileBatch,
    StoreFile,
    StoreFileContent,
    StoreFileDeleted,
    StoreFileList,
    batch_object,
    content_object,
    file_object,
)
from acu.http.wire.vector_stores import (
    ATTACH_DECODER,
    ATTRIBUTES_DECODER,
    BATCH_DECODER,
    AttachBody,
    AttributesBody,
    BatchBody,
    attachment,
    attachments,
    new_attributes,
)
from agentflow.library import values

FILES = f"{STORE}/files"
FILE = f"{FILES}/{{file_id}}"
BATCHES = f"{STORE}/file_batches"
BATCH = f"{BATCHES}/{{batch_id}}"
CHARS_A_VALUE = 256  # of a chunk's text: its encoding takes as long as that of a value


async def attach(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    wanted = attachment(ATTACH_DECODER.decode(exchange.take_body()))
    file = await (await library()).attach(exchange.caller.tenant, store_id(exchange), wanted)
    return exchange.json(msgspec.json.encode(file_object(file)))


async def listing(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    query = decode_query(exchange.request.query, StoreFilesQuery)
    page = await (await library()).store_files(
        exchange.caller.tenant, store_id(exchange), page_request(query), status(query)
    )
    return _page(exchange, page)


async def retrieve(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    file = await (await library()).store_file(exchange.caller.tenant, store_id(exchange), file_id(exchange))
    return exchange.json(msgspec.json.encode(file_object(file)))


async def update(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    attributes = new_attributes(ATTRIBUTES_DECODER.decode(exchange.take_body()))
    file = await (await library()).update_attributes(
        exchange.caller.tenant, store_id(exchange), file_id(exchange), attributes
    )
    return exchange.json(msgspec.json.encode(file_object(file)))


async def detach(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    await (await library()).detach(exchange.caller.tenant, store_id(exchange), file_id(exchange))
    return exchange.json(msgspec.json.encode(StoreFileDeleted(id=file_id(exchange))))


async def content(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    query = decode_query(exchange.request.query, ContentQuery)
    chunks = await (await library()).content(
        exchange.caller.tenant, store_id(exchange), file_id(exchange), query.page, query.limit
    )
    size = sum(map(len, chunks.texts)) // CHARS_A_VALUE
    return exchange.json(await encoded(lambda: msgspec.json.encode(content_object(chunks)), size))


FILE_TABLE: Final = (
    Entry(
        method="POST",
        path=FILES,
        endpoint=attach,
        name="createVectorStoreFile",
        summary="Begin to put a file into a vector store, anew if it is there.",
        body=AttachBody,
        answers=(Answer("The file, and how far it is.", body=StoreFile),),
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="GET",
        path=FILES,
        endpoint=listing,
        name="listVectorStoreFiles",
        summary="The files of a vector store.",
        query=StoreFilesQuery,
        answers=(Answer("A page of them.", body=StoreFileList),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="GET",
        path=FILE,
        endpoint=retrieve,
        name="retrieveVectorStoreFile",
        summary="A file in a vector store.",
        answers=(Answer("The file, and how far it is.", body=StoreFile),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="POST",
        path=FILE,
        endpoint=update,
        name="updateVectorStoreFile",
        summary="Set the attributes of a file in a vector store.",
        body=AttributesBody,
        answers=(Answer("The file as it is now.", body=StoreFile),),
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="DELETE",
        path=FILE,
        endpoint=detach,
        name="deleteVectorStoreFile",
        summary="Take a file out of a vector store. The file itself stays.",
        answers=(Answer("It is out.", body=StoreFileDeleted),),
        refusals=WRITE_REFUSALS,
    ),
    Entry(
        method="GET",
        path=f"{FILE}/content",
        endpoint=content,
        name="retrieveVectorStoreFileContent",
        summary="The chunks of a file as they are searched.",
        query=ContentQuery,
        answers=(Answer("A page of them, in order.", body=StoreFileContent),),
        refusals=READ_REFUSALS,
    ),
)
"""A vector store's files."""


def file_routes(library: LibrarySource) -> tuple[Route, ...]:
    """The entries of a vector store's files in the table."""
    return bound(FILE_TABLE, library)


async def create_batch(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    wanted = attachments(BATCH_DECODER.decode(exchange.take_body()))
    batch = await (await library()).create_batch(exchange.caller.tenant, store_id(exchange), wanted)
    return exchange.json(msgspec.json.encode(batch_object(batch)))


async def retrieve_batch(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    batch = await (await library()).batch(exchange.caller.tenant, store_id(exchange), batch_id(exchange))
    return exchange.json(msgspec.json.encode(batch_object(batch)))


async def cancel_batch(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    batch = await (await library()).cancel_batch(exchange.caller.tenant, store_id(exchange), batch_id(exchange))
    return exchange.json(msgspec.json.encode(batch_object(batch)))


async def batch_listing(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    query = decode_query(exchange.request.query, StoreFilesQuery)
    page = await (await library()).batch_files(
        exchange.caller.tenant, store_id(exchange), batch_id(exchange), page_request(query), status(query)
    )
    return _page(exchange, page)


BATCH_TABLE: Final = (
    Entry(
        method="POST",
        path=BATCHES,
        endpoint=create_batch,
        name="createVectorStoreFileBatch",
        summary="Begin to put files into a vector store together.",
        body=BatchBody,
        answers=(Answer("The batch, and how far it is.", body=FileBatch),),
        refusals=BODY_REFUSALS,
    ),
    Entry(
        method="GET",
        path=BATCH,
        endpoint=retrieve_batch,
        name="retrieveVectorStoreFileBatch",
        summary="A batch of files.",
        answers=(Answer("The batch, and how far it is.", body=FileBatch),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="POST",
        path=f"{BATCH}/cancel",
        endpoint=cancel_batch,
        name="cancelVectorStoreFileBatch",
        summary="Stop putting in those files of a batch that are not in yet.",
        answers=(Answer("The batch as it is now.", body=FileBatch),),
        refusals=WRITE_REFUSALS,
    ),
    Entry(
        method="GET",
        path=f"{BATCH}/files",
        endpoint=batch_listing,
        name="listFilesInVectorStoreBatch",
        summary="The files of a batch.",
        query=StoreFilesQuery,
        answers=(Answer("A page of them.", body=StoreFileList),),
        refusals=READ_REFUSALS,
    ),
)
"""A vector store's batches."""


def batch_routes(library: LibrarySource) -> tuple[Route, ...]:
    """The entries of a vector store's batches in the table."""
    return bound(BATCH_TABLE, library)


def file_id(exchange: Exchange) -> str:
    """The id of the file that the path names."""
    return exchange.path_arguments["file_id"]


def batch_id(exchange: Exchange) -> str:
    """The id of the batch that the path names."""
    return exchange.path_arguments["batch_id"]


def status(query: StoreFilesQuery) -> values.FileStatus | None:
    """The status that a list is of; None for all."""
    return None if query.filter is UNSET else query.filter


def _page(exchange: Exchange, page: values.Page[values.StoreFile]) -> web.StreamResponse:
    first, last = ends(page.data)
    files = [file_object(file) for file in page.data]
    answer = StoreFileList(data=files, first_id=first, last_id=last, has_more=page.has_more)
    return exchange.json(msgspec.json.encode(answer))

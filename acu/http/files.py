"""/v1/files: uploads, what is known of them, and their bytes."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
from functools import partial
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from aiohttp import web

from acu.http.disk import on_disk
from acu.http.disposition import attachment
from acu.http.entry import FORM_REFUSALS, READ_REFUSALS, WRITE_REFUSALS, Entry, bound
from acu.http.errors import HttpError
from acu.http.exchange import Exchange, encoded
from acu.http.library import LibrarySource
from acu.http.multipart import Uploads
from acu.http.paging import FilesQuery, decode_query, ends, given, page_request
from acu.http.route import Answer, Route
from acu.http.wire.files import File, FileDeleted, FileForm, FileList, check_field, file_body, file_form

PIECE_BYTES = 256 * 1024
CHECKED_FIRST_BYTES = 8 << 20
"""Up to so many bytes a file is compared with its SHA-256 before the answer begins; a larger one while it is sent."""
FIELDS = 8  # of a file's object
BYTES_TYPE = "application/octet-stream"
TYPES: Final = MappingProxyType(
    {
        ".csv": "text/csv; charset=utf-8",
        ".htm": "text/html; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".json": "application/json",
        ".jsonl": "application/jsonl",
        ".log": "text/plain; charset=utf-8",
        ".markdown": "text/markdown; charset=utf-8",
        ".md": "text/markdown; charset=utf-8",
        ".pdf": "application/pdf",
        ".txt": "text/plain; charset=utf-8",
    }
)
"""By the end of a file's name. What stands here can do no harm: it is saved, and not shown, by who heeds the headers."""


async def create(uploads: Uploads, library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    files, tenant = await library(), exchange.caller.tenant
    path, limit = files.new_upload(tenant), files.max_file_bytes
    async with uploads.receive(exchange.request, tenant, path, limit, check_field) as upload:
        form = file_form(upload.fields, upload.filename)
        file = await files.create_file(tenant, upload.path, upload.filename, form.purpose, form.seconds)
    return exchange.json(msgspec.json.encode(file_body(file)))


async def listing(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    query = decode_query(exchange.request.query, FilesQuery)
    page = await (await library()).files(exchange.caller.tenant, page_request(query), given(query.purpose))

    def encode() -> bytes:
        first, last = ends(page.data)
        files = [file_body(file) for file in page.data]
        return msgspec.json.encode(FileList(data=files, first_id=first, last_id=last, has_more=page.has_more))

    return exchange.json(await encoded(encode, len(page.data) * FIELDS))


async def retrieve(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    file = await (await library()).file(exchange.caller.tenant, exchange.path_arguments["file_id"])
    return exchange.json(msgspec.json.encode(file_body(file)))


async def delete(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    file_id = exchange.path_arguments["file_id"]
    await (await library()).delete_file(exchange.caller.tenant, file_id)
    return exchange.json(msgspec.json.encode(FileDeleted(id=file_id)))


async def content(library: LibrarySource, exchange: Exchange) -> web.StreamResponse:
    files, tenant, file_id = await library(), exchange.caller.tenant, exchange.path_arguments["file_id"]
    file = await files.file(tenant, file_id)
    try:
        sha256 = files.file_sha256(tenant, file_id)
        opened = await on_disk(whole, files.file_path(tenant, file_id), file.bytes, sha256)
    except OSError as error:
        await files.file(tenant, file_id)  # it may have been deleted this moment
        told = {"request_id": exchange.id, "file": file_id, "why": str(error)}
        logging.getLogger(__name__).warning("an uploaded file is damaged", extra=told)
        raise HttpError(500, str(files.damaged(file_id, str(error))), code="data_damaged") from error
    return await send_file(exchange, opened, file.filename, sha256 if file.bytes > CHECKED_FIRST_BYTES else None)


TABLE: Final = (
    Entry(
        method="GET",
        path="/v1/files",
        endpoint=listing,
        name="listFiles",
        summary="The caller's files.",
        query=FilesQuery,
        answers=(Answer("A page of them.", body=FileList),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="GET",
        path="/v1/files/{file_id}",
        endpoint=retrieve,
        name="retrieveFile",
        summary="What is known of a file.",
        answers=(Answer("The file's object.", body=File),),
        refusals=READ_REFUSALS,
    ),
    Entry(
        method="DELETE",
        path="/v1/files/{file_id}",
        endpoint=delete,
        name="deleteFile",
        summary="Remove a file, also from every vector store that has it.",
        answers=(Answer("It is gone.", body=FileDeleted),),
        refusals=WRITE_REFUSALS,
    ),
    Entry(
        method="GET",
        path="/v1/files/{file_id}/content",
        endpoint=content,
        name="downloadFile",
        summary="The bytes of a file.",
        answers=(Answer("All of them. The type follows from the file's name.", "*/*"),),
        refusals=READ_REFUSALS,
    ),
)
"""What needs no place for uploads."""


def routes(library: LibrarySource, uploads: Uploads) -> tuple[Route, ...]:
    """The endpoints' entries in the table."""
    creation = Entry(
        method="POST",
        path="/v1/files",
        endpoint=partial(create, uploads),
        name="createFile",
        summary="Upload a file.",
        form=FileForm,
        answers=(Answer("The file is kept.", body=File),),
        refusals=FORM_REFUSALS,
    )
    return bound((creation, *TABLE), library)


def whole(path: Path, size: int, sha256: str | None = None) -> FileIO:
    """A file of `size` bytes, opened; a small one has this SHA-256.

    Raises OSError, whose words name no path, for anything else, a symbolic link too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        words = {errno.ELOOP: "it has become a symbolic link", errno.ENOENT: "it is missing"}
        raise OSError(words.get(error.errno or 0, f"it cannot be read ({error.strerror})")) from error
    known = os.fstat(descriptor)
    if not stat.S_ISREG(known.st_mode) or known.st_size != size:
        os.close(descriptor)
        regular = stat.S_ISREG(known.st_mode)
        raise OSError(f"it has {known.st_size:,} bytes instead of {size:,}" if regular else "it is no regular file")
    file = FileIO(descriptor)
    if sha256 is not None and size <= CHECKED_FIRST_BYTES:
        try:
            _check(file, sha256)
        except BaseException:
            file.close()
            raise
    return file


def _check(file: FileIO, sha256: str) -> None:
    """Raise OSError for other bytes; else the file is at its beginning again."""
    try:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
    except OSError as error:
        raise OSError(f"it cannot be read ({error.strerror})") from error
    if found != sha256:
        raise OSError("it has another SHA-256")


async def send_file(exchange: Exchange, file: FileIO, filename: str, sha256: str | None = None) -> web.StreamResponse:
    """Answer with the bytes of a file, read piece by piece as the client takes them, and close it.

    If they turn out to have another SHA-256, the connection ends before the last of them: nobody takes them for the file.
    """
    with file:
        size = os.fstat(file.fileno()).st_size
        response = web.StreamResponse(headers=_headers(exchange, filename, size))
        if exchange.closing:
            response.force_close()
        await response.prepare(exchange.request)
        exchange.status = 200
        if exchange.request.method != "HEAD":
            await _send_all(exchange, file, size, response, sha256)
        await response.write_eof()
    return response


async def _send_all(
    exchange: Exchange, file: FileIO, size: int, response: web.StreamResponse, sha256: str | None
) -> None:
    """What fails once the headers are sent can be told by ending the connection alone."""
    left, digest = size, hashlib.sha256()

    def read() -> bytes:
        piece = file.read(min(left, PIECE_BYTES))
        if sha256 is not None:
            digest.update(piece)
            if len(piece) == left and digest.hexdigest() != sha256:
                raise OSError("it has another SHA-256 than it was uploaded with")
        return piece

    while left:
        try:
            piece = await on_disk(read)
        except OSError:
            piece = b""
            logging.getLogger(__name__).exception("a file cannot be read", extra={"request_id": exchange.id})
        if not piece:
            exchange.end_reason = "failed"
            raise ConnectionResetError("the file ends too soon")
        await response.write(piece)
        left -= len(piece)


def _headers(exchange: Exchange, filename: str, size: int) -> dict[str, str]:
    return {
        **exchange.response_headers(),
        "content-type": TYPES.get(Path(filename).suffix.lower(), BYTES_TYPE),
        "content-length": str(size),
        "content-disposition": attachment(filename),
        "content-security-policy": "sandbox; default-src 'none'",
        "x-content-type-options": "nosniff",
    }

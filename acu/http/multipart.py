"""Uploads: a multipart form, streamed to a temporary file within bounds of size, speed, number and memory.

A form here has one file and some short texts, in any order. The texts are checked as they come, so that a mistake is
told before the file has been sent for nothing. The file is written in pieces of WRITE_BYTES; nothing else of it is in
memory. The parts are told apart by aiohttp's reader, their heads are read by disposition.py.

Time: an upload may take hours, so that no clock runs on the whole. But every `patience_s` seconds of waiting for the
client must bring LEAST_SENT bytes, or the rest: else 408. Time that the disk takes is not counted.

Number: AT_A_TIME uploads, at most TENANT_AT_A_TIME of them of one tenant; one more is told 503 and when to come again.

Crash: the temporary file lies where the caller says, with mode 0600. It is removed when the `with` block ends, unless it
was moved away within. After a crash it is left; who owns the folder clears it at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.helpers import parse_mimetype
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader
from msgspec import Struct
from multidict import CIMultiDict, CIMultiDictProxy

from acu.http.bodies import check_headers, invite
from acu.http.disk import on_disk
from acu.http.disposition import FILE_FIELD, PartHead, clean_filename, part_head
from acu.http.errors import BadRequest, HttpError, retry_headers

AT_A_TIME = 64
TENANT_AT_A_TIME = 16
RETRY_S = 2.0
LEAST_SENT = 32 * 1024
WRITE_BYTES = 256 * 1024
READ_BYTES = 64 * 1024
TEXT_BYTES = 4 * 1024  # of a text field
HEAD_BYTES = 4 * 1024  # of a line of a part's head
HEAD_LINES = 16
LINES = 256  # of heads and boundaries, and before the first of them: each is a turn of the reader
FORM_BYTES = 64 * 1024  # of all of a form that is not its file

Check = Callable[[str, str], None]


class Upload(Struct, frozen=True):
    """A form that has come whole. `path` is the temporary file, of `size` bytes, whose content is not synced."""

    path: Path
    filename: str
    size: int
    fields: dict[str, str]


class Uploads:
    """All uploads that are under way."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._tenants: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """How many there are."""
        return self._tenants.total()

    @contextlib.asynccontextmanager
    async def receive(
        self, request: web.BaseRequest, tenant: str, path: Path, limit: int, check: Check
    ) -> AsyncIterator[Upload]:
        """The form of a request, its file of at most `limit` bytes at `path` until the block ends.

        Nothing is at `path` yet. `check` is called with the name and the text of each text field, and refuses what is
        not wanted. Raises HttpError 400, 408, 413, 415, 417, 503, and DiskFull.
        """
        check_headers(request, "multipart/form-data")
        if (request.content_length or 0) > limit + FORM_BYTES:
            raise too_large(limit)
        with self._slot(tenant):
            inflow = Inflow(request.content, limit + FORM_BYTES, self._patience_s)
            parts = _parts(request, inflow)
            invite(request)
            file = TemporaryFile(path)
            try:
                await on_disk(file.create)
                yield await Form(parts, file, limit, check).read()
            finally:
                await on_disk(file.discard)

    @contextlib.contextmanager
    def _slot(self, tenant: str) -> Iterator[None]:
        if self.open >= AT_A_TIME or self._tenants[tenant] >= TENANT_AT_A_TIME:
            raise HttpError(
                503,
                "As many files are being uploaded as may be at a time.",
                code="uploads_full",
                headers=retry_headers(RETRY_S),
            )
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            self._tenants += Counter()  # forgets who has none


class Inflow:
    """A request's body as it comes: what aiohttp's reader of parts calls of a stream, within `limit` bytes and in time."""

    def __init__(self, content: StreamReader, limit: int, patience_s: float) -> None:
        self._content = content
        self._limit = limit
        self._patience_s = patience_s
        self._waited_s = 0.0  # for the client, since it last sent LEAST_SENT bytes
        self._counted = 0
        self._lines = 0
        self._back = b""  # what was read too far, and put back

    async def read(self, n: int) -> bytes:
        """At most `n` bytes, as soon as there are any; none at the end."""
        if self._back:
            data, self._back = self._back[:n], self._back[n:]
            return data
        return await self._timely(self._content.read(n))

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        """A line with its end."""
        self._lines += 1
        if self._lines > LINES:
            raise BadRequest(f"The form has more than {LINES} lines outside of its file.", code="invalid_form")
        line, end, self._back = self._back.partition(b"\n")
        if end:
            return line + end
        return line + await self._timely(self._content.readline(max_line_length=max_line_length or HEAD_BYTES))

    def at_eof(self) -> bool:
        """Whether all has been read."""
        return not self._back and self._content.at_eof()

    def unread_data(self, data: bytes) -> None:
        """Put back what was read too far."""
        self._back = data + self._back

    async def _timely(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._patience_s - self._waited_s):
                data = await reading
        except TimeoutError:
            message = f"Less than {LEAST_SENT} bytes of the body arrived within {self._patience_s:g} seconds."
            raise HttpError(408, message, code="body_timeout", close=True) from None
        self._waited_s += clock() - began
        came = self._content.total_bytes
        if came > self._limit:
            raise too_large(self._limit)
        if came - self._counted >= LEAST_SENT:
            self._counted, self._waited_s = came, 0.0
        return data


class Parts(MultipartReader):
    """aiohttp's reader of parts. What a part is called is read here, and not by aiohttp, which warns of what is odd."""

    head = PartHead("", None)

    async def fetch_next_part(self) -> MultipartReader | BodyPartReader:
        """The next part; `head` tells what it is called."""
        part = await super().fetch_next_part()
        if not isinstance(part, BodyPartReader):
            raise BadRequest("A part of the form is itself multipart; send the file as it is.", code="invalid_form")
        self.head = part_head(part.headers)
        part.headers = CIMultiDictProxy(CIMultiDict())
        return part


class TemporaryFile:
    """A file that is being written. Its methods block; they are called one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def create(self) -> None:
        """Make the file, which must not be there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)

    def write(self, data: bytes) -> None:
        """Add all of `data`."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """End the writing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def discard(self) -> None:
        """Remove it, where it still is."""
        self.close()
        self.path.unlink(missing_ok=True)


class Form:
    """One form on its way in."""

    def __init__(self, parts: Parts, file: TemporaryFile, limit: int, check: Check) -> None:
        self._parts = parts
        self._file = file
        self._limit = limit
        self._check = check
        self._filename: str | None = None
        self._size = 0
        self._fields: dict[str, str] = {}

    async def read(self) -> Upload:
        """All of it. Raises HttpError."""
        while True:
            with _refusing_what_is_broken():
                part = await self._parts.next()
            if part is None:
                break
            await self._take(self._parts.head, cast("BodyPartReader", part))
        if self._filename is None:
            raise BadRequest(
                f"Missing required parameter: '{FILE_FIELD}'.", param=FILE_FIELD, code="missing_required_parameter"
            )
        await on_disk(self._file.close)
        return Upload(self._file.path, self._filename, self._size, self._fields)

    async def _take(self, head: PartHead, part: BodyPartReader) -> None:
        if head.name in self._fields or (head.name == FILE_FIELD and self._filename is not None):
            raise BadRequest(f"The form has '{head.name[:64]}' twice.", param=head.name[:64])
        if head.name == FILE_FIELD:
            self._filename = clean_filename(head.filename)
            await self._take_file(part)
            return
        if head.filename is not None:
            raise BadRequest(f"'{head.name[:64]}' is no file; the file is '{FILE_FIELD}'.", param=head.name[:64])
        text = await _text(head.name, part)
        self._check(head.name, text)
        self._fields[head.name] = text

    async def _take_file(self, part: BodyPartReader) -> None:
        pending = bytearray()
        while piece := await _piece(part):
            self._size += len(piece)
            if self._size > self._limit:
                raise too_large(self._limit)
            pending += piece
            if len(pending) >= WRITE_BYTES:
                await on_disk(self._file.write, bytes(pending))
                pending.clear()
        await on_disk(self._file.write, bytes(pending))


def too_large(limit: int) -> HttpError:
    """The refusal of a file of more than `limit` bytes."""
    return HttpError(413, f"The file is larger than {limit} bytes.", code="file_too_large", param=FILE_FIELD)


def _parts(request: web.BaseRequest, inflow: Inflow) -> Parts:
    content = cast("StreamReader", inflow)
    with contextlib.suppress(ValueError):
        if parse_mimetype(request.headers["Content-Type"]).parameters.get("boundary"):
            return Parts(request.headers, content, max_field_size=HEAD_BYTES, max_headers=HEAD_LINES)
    raise BadRequest(
        "The Content-Type needs a 'boundary' of 1 to 70 characters; an HTTP client adds it by itself.",
        param="Content-Type",
        code="invalid_form",
    )


@contextlib.contextmanager
def _refusing_what_is_broken() -> Iterator[None]:
    """Around each call of aiohttp's reader: raises BadRequest for what it raises."""
    try:
        yield
    except web.RequestPayloadError as error:
        raise BadRequest(f"The body is broken: {error}.", code="invalid_body") from None
    except LineTooLong:
        raise BadRequest(
            f"A line of the form that is not its file's is longer than {HEAD_BYTES} bytes.", code="invalid_form"
        ) from None
    except (ValueError, HttpProcessingError):
        raise BadRequest(
            "The form is broken, or ends before its last boundary. Send it as multipart/form-data has it.",
            code="invalid_form",
        ) from None


async def _piece(part: BodyPartReader) -> bytes:
    with _refusing_what_is_broken():
        return await part.read_chunk(READ_BYTES)


async def _text(name: str, part: BodyPartReader) -> str:
    data = b""
    while piece := await _piece(part):
        data += piece
        if len(data) > TEXT_BYTES:
            raise BadRequest(f"Invalid value for '{name[:64]}': longer than {TEXT_BYTES} bytes.", param=name[:64])
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"Invalid value for '{name[:64]}': it is not UTF-8.", param=name[:64]) from None

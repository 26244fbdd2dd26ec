"""An HTTP client that may send anything: bytes in pieces, never finished, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from tests.acu.http.serving import Served


class Reply(Struct, frozen=True):
    """What came back. `closed` tells whether the server closed the connection after it."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool

    @property
    def error(self) -> dict[str, str | None]:
        """The error object, or an empty one."""
        try:
            return msgspec.json.decode(self.body)["error"]  # type: ignore[no-any-return]
        except (msgspec.DecodeError, KeyError, TypeError):
            return {}


NO_REPLY = Reply(0, {}, b"", closed=True)


async def talk(
    served: Served, pieces: Iterator[bytes | float], *, half_close: bool = False, patience_s: float = 5.0
) -> Reply:
    """Send bytes (a float is a pause in seconds), and read one answer. The server may answer at any time."""
    reader, writer = await served.connect()

    async def send() -> None:
        try:
            for piece in pieces:
                if isinstance(piece, float):
                    await asyncio.sleep(piece)
                else:
                    writer.write(piece)
                    await writer.drain()
            if half_close:
                writer.write_eof()
        except (ConnectionError, OSError):
            pass  # refused while it was being sent

    sender = asyncio.create_task(send())
    try:
        async with asyncio.timeout(patience_s):
            return await read_reply(reader)
    finally:
        sender.cancel()
        await asyncio.wait([sender])
        writer.transport.abort()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """One answer, `100 Continue` left out."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return NO_REPLY
        status_line, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        status = int(status_line.split(" ")[1])
        if status != 100:
            break
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await _body(reader, headers)
    closed = headers.get("connection", "").lower() == "close"
    return Reply(status, headers, body, closed)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return b""
    parts: list[bytes] = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)

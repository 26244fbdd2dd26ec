"""acu.http.connection: who comes in when every connection is at work, and clients that vanish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from acu.http import connection, server
from tests.acu.http.hostile import chat, request
from tests.acu.http.raw import Reply, read_reply
from tests.acu.http.serving import Served, limits, serving

HEALTH = request(method="GET", path="/healthz")


@asynccontextmanager
async def all_at_work() -> AsyncIterator[Served]:
    """A server whose two connections stream answers."""
    async with serving(limits(max_connections=2)) as served:
        for _ in range(2):
            reader, writer = await served.connect()
            writer.write(request(chat(messages=[{"role": "user", "content": "slow"}], stream=True)))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        yield served


async def ask(served: Served, what: bytes = HEALTH, *, unix: bool = False) -> tuple[Reply, asyncio.StreamReader]:
    reader, writer = await served.connect(unix=unix)
    writer.write(what)
    return await read_reply(reader), reader


async def test_the_unix_socket_has_a_reserve_that_keeps_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RESERVE", 2)
    async with all_at_work() as served:
        assert [(await ask(served, unix=True))[0].status for _ in range(3)] == [200, 200, 503]
        assert served.runner.connections == (4, 0)


async def test_a_probe_over_tcp_is_answered_once_and_anything_else_is_told_that_there_is_no_room() -> None:
    async with all_at_work() as served:
        for what, status in ((HEALTH, 200), (request(method="GET", path="/readyz"), 200), (request(chat()), 503)):
            reply, reader = await ask(served, what)
            assert reply.status == status
            assert await reader.read() == b""
        assert reply.error["code"] == "too_many_connections"
        assert (await ask(served, unix=True))[0].status == 200  # of a reserve that nobody over TCP has


async def test_guests_that_say_nothing_or_too_little_are_few_and_leave_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GUESTS", 3)
    monkeypatch.setattr(connection, "GUEST_S", 1.0)
    async with all_at_work() as served:
        begun = (b"", HEALTH[:-1], request(length=100)[:-1])
        guests = [await served.connect() for _ in begun]
        for (_, writer), sent in zip(guests, begun, strict=True):
            writer.write(sent)
        refused, _ = await served.connect()
        assert (await read_reply(refused)).error["code"] == "too_many_connections"
        for reader, _ in guests:
            assert (await read_reply(reader)).error["code"] == "too_many_connections"
            assert await reader.read() == b""
        assert (await ask(served))[0].status == 200

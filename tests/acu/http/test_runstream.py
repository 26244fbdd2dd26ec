"""A stream of a run's events lives while nothing happens, waits for who reads slowly, and ends with who leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

from acu.http.runstream import HEARTBEAT, HEARTBEAT_S, stream_run
from agentflow.agents.record import Event, Paused, Said
from tests.acu.http.exchanging import exchanging

Events = AsyncGenerator[tuple[int, Event], None]
Connection = AbstractAsyncContextManager[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


def asked(events: Events, heartbeat_s: float = HEARTBEAT_S) -> Connection:
    """The connection of a client that has asked for a stream of `events`."""
    return exchanging(lambda exchange: stream_run(exchange, events, heartbeat_s))


async def test_comments_come_while_nothing_happens() -> None:
    free = asyncio.Event()

    async def events() -> Events:
        yield 1, Paused(at=1500)
        await free.wait()

    async with asyncio.timeout(30), asked(events(), heartbeat_s=0.02) as (reader, _):
        first = await reader.readuntil(b"\n\n")
        assert first.endswith(b'id: 1\ndata: {"sequence_number":1,"type":"paused","at":1.5}\n\n')
        for _ in range(3):
            assert (await reader.readuntil(b"\n\n")).endswith(HEARTBEAT)
        free.set()
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b"data: [DONE]\n\n" in rest


async def test_a_client_that_does_not_read_holds_the_stream_up_and_one_that_leaves_ends_it() -> None:
    made = 0
    closed = asyncio.Event()

    async def events() -> Events:
        nonlocal made
        try:
            while True:
                made += 1
                yield made, Said(ids=[1], text="x" * 10_000)
        finally:
            closed.set()

    async with asyncio.timeout(30), asked(events()) as (_, writer):
        before = -1
        while before != made:  # the buffers of both ends fill
            before = made
            await asyncio.sleep(0.1)
        assert 0 < made < 10_000
        writer.transport.abort()
        await closed.wait()


async def test_a_failure_is_told_and_ends_the_connection() -> None:
    async def events() -> Events:
        yield 1, Paused(at=1500)
        raise RuntimeError("a secret of the inside")

    async with asyncio.timeout(30), asked(events()) as (reader, _):
        whole = await reader.read()
    assert b'"code":"internal_error"' in whole
    assert b"secret" not in whole
    assert b"data: [DONE]\n\n" in whole

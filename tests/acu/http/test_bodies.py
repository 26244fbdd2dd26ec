"""Bodies of all requests together: bounded in memory, counted until they are answered."""

from __future__ import annotations

import asyncio

from acu.http.bodies import LARGEST_AT_A_TIME
from tests.acu.http.hostile import chat, request
from tests.acu.http.raw import read_reply
from tests.acu.http.serving import limits, serving

LIMIT = 4096


async def test_more_bodies_than_have_room_are_told_to_come_again_and_later_are_served() -> None:
    async with serving(limits(max_body_bytes=LIMIT)) as served:
        bodies = served.face._bodies
        message = [{"role": "system", "content": "x" * (LIMIT - 200)}, {"role": "user", "content": "slow"}]
        large = request(chat(messages=message, stream=True))
        open_streams = []
        for _ in range(LARGEST_AT_A_TIME):
            reader, writer = await served.connect()
            writer.write(large)
            await reader.readuntil(b'"role"')
            open_streams.append(writer)
        assert LARGEST_AT_A_TIME * (LIMIT - 200) < bodies.held <= bodies.room

        reader, writer = await served.connect()
        writer.write(large)
        refused = await read_reply(reader)
        assert (refused.status, refused.error["code"]) == (503, "bodies_full")
        assert refused.headers["retry-after"] == "1"
        writer.write(request(chat()))
        assert (await read_reply(reader)).status == 200, "a small one has room"

        for stream in open_streams:
            stream.close()
        await served.idle()
        async with asyncio.timeout(5):
            while bodies.held:
                await asyncio.sleep(0.005)
        writer.write(request(chat(messages=[message[0], {"role": "user", "content": "hello"}])))
        assert (await read_reply(reader)).status == 200


async def test_a_body_that_is_announced_and_never_sent_takes_no_room() -> None:
    async with serving(limits(max_body_bytes=LIMIT)) as served:
        for _ in range(2 * LARGEST_AT_A_TIME):
            _, writer = await served.connect()
            writer.write(request(length=LIMIT))
        await asyncio.sleep(0.05)
        reader, writer = await served.connect()
        writer.write(request(chat()))
        assert (await read_reply(reader)).status == 200
        assert served.face._bodies.held == 0

"""Streams over real sockets: their bytes, their failures, and readers that go away or stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest

from acu.http.chunks import ChatChunks
from agentflow.engine.script import Rule, Script
from tests.acu.http.hostile import COMPLETIONS, chat, request
from tests.acu.http.raw import read_reply, talk
from tests.acu.http.serving import Served, limits, serving


def say(text: str, **fields: Any) -> bytes:
    return request(chat(messages=[{"role": "user", "content": text}], stream=True, **fields))


def events(body: bytes) -> list[Any]:
    """What each event carries: JSON, or the word at the end."""
    assert body.endswith(b"\n\n")
    lines = body.removesuffix(b"\n\n").split(b"\n\n")
    assert all(line.startswith(b"data: ") for line in lines)
    return [line[6:].decode() if line == b"data: [DONE]" else msgspec.json.decode(line[6:]) for line in lines]


async def test_a_stream_is_byte_for_byte_openais() -> None:
    async with serving() as served:
        reply = await talk(served, iter([say("hello")]))
    first = msgspec.json.decode(reply.body.split(b"\n\n")[0][6:])
    head = (
        f'data: {{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},'
        '"model":"scripted","choices":['
    )
    rest = '"logprobs":null,"finish_reason":'
    expected = head + '{"index":0,"delta":{"role":"assistant","content":""},' + rest + "null}]}\n\n"
    for letter in "Hi there":
        expected += head + f'{{"index":0,"delta":{{"content":"{letter}"}},' + rest + "null}]}\n\n"
    expected += head + '{"index":0,"delta":{},' + rest + '"stop"}]}\n\n' + "data: [DONE]\n\n"
    assert reply.body.decode() == expected
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert first["id"].startswith("chatcmpl-")


async def test_the_usage_comes_in_a_chunk_of_its_own_before_the_end() -> None:
    async with serving() as served:
        reply = await talk(served, iter([say("hello", stream_options={"include_usage": True})]))
    *chunks, usage, done = events(reply.body)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert usage["choices"] == []
    counts = usage["usage"]
    assert counts["completion_tokens"] >= len("Hi there")
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]
    assert counts["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_several_choices_share_one_stream() -> None:
    async with serving() as served:
        reply = await talk(served, iter([say("hello", n=3)]))
    texts, reasons = ["", "", ""], [None, None, None]
    chunks = events(reply.body)
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"]
    assert texts == ["Hi there"] * 3
    assert reasons == ["stop"] * 3
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks[:4]] == ["assistant"] * 3 + [None]


async def test_a_tool_call_streams_its_name_and_then_its_arguments() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    async with serving() as served:
        reply = await talk(served, iter([say("hello", tools=tools, tool_choice="required")]))
    deltas = [chunk["choices"][0]["delta"] for chunk in events(reply.body)[:-1]]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["type"] == "function"
    assert calls[0]["function"] == {"name": "f", "arguments": ""}
    assert calls[0]["id"]
    assert all(call["index"] == 0 for call in calls)
    assert all(set(call) == {"index", "function"} for call in calls[1:])
    assert isinstance(json.loads("".join(call["function"]["arguments"] for call in calls)), dict)
    assert events(reply.body)[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_completion_streams_too() -> None:
    body = json.dumps({"model": "scripted", "prompt": "hello", "stream": True, "max_tokens": 5}).encode()
    async with serving(script=Script(answer="abcdefgh")) as served:
        reply = await talk(served, iter([request(body, path=COMPLETIONS)]))
    *chunks, done = events(reply.body)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcde"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_http_10_gets_the_stream_without_chunks() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(say("hello").replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert events(body)[-1] == "[DONE]"


async def test_a_stream_to_http_10_ends_with_the_connection_even_if_that_was_to_be_kept() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        kept = say("hello").replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
        writer.write(kept)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"keep-alive" not in head.lower()
    assert events(body)[-1] == "[DONE]"


async def test_an_engine_that_dies_in_mid_stream_is_told_in_the_stream() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(say("die"))
        reply = await read_reply(reader)
        assert await reader.read() == b""  # the connection is closed
        writer.close()
        (record,) = await served.recorded(1)
    *chunks, error, done = events(reply.body)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "x" * 10
    assert error["error"]["type"] == "server_error"
    assert error["error"]["code"] == "engine_died"
    assert (record["status"], record["code"], record["reason"]) == (200, "engine_died", "failed")


async def test_an_engine_that_dies_before_the_first_token_gets_a_status() -> None:
    async with serving() as served:
        reply = await talk(served, iter([say("die at once")]))
    assert reply.status == 503
    assert reply.error["code"] == "engine_died"
    assert reply.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_its_slot(stream: bool) -> None:
    async with serving() as served:
        body = chat(messages=[{"role": "user", "content": "slow"}], stream=stream)
        writers = []
        for _ in range(20):
            _, writer = await served.connect()
            writer.write(request(body))
            writers.append(writer)
        async with asyncio.timeout(5):
            while served.service.status().running < 20:
                await asyncio.sleep(0.005)
        for writer in writers:
            writer.transport.abort()
        await served.idle()
        records = await served.recorded(20)
    assert {(record["status"], record["reason"]) for record in records} == {(499, "client_gone")}


async def test_a_client_that_goes_away_while_it_waits_leaves_the_queue() -> None:
    async with serving(max_running=1) as served:
        first, second = [await served.connect() for _ in range(2)]
        first[1].write(say("slow"))
        await first[0].readuntil(b"data: ")
        second[1].write(say("slow"))
        async with asyncio.timeout(5):
            while not served.service.status().queued:
                await asyncio.sleep(0.005)
            second[1].transport.abort()
            while served.service.status().queued:
                await asyncio.sleep(0.005)
        assert served.service.status().running == 1
        first[1].transport.abort()
        await served.idle()


async def read_nothing(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for megabytes and do not read them. A unix socket holds no more than 200 KB of them."""
    reader, writer = await served.connect(unix=True, limit=1024)
    writer.write(say("long", max_tokens=30_000))
    return reader, writer


async def test_a_reader_that_stops_reading_loses_its_connection() -> None:
    async with serving(limits(slow_reader_s=0.3)) as served:
        _, writer = await read_nothing(served)
        (record,) = await served.recorded(1)
        assert (record["status"], record["reason"]) == (499, "slow_reader")
        await served.idle()
        assert served.runner.connections.unread == 1
        writer.transport.abort()


async def test_a_reader_that_reads_byte_by_byte_loses_its_connection() -> None:
    async with serving(limits(slow_reader_s=0.5)) as served:
        reader, writer = await read_nothing(served)
        while not served.records:
            with contextlib.suppress(ConnectionError):
                await reader.read(1)
            await asyncio.sleep(0.02)
        assert (served.records[0]["status"], served.records[0]["reason"]) == (499, "slow_reader")
        writer.transport.abort()


async def test_a_reader_that_reads_again_gets_everything() -> None:
    async with serving(limits(slow_reader_s=30)) as served:
        reader, writer = await read_nothing(served)
        await asyncio.sleep(0.3)
        assert not served.records  # it is held back, and not ended
        async with asyncio.timeout(20):
            reply = await read_reply(reader)
        writer.close()
    chunks = events(reply.body)
    assert chunks[-1] == "[DONE]"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert text == ("0123456789" * 3000)


async def test_an_unexpected_exception_in_mid_stream_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(script=Script(rules=(Rule(match="", answer="abc", tokens_per_s=100),))) as served:
        original = ChatChunks.encode
        calls = 0

        def encode(self: Any, event: Any) -> bytes:
            nonlocal calls
            calls += 1
            if calls > 2:
                raise RuntimeError("secret /path")
            return original(self, event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChatChunks, "encode", encode)
            reply = await talk(served, iter([say("x")]))
        await served.idle()
    assert events(reply.body)[-2]["error"]["code"] == "internal_error"
    assert b"secret" not in reply.body
    assert "stream failed" in caplog.text

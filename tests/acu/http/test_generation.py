"""What the endpoints that generate text have in common: the answer in both its forms, and what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.acu.http.hostile import CHAT, COMPLETIONS, request
from tests.acu.http.raw import read_reply, talk
from tests.acu.http.serving import serving

COUNTED = ("route", "model", "status", "prompt_tokens", "completion_tokens", "tenant", "key")


def ask(path: str, text: str, **fields: Any) -> bytes:
    """A request of either endpoint."""
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text, "max_tokens": 1000}
    return request(json.dumps({"model": "scripted", **prompt, **fields}).encode(), path=path)


def said(choice: dict[str, Any]) -> str:
    """The text of a choice, of a whole answer or of a chunk."""
    message = choice.get("message") or choice.get("delta") or {}
    return str(choice.get("text") or message.get("content") or "")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_and_a_whole_answer_say_and_count_the_same(path: str) -> None:
    async with serving() as served:
        whole = msgspec.json.decode((await talk(served, iter([ask(path, "hello", n=2)]))).body)
        reply = await talk(served, iter([ask(path, "hello", n=2, stream=True, stream_options={"include_usage": True})]))
        first, second = await served.recorded(2)
    *chunks, last, done = [line.removeprefix("data: ") for line in reply.body.decode().split("\n\n") if line]
    assert done == "[DONE]"
    assert json.loads(last)["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        pieces = [part for text in chunks for part in json.loads(text)["choices"] if part["index"] == choice["index"]]
        assert "".join(map(said, pieces)) == said(choice) == "Hi there"
        assert pieces[-1]["finish_reason"] == choice["finish_reason"] == "stop"
    assert {json.loads(text)["id"] for text in chunks} != {whole["id"]}
    assert [first[name] for name in COUNTED] == [second[name] for name in COUNTED]
    assert (first["streamed"], second["streamed"]) == (False, True)
    assert (first["prompt_tokens"], first["completion_tokens"]) == (
        whole["usage"]["prompt_tokens"],
        whole["usage"]["completion_tokens"],
    )
    assert all(record["ttft_s"] > 0 and record["queue_s"] >= 0 for record in (first, second))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_generated_before_the_engine_died_is_counted(path: str, stream: bool) -> None:
    async with serving() as served:
        reply = await talk(served, iter([ask(path, "die", stream=stream)]))
        (record,) = await served.recorded(1)
    assert reply.status == record["status"] == (200 if stream else 503)
    assert (record["code"], record["completion_tokens"]) == ("engine_died", 10)
    assert record["prompt_tokens"] > 0
    assert record["ttft_s"] > 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_a_client_that_left_has_had_is_counted(path: str) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(ask(path, "slow", stream=True))
        for _ in range(4):
            await reader.readuntil(b"data: ")
        writer.transport.abort()
        await served.idle()
        (record,) = await served.recorded(1)
    assert (record["status"], record["reason"]) == (499, "client_gone")
    assert 2 <= record["completion_tokens"] < 1000


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_is_refused_begins_no_stream_and_counts_nothing(path: str, stream: bool) -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        for fields, status in ({"model": "gpt-17"}, 404), ({"logit_bias": {"1000000": 1}}, 400), ({"n": 100}, 400):
            writer.write(ask(path, "hello", stream=stream, **fields))
            reply = await read_reply(reader)
            assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
        records = await served.recorded(3)
        assert served.service.status().running == 0
    assert {(record["prompt_tokens"], record["completion_tokens"]) for record in records} == {(0, 0)}
    assert [record.get("queue_s") for record in records] == [None] * 3

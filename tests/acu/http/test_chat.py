"""Answers that are not streamed, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import msgspec
import pytest

from agentflow.engine.script import Rule, Script
from tests.acu.http.hostile import COMPLETIONS, EMBEDDINGS, chat, request
from tests.acu.http.raw import Reply, talk
from tests.acu.http.serving import Served, serving

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


async def ask(served: Served, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    body = chat(**fields) if path.endswith("chat/completions") else json.dumps(fields).encode()
    reply = await talk(served, iter([request(body, path=path)]))
    assert reply.status == 200, reply
    return msgspec.json.decode(reply.body)


async def get(served: Served, path: str, *, extra: str = "", method: str = "GET") -> Reply:
    return await talk(served, iter([request(method=method, path=path, content_type=None, extra=extra)]))


async def test_an_answer_has_openais_shape() -> None:
    async with serving() as served:
        reply = await talk(served, iter([request(chat(), extra="x-request-id: mine-1\r\n")]))
    answer = msgspec.json.decode(reply.body)
    counts = answer["usage"]
    expected = (
        f'{{"id":"{answer["id"]}","object":"chat.completion","created":{answer["created"]},"model":"scripted",'
        '"choices":[{"index":0,"message":{"role":"assistant","content":"Hi there","refusal":null},'
        '"logprobs":null,"finish_reason":"stop"}],'
        f'"usage":{{"prompt_tokens":{counts["prompt_tokens"]},"completion_tokens":{counts["completion_tokens"]},'
        f'"total_tokens":{counts["total_tokens"]},"prompt_tokens_details":{{"cached_tokens":0}}}}}}'
    )
    assert reply.body.decode() == expected
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"] == "mine-1"
    assert int(reply.headers["openai-processing-ms"]) >= 0


async def test_a_request_without_an_id_is_given_one() -> None:
    async with serving() as served:
        first, second = [await talk(served, iter([request(chat())])) for _ in range(2)]
    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_a_named_tool_call_has_arguments_that_satisfy_its_schema() -> None:
    async with serving() as served:
        named = {"type": "function", "function": {"name": "weather"}}
        answer = await ask(served, tools=[TOOL], tool_choice=named)
    message = answer["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert message["content"] is None
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)


async def test_a_json_schema_is_satisfied() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    async with serving() as served:
        answer = await ask(served, response_format=form)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"])["n"], int)


async def test_log_probabilities_come_when_asked_for() -> None:
    async with serving() as served:
        answer = await ask(served, logprobs=True, top_logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content).startswith("Hi there")
    assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in content)


async def test_completions_answer_each_prompt_n_times() -> None:
    async with serving(script=Script(rules=(Rule(match="b", answer="B"),), answer="A")) as served:
        answer = await ask(served, COMPLETIONS, model="scripted", prompt=["a", "b"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["A", "A", "B", "B"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["object"] == "text_completion"


async def test_an_embedding_in_base64_is_the_same_vector() -> None:
    async with serving() as served:
        plain = await ask(served, EMBEDDINGS, model="scripted-embed", input=["one", "two"])
        packed = await ask(served, EMBEDDINGS, model="embed", input=["one", "two"], encoding_format="base64")
    assert [row["index"] for row in plain["data"]] == [0, 1]
    for row, other in zip(plain["data"], packed["data"], strict=True):
        unpacked = struct.unpack("<8f", base64.b64decode(other["embedding"]))
        assert row["embedding"] == pytest.approx(unpacked)
    assert plain["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert packed["model"] == "embed"


async def test_dimensions_cut_an_embedding() -> None:
    async with serving() as served:
        answer = await ask(served, EMBEDDINGS, model="embed", input="x", dimensions=3)
    assert len(answer["data"][0]["embedding"]) == 3


async def test_models_are_listed_under_all_their_names() -> None:
    async with serving() as served:
        listed = msgspec.json.decode((await get(served, "/v1/models")).body)
        one = msgspec.json.decode((await get(served, "/v1/models/large")).body)
        none = await get(served, "/v1/models/gpt-17")
    assert [model["id"] for model in listed["data"]] == ["scripted", "large", "scripted-embed", "embed"]
    assert one == {
        "id": "large", "object": "model", "created": 1_700_000_000, "owned_by": "acu", "root": "scripted",
        "max_model_len": 32_768, "ready": True,
    }  # fmt: skip
    assert (none.status, none.error["code"]) == (404, "model_not_found")


async def test_a_full_queue_is_told_with_429_and_when_to_come_again() -> None:
    async with serving(max_running=1, queue_limit=1) as served:
        slow = request(chat(messages=[{"role": "user", "content": "slow"}]))
        connections = []
        for waiting in range(2):
            reader, writer = await served.connect()
            writer.write(slow)
            connections.append((reader, writer))
            async with asyncio.timeout(5):
                while served.service.status().queued < waiting or not served.service.status().running:
                    await asyncio.sleep(0.005)
        reply = await talk(served, iter([slow]))
        for _, writer in connections:
            writer.transport.abort()
        await served.idle()
    assert (reply.status, reply.error["type"], reply.error["code"]) == (429, "rate_limit_error", "queue_full")
    assert int(reply.headers["retry-after-ms"]) > 0
    assert int(reply.headers["retry-after"]) * 1000 >= int(reply.headers["retry-after-ms"]) - 999


async def test_an_unknown_model_is_told_the_names_there_are_and_the_nearest() -> None:
    async with serving() as served:
        near = await talk(served, iter([request(chat(model="lage"))]))
        far = await talk(served, iter([request(chat(model="gpt-17"))]))
    names = "Served: scripted (also large), scripted-embed (also embed)."
    assert near.error["message"] == f"The model 'lage' is not served here. Did you mean 'large'? {names}"
    assert far.error["message"] == f"The model 'gpt-17' is not served here. {names}"


async def test_a_deadline_of_the_client_is_kept() -> None:
    async with serving(max_running=1) as served:
        reader, writer = await served.connect()
        writer.write(request(chat(messages=[{"role": "user", "content": "slow"}], stream=True)))
        await reader.readuntil(b"data: ")
        reply = await talk(served, iter([request(chat(), extra="x-acu-deadline-ms: 100\r\n")]))
        writer.transport.abort()
        await served.idle()
    assert (reply.status, reply.error["code"]) in {(504, "deadline_exceeded"), (429, "queue_full")}


async def test_health_and_readiness() -> None:
    async with serving() as served:
        assert (await get(served, "/healthz")).body == b'{"status":"ok"}'
        ready = await get(served, "/readyz")
        assert ready.status == 200
        assert msgspec.json.decode(ready.body)["ready"] is True


async def test_while_a_model_loads_readiness_is_503_with_stage_and_a_chat_waits() -> None:
    async with serving(script=Script(start_s=0.5, answer="loaded"), ready=False) as served:
        chatting = asyncio.create_task(ask(served))
        early = await get(served, "/readyz")
        answer = await chatting
        late = await get(served, "/readyz")
    told = msgspec.json.decode(early.body)
    assert (early.status, told["ready"]) == (503, False)
    assert told["reason"]
    assert [model["model"] for model in told["models"]] == ["scripted", "scripted-embed"]
    assert told["models"][0]["stage"]
    assert int(early.headers["retry-after-ms"]) > 0
    assert answer["choices"][0]["message"]["content"] == "loaded"
    assert late.status == 200

"""The real `openai` client, over TCP and over the unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, OpenAI

from tests.acu.http.serving import Served, serving

HELLO: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client(served: Served, over: str, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    uds = str(served.unix) if over == "unix" else None
    http = DefaultAsyncHttpxClient(transport=httpx2.AsyncHTTPTransport(uds=uds))
    base = "http://localhost/v1" if over == "unix" else f"{served.url}/v1"
    async with AsyncOpenAI(api_key="none", base_url=base, http_client=http, **options) as made:
        yield made


@pytest.mark.parametrize("over", ["tcp", "unix"])
async def test_chats_completions_embeddings_and_models(over: str) -> None:
    async with serving() as served, client(served, over) as ai:
        answer = await ai.chat.completions.create(model="scripted", messages=HELLO)
        assert answer.choices[0].message.content == "Hi there"
        assert answer._request_id
        completion = await ai.completions.create(model="scripted", prompt="hello", max_tokens=3)
        assert completion.choices[0].finish_reason == "length"
        vectors = await ai.embeddings.create(model="embed", input=["one", "two"])  # base64 underneath
        assert [len(row.embedding) for row in vectors.data] == [8, 8]
        assert [model.id async for model in ai.models.list()] == ["scripted", "large", "scripted-embed", "embed"]
        assert (await ai.models.retrieve("large")).id == "large"


@pytest.mark.parametrize("over", ["tcp", "unix"])
async def test_a_stream_with_usage(over: str) -> None:
    async with serving() as served, client(served, over) as ai:
        stream = await ai.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hi there"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 0


async def test_the_clients_own_stream_helper_puts_a_tool_call_together() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tools: Any = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    async with (
        serving() as served,
        client(served, "tcp") as ai,
        ai.chat.completions.stream(model="scripted", messages=HELLO, tools=tools, tool_choice="required") as stream,
    ):
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "f"
    assert isinstance(calls[0].function.parsed_arguments["a"], int)  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "gpt-17"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_value"),
        ({"extra_body": {"nonsense": 1}}, openai.BadRequestError, "unknown_parameter"),
    ],
)
async def test_errors_become_the_clients_exceptions(fields: dict[str, Any], error: Any, code: str) -> None:
    async with serving() as served, client(served, "tcp") as ai:
        with pytest.raises(error) as caught:
            await ai.chat.completions.create(**{"model": "scripted", "messages": HELLO, **fields})
    assert caught.value.code == code
    assert caught.value.request_id


async def test_a_failure_in_mid_stream_becomes_an_exception() -> None:
    async with serving() as served, client(served, "tcp") as ai:
        stream = await ai.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "die"}], stream=True
        )
        text = ""
        with pytest.raises(openai.APIError) as caught:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
    assert text == "x" * 10
    assert caught.value.code == "engine_died"


async def test_the_client_tries_again_when_the_engine_is_back() -> None:
    async with serving(restart_backoff_s=0.01) as served, client(served, "tcp", max_retries=5) as ai:
        with pytest.raises(openai.InternalServerError):
            await ai.with_options(max_retries=0).chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "die at once"}]
            )
        answer = await ai.chat.completions.create(model="scripted", messages=HELLO)
    assert answer.choices[0].message.content == "Hi there"


async def test_the_synchronous_client_streams_as_well() -> None:
    def talk(base: str) -> str:
        with OpenAI(api_key="none", base_url=base) as ai:
            stream = ai.chat.completions.create(model="scripted", messages=HELLO, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    async with serving() as served:
        assert await asyncio.to_thread(talk, f"{served.url}/v1") == "Hi there"


async def test_closing_a_stream_early_frees_the_slot() -> None:
    async with serving() as served, client(served, "unix") as ai:
        stream = await ai.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "slow"}], stream=True
        )
        async for _ in stream:
            break
        await stream.close()
        await served.idle()
        (record,) = await served.recorded(1)
    assert (record["status"], record["reason"]) == (499, "client_gone")

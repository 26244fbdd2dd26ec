"""A client's functions beside an agent's own tools, with the real client: in /v1/responses and in chat completions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.acu.http.library_serving import client
from tests.acu.http.response_serving import serving_responses
from tests.acu.http.test_responses import WEATHER, events_of, strict

FUNCTION: Any = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "description", "parameters")}}


@pytest.mark.parametrize("agent", ["agent/desk", "agent/led"])
async def test_a_call_of_the_clients_ends_the_response_when_the_servers_calls_have_their_results(
    tmp_path: Path, agent: str
) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        events = await events_of(await api.responses.create(model=agent, input="both", tools=[WEATHER], stream=True))
        response = events[-1].response
        strict(response)
        assert response.status == "completed"
        assert [item.type for item in response.output] == ["message", "function_call", "mcp_call"]
        _, theirs, own = response.output
        assert (theirs.name, theirs.arguments, own.output) == ("weather", '{"city": "Paris"}', "42")
        assert [tool.name for tool in response.tools] == ["weather"]
        with pytest.raises(openai.BadRequestError, match="No tool output found"):
            await api.responses.create(model=agent, previous_response_id=response.id, input="hello")
        result: Any = [{"type": "function_call_output", "call_id": theirs.call_id, "output": "sunny"}]
        last = await api.responses.create(model=agent, previous_response_id=response.id, input=result, tools=[WEATHER])
        assert last.output_text == "It is sunny in both."
        # The same without the server's memory.
        whole: Any = [{"role": "user", "content": "both"}, *[item.to_dict() for item in response.output], *result]
        alone = await api.responses.create(model=agent, input=whole, tools=[WEATHER], store=False)
        assert alone.output_text == "It is sunny in both."


async def test_a_conversation_goes_on_with_the_clients_result(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        conversation = await api.conversations.create()
        place: Any = {"model": "agent/desk", "conversation": conversation.id, "tools": [WEATHER]}
        first = await api.responses.create(input="both", **place)
        (theirs,) = [item for item in first.output if item.type == "function_call"]
        result: Any = [{"type": "function_call_output", "call_id": theirs.call_id, "output": "sunny"}]
        assert (await api.responses.create(input=result, **place)).output_text == "It is sunny in both."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_an_agent_must_call_what_was_asked_for_and_then_is_free(tmp_path: Path, choice: Any) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        made = await api.responses.create(model="agent/led", input="sum", tools=[WEATHER], tool_choice=choice)
        calls: Any = [item for item in made.output if item.type in ("function_call", "mcp_call")]
        assert calls
        if isinstance(choice, dict):
            assert [call.name for call in calls] == ["weather"]
        none = await api.responses.create(model="agent/led", input="sum", tools=[WEATHER], tool_choice="none")
        assert none.output_text.endswith("It is 42.")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_with_an_agent_ends_with_the_clients_calls_and_goes_on_with_their_results(
    tmp_path: Path, stream: bool
) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        messages: Any = [{"role": "user", "content": "both"}]
        asked: Any = {"model": "agent/desk", "tools": [FUNCTION]}
        if stream:
            async with api.chat.completions.stream(messages=messages, **asked) as chunks:
                completion: Any = await chunks.get_final_completion()
        else:
            completion = await api.chat.completions.create(messages=messages, **asked)
        (choice,) = completion.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I do both. "
        (theirs,) = choice.message.tool_calls
        assert (theirs.function.name, theirs.function.arguments) == ("weather", '{"city": "Paris"}')
        told = {"role": "assistant", "content": "I do both. ", "tool_calls": [theirs.to_dict()]}
        told["tool_calls"][0].pop("index", None)
        told["tool_calls"][0]["function"].pop("parsed_arguments", None)
        messages += [told, {"role": "tool", "tool_call_id": theirs.id, "content": "sunny"}]
        last = await api.chat.completions.create(messages=messages, **asked)
        assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("It is sunny in both.", "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agents_answer_names_its_run_and_a_models_has_none(tmp_path: Path, stream: bool) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        messages: Any = [{"role": "user", "content": "hello"}]
        for model, named in (("agent/desk", True), ("large", False)):
            create = api.chat.completions.with_raw_response.create
            raw: Any = await create(model=model, messages=messages, stream=stream)
            run_id = raw.headers.get("x-acu-run-id")
            if stream:
                assert [chunk async for chunk in raw.parse()]
            assert (run_id is not None) == named
            if named:
                run: Any = await api.get(f"{served.url}/acu/v1/runs/{run_id}", cast_to=object)
                assert run["agent"] == "desk"
        made = await api.responses.with_raw_response.create(model="agent/desk", input="hello")
        assert made.headers["x-acu-run-id"] == made.parse().id.replace("resp_", "run_")

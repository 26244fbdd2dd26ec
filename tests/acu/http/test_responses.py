"""/v1/responses with the real client: what is said at once, in a stream, again, later, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from acu.http.responses import stream_response
from acu.http.runstream import HEARTBEAT
from agentflow.agents.record import Began, Ended, Event
from agentflow.responses.records import ResponseRecord
from agentflow.responses.stream import ResponseStream
from tests.acu.http.exchanging import exchanging
from tests.acu.http.library_serving import client
from tests.acu.http.response_serving import serving_responses

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def strict(value: Any) -> None:
    """The client itself takes anything; here its types must fit."""
    kind = Response if value.to_dict().get("object") == "response" else None
    raw = value.to_dict(mode="json")
    if kind is not None:
        kind.model_validate(raw)
    else:
        EVENT.validate_python(raw)


async def events_of(stream: Any) -> list[Any]:
    events = [event async for event in stream]
    for number, event in enumerate(events):
        strict(event)
        assert event.sequence_number == events[0].sequence_number + number
    return events


def types(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("response.") for event in events]


async def test_a_plain_model_answers_and_its_answer_is_kept(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.responses.create(
            model="large", input="hello", metadata={"a": "b"}, max_output_tokens=50, user="u"
        )
        strict(made)
        assert (made.output_text, made.status, made.model) == ("Hi there", "completed", "large")
        assert made.usage is not None
        assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens > 0
        again = await api.responses.retrieve(made.id)
        assert again.to_dict() == made.to_dict()
        items = await api.responses.input_items.list(made.id, include=["message.input_image.image_url"])
        assert [item.to_dict()["content"] for item in items.data] == [[{"type": "input_text", "text": "hello"}]]
        await api.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(made.id)
        archive = await served.service.agents.archive()
        assert await archive.events("alice", made.id.replace("resp_", "run_")) == []


async def test_the_events_of_a_text_come_in_their_order_and_again_from_any_number(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        events = await events_of(await api.responses.create(model="large", input="hello", stream=True))
        text = [kind for kind in types(events) if kind != "output_text.delta"]
        assert text == [
            "created", "in_progress", "output_item.added", "content_part.added", "output_text.done", "content_part.done",
            "output_item.done", "completed",
        ]  # fmt: skip
        assert events[0].sequence_number == 0
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hi there"
        whole = events[-1].response
        assert whole.output_text == "Hi there"
        assert (await api.responses.retrieve(whole.id)).to_dict() == whole.to_dict()
        for after in range(len(events)):
            rest = await events_of(await api.responses.retrieve(whole.id, stream=True, starting_after=after))
            assert [event.to_dict() for event in rest] == [event.to_dict() for event in events[after + 1 :]]
        again = await events_of(await api.responses.retrieve(whole.id, stream=True))
        assert [event.to_dict() for event in again] == [event.to_dict() for event in events]


async def test_a_response_that_goes_on_is_followed_by_others_under_the_same_numbers(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        first = await api.responses.create(model="large", input="slow", stream=True, max_output_tokens=60)
        seen = [await anext(first) for _ in range(5)]
        response_id = seen[0].response.id  # type: ignore[union-attr]
        assert (await api.responses.retrieve(response_id)).status == "in_progress"
        second = await api.responses.retrieve(response_id, stream=True, starting_after=2)
        followed = await events_of(second)
        seen += [event async for event in first]
        assert [event.to_dict() for event in followed] == [event.to_dict() for event in seen[3:]]
        last = seen[-1]
        assert last.type == "response.incomplete"
        assert last.response.incomplete_details is not None
        assert last.response.incomplete_details.reason == "max_output_tokens"


async def test_the_clients_own_tools_come_back_as_function_calls_and_their_results_go_in(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        stream = await api.responses.create(model="large", input="weather?", tools=[WEATHER], stream=True)
        events = await events_of(stream)
        called = [event for event in events if event.type == "response.output_item.done"]
        assert [event.item.type for event in called] == ["message", "function_call", "function_call"]
        told = types(events)
        assert told.count("function_call_arguments.done") == 2
        assert told.index("output_item.done") < told.index("function_call_arguments.delta")
        response = events[-1].response
        calls = [item for item in response.output if item.type == "function_call"]
        assert [call.arguments for call in calls] == ['{"city": "Paris"}', '{"city": "Rome"}']
        results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
        last = await api.responses.create(
            model="large", previous_response_id=response.id, input=results, tools=[WEATHER]
        )
        assert last.output_text == "It is sunny in both."
        # The same without the server's memory.
        own: Any = [{"role": "user", "content": "weather?"}, *[item.to_dict() for item in response.output], *results]
        stateless = await api.responses.create(model="large", input=own, tools=[WEATHER], store=False)
        assert stateless.output_text == "It is sunny in both."
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(stateless.id)
        for wrong, says in [(results[:1], "No tool output found"), ([*results, results[0]], "No tool call found")]:
            with pytest.raises(openai.BadRequestError, match=says) as caught:
                await api.responses.create(model="large", previous_response_id=response.id, input=wrong)
            assert caught.value.param == "input"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_call_can_be_asked_for(tmp_path: Path, choice: Any) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.responses.create(model="large", input="hello", tools=[WEATHER], tool_choice=choice)
        strict(made)
        assert made.output
        assert {item.type for item in made.output} == {"function_call"}
        assert made.output[0].name == "weather"  # type: ignore[union-attr]


async def test_an_agents_tools_are_seen_at_work(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        events = await events_of(await api.responses.create(model="agent/desk", input="what sum?", stream=True))
        told = [kind for kind in types(events) if not kind.endswith("delta")]
        message = [
            "output_item.added",
            "content_part.added",
            "output_text.done",
            "content_part.done",
            "output_item.done",
        ]
        assert told == [
            "created", "in_progress", *message, "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.done",
            "mcp_call.completed", "output_item.done", *message, "completed",
        ]  # fmt: skip
        response = events[-1].response
        call = response.output[1]
        assert (call.type, call.server_label, call.name, call.output) == ("mcp_call", "acu", "calculator", "42")
        assert call.arguments == '{"expression": "6*7"}'
        assert response.output_text == "Let me see. It is 42."
        searched = await api.responses.create(model="agent/desk", input="search")
        strict(searched)
        assert [item.type for item in searched.output] == ["file_search_call", "message"]
        assert searched.output[0].queries == ["opening hours"]  # type: ignore[union-attr]
        broken = await api.responses.create(model="agent/desk", input="break")
        strict(broken)
        assert broken.output[0].status == "failed"  # type: ignore[union-attr]
        assert broken.output[0].error is not None  # type: ignore[union-attr]
        spent = await api.responses.create(model="agent/desk", input="what sum?", max_tool_calls=0)
        assert spent.output_text == "Let me see. I do without."
        hasty = await api.responses.create(model="agent/hasty", input="what sum?")
        strict(hasty)
        assert hasty.status == "incomplete"


async def test_a_response_goes_on_from_another_also_after_a_restart(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        pirate = await api.responses.create(model="large", input="My name is Ann", instructions="be a pirate")
        assert pirate.output_text == "Arr"
        agents = await api.responses.create(model="agent/desk", input="what sum? My name is Ann")
    async with serving_responses(tmp_path) as served, client(served) as api:
        again = await api.responses.retrieve(pirate.id)
        assert again.to_dict() == pirate.to_dict()
        # The instructions are not carried over, the conversation is.
        assert (
            await api.responses.create(model="large", input="Who?", previous_response_id=pirate.id)
        ).output_text == ("I do not know.")
        named = await api.responses.create(model="large", input="recall", previous_response_id=pirate.id)
        assert named.previous_response_id == pirate.id
        third = await api.responses.create(model="large", input="hello", previous_response_id=agents.id)
        assert third.output_text == "Hi there"


async def test_a_form_is_kept_to(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form: Any = {"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}}
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.responses.create(model="large", input="hello", text=form, tools=[WEATHER])
        strict(made)
        assert made.output_text.startswith('{"n":')
        assert made.text is not None
        assert made.text.format is not None
        assert made.text.format.type == "json_schema"


class Number(BaseModel):
    """What a form may be."""

    n: int


async def test_the_clients_own_helpers_put_answers_together(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        async with api.responses.stream(model="large", input="weather?", tools=[WEATHER]) as stream:
            called = await stream.get_final_response()
        assert [item.type for item in called.output] == ["message", "function_call", "function_call"]
        assert called.output_text == "I ask. "
        async with api.responses.stream(response_id=called.id, starting_after=1) as stream:
            again = await stream.get_final_response()
        assert again.output_text == "I ask. "
        parsed = await api.responses.parse(model="large", input="hello", text_format=Number)
        assert isinstance(parsed.output_parsed, Number)


async def test_an_agent_that_is_led_to_a_tool_shows_it_in_the_same_way(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        stream = await api.responses.create(model="agent/led", input="What is 6*7?", stream=True)
        events = await events_of(stream)
        response = events[-1].response
        assert [item.type for item in response.output] == ["mcp_call", "message"]
        assert response.output[0].name == "calculator"
        assert response.output[0].status in ("completed", "failed")  # what a scripted model asks for is anything
        again = await events_of(await api.responses.retrieve(response.id, stream=True))
        assert [event.to_dict() for event in again] == [event.to_dict() for event in events]


async def test_what_goes_wrong_has_a_status_at_first_and_an_event_later(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        with pytest.raises(openai.BadRequestError) as caught:
            await api.responses.create(model="large", input="x" * 40_000, stream=True)
        assert caught.value.code == "context_length_exceeded"
        stream = await api.responses.create(model="large", input="die", stream=True)
        events = await events_of(stream)
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.code == "server_error"
        assert (await api.responses.retrieve(events[-1].response.id)).status == "failed"


async def test_a_stream_that_is_left_ends_its_response(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        stream = await api.responses.create(model="large", input="slow", stream=True)
        first = await anext(stream)
        await stream.close()
        await served.idle()
        await served.service.agents.drain()
        left = await api.responses.retrieve(first.response.id)  # type: ignore[union-attr]
        strict(left)
        assert left.status == "cancelled"
        events = await events_of(await api.responses.retrieve(left.id, stream=True))
        assert events[-1].response.status == "cancelled"


async def test_a_response_that_is_not_stored_waits_until_a_person_allows_its_call(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        stream = await api.responses.create(model="agent/desk", input="pay", stream=True, store=False)
        asked: Any = None
        response: Any = None
        async for event in stream:
            strict(event)
            if event.type == "response.output_item.done" and event.item.type == "mcp_approval_request":
                asked = event.item
                call_id, run_id = asked.id.replace("mcpr_", "call_"), f"run_{asked.id[5:29]}"
                url = f"{str(api.base_url).removesuffix('/v1/')}/acu/v1/runs/{run_id}/calls/{call_id}/approval"
                await api.post(url, body={"allowed": True}, cast_to=object)
            elif event.type == "response.completed":
                response = event.response
        assert (asked.name, asked.arguments, asked.server_label) == ("pay", '{"to": "Ann"}', "acu")
        call = response.output[1]
        assert (call.type, call.output, call.approval_request_id) == ("mcp_call", "paid", asked.id)
        assert response.output_text == "It is paid."
        items: Any = [item.to_dict() for item in response.output]
        again = await api.responses.create(model="large", input=[*items, {"role": "user", "content": "hello"}])
        assert again.output_text == "Hi there"


async def test_comments_come_while_a_response_says_nothing() -> None:
    free = asyncio.Event()

    async def log() -> AsyncGenerator[tuple[int, Event], None]:
        yield 1, Began(agent="desk", model="m", messages=())
        await free.wait()
        yield 2, Ended(end="completed", why="stop")

    record = ResponseRecord(id="resp_" + "0" * 24, model="m", input=())
    stream = ResponseStream(record, log())
    async with (
        asyncio.timeout(30),
        exchanging(lambda exchange: stream_response(exchange, stream, heartbeat_s=0.02)) as (reader, _),
    ):
        for kind in (b"created", b"in_progress"):
            assert b"event: response." + kind in await reader.readuntil(b"\n\n")
        for _ in range(3):
            assert (await reader.readuntil(b"\n\n")).endswith(HEARTBEAT)
        free.set()
        assert b"event: response.completed" in await reader.readuntil(b"0\r\n\r\n")


async def test_a_response_whose_run_is_deleted_is_unknown_with_its_input(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.responses.create(model="large", input="hello")
        run_id = made.id.replace("resp_", "run_")
        await api.delete(f"{str(api.base_url).removesuffix('/v1/')}/acu/v1/runs/{run_id}", cast_to=object)
        for ask in (api.responses.retrieve, api.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)


async def test_another_key_sees_nothing(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as alice, client(served, "bob") as bob:
        made = await alice.responses.create(model="large", input="hello")
        for ask in (bob.responses.retrieve, bob.responses.delete, bob.responses.cancel, bob.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await bob.responses.create(model="large", input="hello", previous_response_id=made.id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await alice.responses.cancel(made.id)


async def test_without_a_data_plane_only_what_is_not_kept_is_answered(tmp_path: Path) -> None:
    async with serving_responses(tmp_path, stored=False) as served, client(served) as api:
        made = await api.responses.create(model="large", input="hello", store=False)
        assert (made.output_text, made.to_dict()["store"]) == ("Hi there", False)
        with pytest.raises(openai.InternalServerError, match="data plane"):
            await api.responses.create(model="large", input="hello")

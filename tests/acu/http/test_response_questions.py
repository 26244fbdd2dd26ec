"""Questions in /v1/responses: what follows where they are answered elsewhere, in part, not at all, or twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.acu.http.library_serving import client
from tests.acu.http.response_serving import serving_responses
from tests.acu.http.test_response_approvals import DESK, began_of, word
from tests.acu.http.test_responses import WEATHER, strict


async def test_who_goes_on_from_the_question_is_told_what_came_of_it(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first: Any = await api.responses.create(input="pay", **DESK)
        yes: Any = {"input": [word(first.output[0])], "previous_response_id": first.id, **DESK}
        second = await api.responses.create(**yes)
        with pytest.raises(openai.BadRequestError, match=f"Go on from the response '{second.id}'"):
            await api.responses.create(**yes)
        later = await api.responses.create(input="recall", previous_response_id=first.id, **DESK)
        began = await began_of(served, later)
        said = [(message.role, message.content) for message in began.messages]
        assert said[-2:] == [("tool", "paid"), ("user", "recall")]
        assert began.conversation == first.id


async def test_while_one_of_two_calls_waits_nobody_goes_on_from_the_question_but_with_the_word(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first: Any = await api.responses.create(input="pay twice", **DESK)
        ann, bob = first.output
        await api.responses.create(input=[word(bob)], previous_response_id=first.id, **DESK)
        with pytest.raises(openai.BadRequestError) as caught:
            await api.responses.create(input="recall", previous_response_id=first.id, **DESK)
        assert caught.value.code == "approval_required"
        assert ann.id in str(caught.value)
        assert bob.id not in str(caught.value)
        no = word(ann, approve=False)
        third: Any = await api.responses.create(input=[no], previous_response_id=first.id, **DESK)
        assert [item.type for item in third.output] == ["mcp_call", "message"]
        later = await api.responses.create(input="recall", previous_response_id=first.id, **DESK)
        said = [message.content for message in (await began_of(served, later)).messages]
        assert said[-3:] == ["This call was not allowed.", "paid", "recall"]


async def test_what_waits_in_a_conversation_ends_with_it(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        conversation = await api.conversations.create()
        asked: Any = await api.responses.create(input="pay", conversation=conversation.id, **DESK)
        await api.conversations.items.list(conversation.id)
        await api.conversations.delete(conversation.id)
        assert served.service.agents.going == 0
        assert (await api.responses.retrieve(asked.id)).output == asked.output
        with pytest.raises(openai.BadRequestError, match="its run is over"):
            await api.responses.create(input=[word(asked.output[0])], previous_response_id=asked.id, **DESK)


async def test_a_response_that_is_neither_stored_nor_streamed_ends_with_the_question_and_its_run_with_it(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        alone: Any = await api.responses.create(input="pay", **DESK, store=False)
        strict(alone)
        (request,) = alone.output
        assert (alone.status, request.type, request.name) == ("completed", "mcp_approval_request", "pay")
        assert served.service.agents.going == 0
        with pytest.raises(openai.BadRequestError, match="is stored"):
            await api.responses.create(
                input=[{"role": "user", "content": "pay"}, request.to_dict(), word(request)], **DESK, store=False
            )
        # One that goes on with a stored response leaves its run to who answers the rest.
        first: Any = await api.responses.create(input="pay twice", **DESK)
        ann, bob = first.output
        second: Any = await api.responses.create(input=[word(bob)], previous_response_id=first.id, **DESK, store=False)
        assert [item.type for item in second.output] == ["mcp_call", "mcp_approval_request"]
        third: Any = await api.responses.create(input=[word(ann)], previous_response_id=first.id, **DESK)
        assert third.output_text == "It is paid."


async def test_a_run_that_goes_on_goes_by_what_it_was_begun_with(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        begun: Any = {
            "instructions": "Be brief.",
            "tools": [WEATHER],
            "tool_choice": "auto",
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 1000,
            "max_tool_calls": 3,
            "parallel_tool_calls": False,
            "text": {"format": {"type": "text"}},
        }
        first: Any = await api.responses.create(input="pay twice", **DESK, **begun)
        ann, bob = first.output
        others: Any = {
            "instructions": "Be long.",
            "tools": [{**WEATHER, "name": "other"}],
            "tool_choice": "none",
            "temperature": 0.0,
            "top_p": 1.0,
            "max_output_tokens": 1,
            "max_tool_calls": 0,
            "parallel_tool_calls": True,
            "text": {"format": {"type": "json_object"}},
        }
        assert others.keys() == begun.keys()
        for name, value in others.items():
            with pytest.raises(openai.BadRequestError) as caught:
                await api.responses.create(
                    input=[word(ann)], previous_response_id=first.id, **DESK, extra_body={name: value}
                )
            assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
        place: Any = {**DESK, "previous_response_id": first.id}
        second: Any = await api.responses.create(input=[word(ann)], **place, **begun, metadata={"a": "b"})
        third: Any = await api.responses.create(input=[word(bob)], **{**place, "previous_response_id": second.id})
        for made in (second, third):  # the third gives none of them again
            assert {name: getattr(made, name) for name in begun} == {name: getattr(first, name) for name in begun}
        assert (second.metadata, third.metadata) == ({"a": "b"}, {})

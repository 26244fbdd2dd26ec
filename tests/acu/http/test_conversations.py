"""/v1/conversations with the real client: items come and go, and responses add theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.conversations import ConversationItem, ConversationItemList
from pydantic import TypeAdapter

from tests.acu.http.library_serving import client
from tests.acu.http.response_serving import serving_responses

ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def message(text: str, role: str = "user") -> Any:
    return {"type": "message", "role": role, "content": text}


async def texts(api: AsyncOpenAI, conversation: str, **query: Any) -> list[str]:
    """What is said in a conversation, or which kind of item it is."""
    found: list[str] = []
    async for item in api.conversations.items.list(conversation, **{"order": "asc", **query}):
        ITEM.validate_python(item.to_dict(mode="json"))
        found.append(item.content[0].text if item.type == "message" else item.type)  # type: ignore[union-attr]
    return found


async def test_a_conversation_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.conversations.create(
            metadata={"topic": "a"}, items=[message("one"), message("two", "assistant")]
        )
        assert (made.object, made.metadata) == ("conversation", {"topic": "a"})
        assert (await api.conversations.retrieve(made.id)).to_dict() == made.to_dict()
        changed = await api.conversations.update(made.id, metadata={"topic": "b"})
        assert (changed.id, changed.metadata, changed.created_at) == (made.id, {"topic": "b"}, made.created_at)
        assert await texts(api, made.id) == ["one", "two"]
    async with serving_responses(tmp_path) as served, client(served) as api:
        assert await texts(api, made.id, limit=1) == ["one", "two"]
        assert (await api.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await api.conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await texts(api, made.id)
        state = (await served.service.agents.archive()).state
        assert await state.scan("alice", "conversation_item") == []


async def test_items_are_added_listed_in_pages_read_and_removed(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.conversations.create()
        call: Any = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        result: Any = {"type": "function_call_output", "call_id": "c1", "output": "r"}
        added = await api.conversations.items.create(
            made.id, items=[message("one"), call, result, message("two")], include=["message.input_image.image_url"]
        )
        ConversationItemList.model_validate(added.to_dict(mode="json"))
        assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[3].id, False)
        assert await texts(api, made.id, limit=3) == ["one", "function_call", "function_call_output", "two"]
        assert await texts(api, made.id, order="desc", limit=1) == [
            "two",
            "function_call_output",
            "function_call",
            "one",
        ]
        assert await texts(api, made.id, after=added.data[1].id) == ["function_call_output", "two"]
        read = await api.conversations.items.retrieve(added.data[1].id or "", conversation_id=made.id)
        assert read.to_dict() == added.data[1].to_dict()
        left = await api.conversations.items.delete(added.data[3].id or "", conversation_id=made.id)
        assert left.id == made.id
        assert await texts(api, made.id) == ["one", "function_call", "function_call_output"]
        for ask in (api.conversations.items.retrieve, api.conversations.items.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(added.data[3].id or "", conversation_id=made.id)


async def test_a_response_adds_its_items_when_it_is_over(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.conversations.create(items=[message("My name is Ann")])
        response = await api.responses.create(model="large", input="recall", conversation=made.id)
        assert response.output_text == "Ann"
        assert response.conversation is not None
        assert response.conversation.id == made.id
        assert await texts(api, made.id) == ["My name is Ann", "recall", "Ann"]
        agent = await api.responses.create(model="agent/desk", input="what sum?", conversation={"id": made.id})
        behind = ["what sum?", "Let me see. ", "mcp_call", "It is 42."]
        # What is deleted stays in the conversation, and is there once.
        await api.responses.delete(agent.id)
        assert await texts(api, made.id) == ["My name is Ann", "recall", "Ann", *behind]
    async with serving_responses(tmp_path) as served, client(served) as api:
        assert await texts(api, made.id) == ["My name is Ann", "recall", "Ann", *behind]
        again = await api.responses.create(model="large", input="recall", conversation=made.id)
        assert again.output_text == "Ann"
        assert len(await texts(api, made.id)) == 9


async def test_a_response_that_fails_adds_nothing_and_one_that_is_left_what_it_has(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        made = await api.conversations.create()
        failed = await api.responses.create(model="large", input="die", conversation=made.id)
        assert failed.status == "failed"
        with pytest.raises(openai.BadRequestError):
            await api.responses.create(model="large", input="x" * 40_000, conversation=made.id)
        assert await texts(api, made.id) == []
        stream = await api.responses.create(model="large", input="slow", conversation=made.id, stream=True)
        await anext(stream)
        assert await texts(api, made.id) == []
        await stream.close()
        await served.idle()
        await served.service.agents.drain()
        asked, answered = await texts(api, made.id)
        assert (asked, set(answered)) == ("slow", {"s"})


async def test_another_key_sees_nothing(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as alice, client(served, "bob") as bob:
        made = await alice.conversations.create(items=[message("one")])
        items = await alice.conversations.items.list(made.id)
        ask: Any
        for ask in (bob.conversations.retrieve, bob.conversations.delete, bob.conversations.items.list):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        with pytest.raises(openai.NotFoundError):
            await bob.conversations.update(made.id, metadata={})
        with pytest.raises(openai.NotFoundError):
            await bob.conversations.items.create(made.id, items=[message("two")])
        with pytest.raises(openai.NotFoundError):
            await bob.conversations.items.retrieve(items.data[0].id or "", conversation_id=made.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await bob.responses.create(model="large", input="hello", conversation=made.id)
        assert caught.value.param == "conversation"
        assert await texts(alice, made.id) == ["one"]


REFUSED: list[tuple[Any, str]] = [
    ({"items": [message("x")] * 21}, "items"),
    ({"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
    ({"items": [{"type": "message", "role": "user"}]}, "items[0].content"),
    ({"items": [{"type": "message", "content": "x"}]}, "items[0].role"),
    ({"items": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "items[0].call_id"),
    ({"items": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "items[0].content[0]"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {"k": "\0"}}, "metadata.k"),
]


async def test_what_a_conversation_may_not_hold_is_named(tmp_path: Path) -> None:
    async with serving_responses(tmp_path) as served, client(served) as api:
        for fields, param in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.conversations.create(**fields)
            assert (caught.value.param or "").startswith(param), fields
        with pytest.raises(openai.BadRequestError):
            await api.conversations.create(metadata={"k" * 65: ""})

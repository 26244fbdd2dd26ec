"""A daemon that is killed at any write of a response: after the next start it is whole, or as if it had never been."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.errors import InvalidRequest
from agentflow.library.refusals import DataUnavailable, NotStored
from agentflow.responses.ids import run_of
from agentflow.responses.responses import Responses
from agentflow.service import Service
from dataplane import StateStore
from tests.agentflow.responses.dying import died, living
from tests.agentflow.responses.test_between import told, words
from tests.agentflow.responses.test_damage import KINDS
from tests.agentflow.responses.test_responses import asked

HELLO = ["user: hello", "assistant: Hi."]
PAID = ["user: go", "paid Ann", "assistant: Ann is paid."]


async def names(state: StateStore, kind: str) -> list[str]:
    return [name for name, _ in await state.scan("default", kind)]


async def said(responses: Responses, state: StateStore) -> list[str]:
    (conversation,) = await names(state, "conversation")
    items = await responses.conversations.all_items("default", conversation)
    assert len({item.id for item in items}) == len(items)
    return told(items)


async def status(responses: Responses, response_id: str) -> str | None:
    """How a response is, or None for one that is as unknown as none."""
    try:
        return (await responses.retrieve("default", response_id)).status
    except NotStored:
        for ask in (responses.stream("default", response_id, -1), responses.cancel("default", response_id)):
            with pytest.raises(NotStored):
                await ask
        with pytest.raises(InvalidRequest) as caught:
            await responses.create(asked("hello", "agent/a", previous_response_id=response_id))
        assert caught.value.code == "previous_response_not_found"
        return None


async def taken_up(service: Service, state: StateStore) -> list[str]:
    """Start; the ids of the responses that are, each with a state that is its last or a question."""
    responses, ids = service.responses, await names(state, "response")
    for response_id in ids:
        if await status(responses, response_id) == "in_progress":  # before it is taken up
            with pytest.raises(InvalidRequest) as caught:
                await responses.create(asked("hello", "agent/a", previous_response_id=response_id))
            assert caught.value.code == "previous_response_in_progress"
            with pytest.raises(DataUnavailable, match="Ask again for the rest"):
                await (await responses.stream("default", response_id, -1)).finish()
    await service.agents.resume()
    await service.agents.drain()
    found = {response_id: await status(responses, response_id) for response_id in ids}
    assert set(found.values()) <= {"completed", None}
    return [response_id for response_id, each in found.items() if each]


async def test_a_response_that_was_begun_is_answered_or_unknown(tmp_path: Path) -> None:
    seen = set()
    for folder in died(tmp_path, "begin"):
        async with living(folder) as (service, state):
            there = await taken_up(service, state)
            assert await said(service.responses, state) == (HELLO if there else [])
            kinds = {kind for kind in KINDS if await names(state, kind)}
            assert kinds == ({"response", "run", "run_by"} if there else set())
            seen.add(len(there))
    assert seen == {0, 1}


async def test_a_word_that_was_given_is_heard_or_can_be_given_again_and_is_told_once(tmp_path: Path) -> None:
    seen = set()
    for folder in died(tmp_path, "go_on"):
        async with living(folder) as (service, state):
            there = await taken_up(service, state)
            seen.add(len(there))
            waiting = service.agents.live("default", run_of(there[0])) if len(there) == 1 else None
            if waiting is not None:
                (call,) = waiting.progress.waiting
                (conversation,) = await names(state, "conversation")
                again = words(call.id, conversation=conversation)
                assert (await (await service.responses.create(again)).finish()).status == "completed"
                await service.agents.drain()
            assert await said(service.responses, state) == PAID
            ids = await names(state, "response")
            assert [await status(service.responses, each) for each in ids] == ["completed", "completed"]
            for each in ids:
                await service.responses.delete("default", each)
            assert [kind for kind in KINDS if await names(state, kind)] == []
    assert seen == {1, 2}


async def test_a_response_that_was_deleted_is_gone_or_can_be_deleted_again(tmp_path: Path) -> None:
    seen = set()
    for folder in died(tmp_path, "delete"):
        async with living(folder) as (service, state):
            ids, there = await names(state, "response"), await taken_up(service, state)
            for each in ids:
                await service.responses.delete("default", each)
            assert [kind for kind in KINDS if await names(state, kind)] == []
            assert await said(service.responses, state) == HELLO
            seen.add((len(ids), len(there)))
    assert seen == {(1, 1), (1, 0), (0, 0)}

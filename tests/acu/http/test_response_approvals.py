"""Approvals in /v1/responses with the real client: the first response asks, the second goes on with the same run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from agentflow.agents.archive import Archive
from agentflow.responses.records import ResponseRecord
from agentflow.responses.store import ResponseStore
from tests.acu.http.library_serving import client
from tests.acu.http.response_serving import serving_responses
from tests.acu.http.test_responses import WEATHER, events_of, strict, types

DESK: Any = {"model": "agent/desk"}


def word(request: Any, approve: bool = True, **more: Any) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve, **more}


def approval_url(served: Any, request: Any) -> str:
    run_id, call_id = f"run_{request.id[5:29]}", request.id.replace("mcpr_", "call_")
    return f"{served.url}/acu/v1/runs/{run_id}/calls/{call_id}/approval"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_ends_with_the_question_and_the_next_goes_on_with_the_word(
    tmp_path: Path, stream: bool
) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first: Any = await api.responses.create(input="pay", **DESK, stream=stream)
        if stream:
            events = await events_of(first)
            assert types(events)[-3:] == ["output_item.added", "output_item.done", "completed"]
            first = events[-1].response
        strict(first)
        (request,) = first.output
        assert (first.status, request.type, request.name) == ("completed", "mcp_approval_request", "pay")
        assert (request.arguments, request.server_label) == ('{"to": "Ann"}', "acu")
        assert first.usage.output_tokens > 0
        second: Any = await api.responses.create(
            input=[word(request)], previous_response_id=first.id, **DESK, stream=stream
        )
        if stream:
            events = await events_of(second)
            assert types(events)[:3] == ["created", "in_progress", "output_item.added"]
            second = events[-1].response
            again = await events_of(await api.responses.retrieve(second.id, stream=True))
            assert again == events
        strict(second)
        call, message = second.output
        assert (call.type, call.output, call.approval_request_id) == ("mcp_call", "paid", request.id)
        assert (call.arguments, message.content[0].text) == ('{"to": "Ann"}', "It is paid.")
        assert second.previous_response_id == first.id
        for made in (first, second):
            assert await api.responses.retrieve(made.id) == made
        (item,) = (await api.responses.input_items.list(second.id)).data
        assert (item.type, item.approval_request_id, item.approve) == (  # type: ignore[union-attr]
            "mcp_approval_response",
            request.id,
            True,
        )
        third = await api.responses.create(input="hello", previous_response_id=second.id, **DESK)
        assert third.output_text == "Hi there"


async def test_a_word_of_no_is_read_by_the_model_with_its_reason_and_what_the_user_says(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first = await api.responses.create(input="pay", **DESK)
        no = word(first.output[0], approve=False, reason="too dear")
        second: Any = await api.responses.create(input=[no], previous_response_id=first.id, **DESK)
        call, message = second.output
        assert call.error.to_dict() == {
            "type": "mcp_tool_execution_error",
            "content": [{"type": "input_text", "text": "This call was not allowed: too dear"}],
        }
        assert message.content[0].text == "Then not."
        first = await api.responses.create(input="pay", **DESK)
        both: Any = [word(first.output[0], approve=False), {"role": "user", "content": "rather sing"}]
        second = await api.responses.create(input=both, previous_response_id=first.id, **DESK)
        assert second.output_text == "As you like."


async def test_two_questions_can_be_answered_one_after_the_other(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first = await api.responses.create(input="pay twice", **DESK)
        ann, bob = first.output
        second: Any = await api.responses.create(input=[word(bob)], previous_response_id=first.id, **DESK)
        done, waits = second.output
        assert (done.type, done.approval_request_id) == ("mcp_call", bob.id)
        assert waits == ann
        again = await events_of(await api.responses.retrieve(second.id, stream=True))
        assert again[-1].response == second
        third: Any = await api.responses.create(input=[word(ann)], previous_response_id=second.id, **DESK)
        assert [item.type for item in third.output] == ["mcp_call", "message"]
        assert third.output[0].approval_request_id == ann.id


async def test_a_conversation_has_the_call_once_the_word_is_given(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        conversation = await api.conversations.create()
        first = await api.responses.create(input="pay", conversation=conversation.id, **DESK)
        yes = word(first.output[0])
        second = await api.responses.create(input=[yes], conversation=conversation.id, **DESK)
        assert second.output_text == "It is paid."
        await served.service.agents.drain()
        items: Any = (await api.conversations.items.list(conversation.id, order="asc")).data
        assert [item.type for item in items] == ["message", "mcp_call", "message"]


async def test_words_that_fit_no_question_are_refused(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(30),
        serving_responses(tmp_path) as served,
        client(served) as api,
        client(served, "bob") as bob,
    ):
        first: Any = await api.responses.create(input="pay", **DESK)
        other: Any = await api.responses.create(input="hello", **DESK)
        (request,) = first.output
        yes, made = word(request), {"previous_response_id": first.id}
        unknown = {**yes, "approval_request_id": f"mcpr_{request.id[5:29]}0009"}
        wrong: list[tuple[Any, Any, str]] = [
            (made, [unknown], "approval_request_not_found"),
            (made, [{**yes, "approval_request_id": "mcpr_x"}], "approval_request_not_found"),
            ({"previous_response_id": other.id}, [yes], "approval_request_not_found"),
            ({"previous_response_id": "resp_x"}, [yes], "previous_response_not_found"),
            ({}, [yes], "missing_required_parameter"),
            (made, [yes, yes], "invalid_value"),
            (made, [yes, {"type": "function_call_output", "call_id": "c", "output": "x"}], "invalid_value"),
            (made, [{key: yes[key] for key in ("type", "approve")}], "missing_required_parameter"),
            (made, [{key: yes[key] for key in ("type", "approval_request_id")}], "missing_required_parameter"),
            (made, [{**yes, "reason": "x" * 4097}], "invalid_value"),
            (made, "hello", "approval_required"),
        ]
        for place, given, code in wrong:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.responses.create(input=given, **DESK, **place)
            assert caught.value.code == code, (place, given)
        with pytest.raises(openai.BadRequestError, match="agent/desk"):
            await api.responses.create(model="agent/hasty", input=[yes], **made)
        with pytest.raises(openai.BadRequestError) as caught:
            await bob.responses.create(input=[yes], **DESK, **made)
        assert caught.value.code == "previous_response_not_found"
        second = await api.responses.create(input=[yes], **DESK, **made)
        assert second.output_text == "It is paid."
        for given in ([yes], [word(request, approve=False)]):
            with pytest.raises(openai.BadRequestError) as caught:
                await api.responses.create(input=given, **DESK, **made)
            assert caught.value.code == "approval_already_answered"


async def test_of_two_who_answer_at_once_one_is_refused(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first = await api.responses.create(input="pay", **DESK)
        yes = word(first.output[0])
        answers = await asyncio.gather(
            *(api.responses.create(input=[yes], previous_response_id=first.id, **DESK) for _ in range(4)),
            return_exceptions=True,
        )
        said = [answer for answer in answers if not isinstance(answer, BaseException)]
        refused = [answer for answer in answers if isinstance(answer, openai.BadRequestError)]
        assert [answer.output_text for answer in said] == ["It is paid."]
        assert [answer.code for answer in refused] == ["approval_already_answered"] * 3
        state = (await served.service.agents.archive()).state
        kept = [name for name, _ in await state.scan("alice", "response")]
        assert sorted(kept) == sorted([first.id, said[0].id])  # of the refused nothing
        assert len(await state.scan("alice", "response_part")) == 1


async def test_a_word_at_the_run_itself_counts_and_what_came_of_it_can_be_asked_on(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first: Any = await api.responses.create(input="pay", **DESK)
        await api.post(approval_url(served, first.output[0]), body={"allowed": True}, cast_to=object)
        await served.service.agents.drain()
        with pytest.raises(openai.BadRequestError) as caught:
            await api.responses.create(input=[word(first.output[0])], previous_response_id=first.id, **DESK)
        assert caught.value.code == "approval_already_answered"
        later = await api.responses.create(input="recall", previous_response_id=first.id, **DESK)
        began = await began_of(served, later)
        assert [message.content for message in began.messages][-3:] == ["paid", "It is paid.", "recall"]
        assert began.conversation == first.id


async def test_what_came_of_a_word_at_the_run_itself_is_known_also_behind_a_second_response(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first: Any = await api.responses.create(input="pay twice", **DESK)
        ann, bob = first.output
        second = await api.responses.create(input=[word(bob)], previous_response_id=first.id, **DESK)
        with pytest.raises(openai.BadRequestError) as caught:
            await api.responses.create(input="recall", previous_response_id=second.id, **DESK)
        assert caught.value.code == "approval_required"
        await api.post(approval_url(served, ann), body={"allowed": True}, cast_to=object)
        await served.service.agents.drain()
        later = await api.responses.create(input="recall", previous_response_id=second.id, **DESK)
        began = await began_of(served, later)
        assert [message.content for message in began.messages][-4:] == ["paid", "paid", "It is paid.", "recall"]


async def test_a_conversation_has_what_came_of_a_word_at_the_run_itself(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        for text, behind in (("pay", []), ("pay twice", ["mcp_call"])):
            conversation = await api.conversations.create()
            place: Any = {"conversation": conversation.id, **DESK}
            asked: Any = (await api.responses.create(input=text, **place)).output
            assert await item_types(api, conversation.id) == []  # until the question is answered
            if behind:
                await api.responses.create(input=[word(asked[1])], **place)
                assert await item_types(api, conversation.id) == ["message"]
            await api.post(approval_url(served, asked[0]), body={"allowed": True}, cast_to=object)
            await served.service.agents.drain()
            for _ in range(2):
                assert await item_types(api, conversation.id) == ["message", *behind, "mcp_call", "message"]
        assert await (await served.service.agents.archive()).state.scan("alice", "conversation_due") == []


async def test_a_response_that_asked_leaves_its_conversation_what_came_of_it_when_it_is_forgotten(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        conversation = await api.conversations.create()
        first: Any = await api.responses.create(input="pay twice", conversation=conversation.id, **DESK)
        await api.post(approval_url(served, first.output[1]), body={"allowed": True}, cast_to=object)
        await api.responses.delete(first.id)
        types_ = await item_types(api, conversation.id)
        assert types_[0] == "message"
        assert await (await served.service.agents.archive()).state.scan("alice", "conversation_due") == []


async def began_of(served: Any, response: Any) -> Any:
    """What the run of a response began with."""
    assert response.status == "completed"
    events = await (await served.service.agents.archive()).events("alice", response.id.replace("resp_", "run_"))
    return events[0][1]


async def item_types(api: Any, conversation: str) -> list[str]:
    return [item.type for item in (await api.conversations.items.list(conversation, order="asc")).data]


async def test_the_word_can_be_given_to_the_next_daemon(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        async with serving_responses(tmp_path) as served, client(served) as api:
            first = await api.responses.create(input="pay", **DESK)
        async with serving_responses(tmp_path) as served, client(served) as api:
            yes = {"input": [word(first.output[0])], "previous_response_id": first.id, **DESK}
            with pytest.raises(openai.InternalServerError, match="taken up"):
                await api.with_options(max_retries=0).responses.create(**yes)
            assert await served.service.agents.resume() == 1
            second = await api.responses.create(**yes)
            assert second.output_text == "It is paid."
            assert (await api.responses.retrieve(first.id)).output == first.output


async def test_a_response_that_asked_is_forgotten_without_the_one_that_went_on(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first = await api.responses.create(input="pay", **DESK)
        second = await api.responses.create(input=[word(first.output[0])], previous_response_id=first.id, **DESK)
        await api.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(first.id)
        assert (await api.responses.retrieve(second.id)).output == second.output
        await api.responses.delete(second.id)
        plane = await served.service.agents.archive()
        for kind in ("run", "response", "response_part", "open_run"):
            assert await plane.state.scan("alice", kind) == []
        waiting = await api.responses.create(input="pay", **DESK)
        await api.responses.delete(waiting.id)
        assert served.service.agents.going == 0
        assert await plane.state.scan("alice", "run") == []


async def test_the_run_that_made_both_takes_both_with_it(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first = await api.responses.create(input="pay", **DESK)
        second = await api.responses.create(input=[word(first.output[0])], previous_response_id=first.id, **DESK)
        run_id = first.id.replace("resp_", "run_")
        await served.service.agents.drain()
        await api.delete(f"{served.url}/acu/v1/runs/{run_id}", cast_to=object)
        for made in (first, second):
            for ask in (api.responses.retrieve, api.responses.input_items.list, api.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    await ask(made.id)


async def test_a_call_of_the_clients_waits_until_the_word_about_the_servers_is_given(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        place: Any = {**DESK, "tools": [WEATHER]}
        first: Any = await api.responses.create(input="mixed", **place)
        theirs, request = first.output
        assert (theirs.type, request.type) == ("function_call", "mcp_approval_request")
        result: Any = {"type": "function_call_output", "call_id": theirs.call_id, "output": "sunny"}
        with pytest.raises(openai.BadRequestError, match="with the response after it"):
            await api.responses.create(input=[word(request), result], previous_response_id=first.id, **place)
        second: Any = await api.responses.create(input=[word(request)], previous_response_id=first.id, **place)
        assert [(item.type, item.output) for item in second.output] == [("mcp_call", "paid")]
        third = await api.responses.create(input=[result], previous_response_id=second.id, **place)
        assert third.output_text == "It is sunny in both."


async def test_a_response_whose_word_was_lost_with_the_daemon_keeps_nobody_from_giving_it_again(tmp_path: Path) -> None:
    async with asyncio.timeout(30), serving_responses(tmp_path) as served, client(served) as api:
        first = await api.responses.create(input="pay", **DESK)
        archive, run_id = await served.service.agents.archive(), first.id.replace("resp_", "run_")

        async def same() -> Archive:
            return archive

        after = len(await archive.events("alice", run_id))
        lost = ResponseRecord(id="resp_" + "f" * 24, model="agent/desk", input=(), run=run_id, after=after)
        await ResponseStore(same).put("alice", lost)
        second = await api.responses.create(input=[word(first.output[0])], previous_response_id=first.id, **DESK)
        assert second.output_text == "It is paid."
        await served.service.agents.drain()
        await api.delete(f"{served.url}/acu/v1/runs/{run_id}", cast_to=object)
        for kind in ("response", "response_part", "run"):
            assert await archive.state.scan("alice", kind) == []

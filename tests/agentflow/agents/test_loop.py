"""The loop over the scripted engine: what an agent does with its model's calls."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from agentflow.agents.config import AgentConfig, AgentLimits
from agentflow.agents.record import Added, ApprovalGiven, Paused, Unpaused
from agentflow.config import SamplingConfig
from agentflow.errors import InvalidRequest, SequenceFailed, UnknownModel
from agentflow.events import ChoiceFinished, Event, TextDelta, ToolCallArguments, ToolCallOpened, ToolEnded, ToolStarted
from agentflow.messages import ChatRequest, Message, Sampling, Tool, ToolCall
from agentflow.stream import EventStream
from agentflow.tools.errors import ToolFailed
from agentflow.tools.tool import CallContext
from tests.agentflow.agents.agencies import Bench, BodyTool, benched, call, request, text_of

ANSWERED = "tool_response"  # in the turn with the results


async def echo(arguments: dict[str, Any], _: CallContext) -> str:
    return json.dumps(arguments)


async def test_an_answer_without_calls_is_one_step(tmp_path: Path) -> None:
    async with benched(tmp_path, {"hi": "Hello."}, []) as it:
        events = await it.ask("hi")
        assert text_of(events) == "Hello."
        assert events[-1] == ChoiceFinished(0, "stop")
        assert len(it.ended) == 1


async def test_a_call_is_made_and_its_result_read_before_the_answer(tmp_path: Path) -> None:
    rules = {"21": "So it is 21.", "sum": "Let me see." + call("add", '{"a": 1}')}

    async def add(arguments: dict[str, Any], _: CallContext) -> str:
        return str(arguments["a"] + 20)

    async with benched(tmp_path, rules, [BodyTool("add", add)]) as it:
        events = await it.ask("the sum, please")
        started, over = (event for event in events if isinstance(event, ToolStarted | ToolEnded))
        assert isinstance(started, ToolStarted)
        assert (started.name, started.arguments) == ("add", '{"a": 1}')
        assert over == ToolEnded(0, started.id, "add", "21", False)
        assert text_of(events) == "Let me see.\n\nSo it is 21."


async def test_each_step_s_prompt_is_the_last_one_and_all_that_was_said(tmp_path: Path) -> None:
    rules = {ANSWERED: "Done.", "go": "One." + call("echo", "{}")}
    async with benched(tmp_path, rules, [BodyTool("echo", echo)]) as it:
        await it.ask("go")
        first, second = it.ended
        before = first.prompt_token_ids
        assert second.prompt_token_ids[: len(before)] == before
        said = bytes(second.prompt_token_ids[len(before) : len(before) + first.completion_tokens - 1])
        assert said.decode() == rules["go"]
        assert second.cached_tokens >= len(before) // 16 * 16


async def test_a_call_starts_while_the_model_still_speaks(tmp_path: Path) -> None:
    """The tool waits for text that the model says after the call, so the two must overlap."""
    spoke = asyncio.Event()

    async def wait(_: dict[str, Any], __: CallContext) -> str:
        await spoke.wait()
        return "over"

    rules = {"over": "End.", "go": call("wait") + "And I go on speaking."}
    async with benched(tmp_path, rules, [BodyTool("wait", wait)]) as it:
        stream = await it.service.chat(request("go"))
        text = ""
        async for event in stream:
            text += text_of([event])
            if text.endswith("speaking."):
                spoke.set()
        await stream.aclose()
        assert text == "And I go on speaking.\n\nEnd."


async def test_calls_of_one_step_run_side_by_side_and_are_read_in_their_order(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    async def meet(arguments: dict[str, Any], _: CallContext) -> str:
        await both.wait()
        await asyncio.sleep(0.02 if arguments["n"] == 1 else 0)
        return f"<{arguments['n']}>"

    rules = {r"(?s)<1>.*<2>": "In order.", "go": call("meet", '{"n": 1}') + call("meet", '{"n": 2}')}
    async with benched(tmp_path, rules, [BodyTool("meet", meet)]) as it:
        events = await it.ask("go")
        assert [event.text for event in events if isinstance(event, ToolEnded)] == ["<2>", "<1>"]
        assert len(it.ended) == 2


async def test_injected_results_stop_the_model_at_its_call(tmp_path: Path) -> None:
    rules = {ANSWERED: "So it was.", "go": call("echo") + "It was surely something."}
    agent = AgentConfig(tools=("*",), tool_mode="inject")
    async with benched(tmp_path, rules, [BodyTool("echo", echo)], agent) as it:
        events = await it.ask("go")
        assert text_of(events) == "So it was."
        assert it.ended[0].completion_tokens == len(call("echo"))


async def test_what_a_tool_fails_with_goes_back_to_the_model(tmp_path: Path) -> None:
    async def fail(_: dict[str, Any], __: CallContext) -> str:
        raise ToolFailed("The shop is closed.")

    rules = {"shop is closed": "Sorry.", "go": call("fail")}
    async with benched(tmp_path, rules, [BodyTool("fail", fail)]) as it:
        events = await it.ask("go")
        (over,) = (event for event in events if isinstance(event, ToolEnded))
        assert (over.text, over.is_error) == ("The shop is closed.", True)
        assert text_of(events) == "Sorry."


async def test_a_tool_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    rules = {"There is no tool 'eco'. Tools: echo": "Oh.", "go": call("eco")}
    async with benched(tmp_path, rules, [BodyTool("echo", echo)]) as it:
        events = await it.ask("go")
        assert text_of(events) == "Oh."
        assert not [event for event in events if isinstance(event, ToolStarted)]


async def test_a_broken_call_goes_back_to_the_model(tmp_path: Path) -> None:
    rules = {"could not be understood": "I am sorry.", "go": '<tool_call>{"name": "echo", </tool_call>'}
    async with benched(tmp_path, rules, [BodyTool("echo", echo)]) as it:
        assert text_of(await it.ask("go")) == "I am sorry."


async def test_a_run_that_calls_for_ever_ends_at_its_steps(tmp_path: Path) -> None:
    agent = AgentConfig(tools=("*",), limits=AgentLimits(steps=3))
    async with benched(tmp_path, {"": call("echo")}, [BodyTool("echo", echo)], agent) as it:
        events = await it.ask("go")
        assert events[-1] == ChoiceFinished(0, "length")
        assert len(it.ended) == 3


async def test_a_run_ends_at_its_tokens(tmp_path: Path) -> None:
    agent = AgentConfig(limits=AgentLimits(tokens=5))
    async with benched(tmp_path, {"": "Too long an answer."}, [], agent) as it:
        events = await it.ask("go")
        assert text_of(events) == "Too l"
        assert events[-1] == ChoiceFinished(0, "length")


async def test_a_run_ends_at_its_time_and_its_tools_with_it(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def hang(_: dict[str, Any], __: CallContext) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    agent = AgentConfig(tools=("*",), limits=AgentLimits(wall_s=0.2))
    async with benched(tmp_path, {"": call("hang")}, [BodyTool("hang", hang)], agent) as it:
        events = await it.ask("go")
        assert events[-1] == ChoiceFinished(0, "length")
        assert ended.is_set()


async def test_no_seat_is_held_while_tools_work(tmp_path: Path) -> None:
    """Two runs share one seat: the second's answer comes while the first waits for its tool."""
    free = asyncio.Event()

    async def wait(_: dict[str, Any], __: CallContext) -> str:
        await free.wait()
        return "over"

    rules = {"over": "First.", "go": call("wait"), "hi": "Second."}
    async with benched(tmp_path, rules, [BodyTool("wait", wait)], max_running=1) as it:
        first = asyncio.create_task(it.ask("go"))
        assert text_of(await it.ask("hi")) == "Second."
        free.set()
        assert text_of(await first) == "First."


async def test_a_client_that_leaves_ends_the_run_and_its_tools(tmp_path: Path) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def hang(_: dict[str, Any], __: CallContext) -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    async with benched(tmp_path, {"": call("hang")}, [BodyTool("hang", hang)]) as it:
        stream = await it.service.chat(request("go"))
        async for event in stream:
            if isinstance(event, ToolStarted):
                break
        await began.wait()
        await stream.aclose()
        assert ended.is_set()
        assert it.service.status().running == 0


async def test_a_prompt_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    async with benched(tmp_path, {}, []) as it:
        with pytest.raises(InvalidRequest, match="has a context of 20000"):
            await it.ask("x" * 30_000)


async def test_an_unknown_agent_is_told_with_the_nearest(tmp_path: Path) -> None:
    async with benched(tmp_path, {}, []) as it:
        with pytest.raises(UnknownModel, match="There is no agent 'aa'. Did you mean 'agent/a'?"):
            await it.ask("go", agent="aa")


@pytest.mark.parametrize(
    ("more", "param"),
    [({"n": 2}, "n"), ({"sampling": Sampling(logprobs=1)}, "logprobs")],
)
async def test_what_has_no_meaning_for_an_agent_is_refused(tmp_path: Path, more: dict[str, Any], param: str) -> None:
    async with benched(tmp_path, {}, []) as it:
        with pytest.raises(InvalidRequest) as caught:
            await it.ask("go", **more)
        assert caught.value.param == param


async def test_a_paused_run_holds_no_seat_says_nothing_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with benched(tmp_path, {"go": "abcdefghij" * 20}, [], tokens_per_s=500) as it:
        stream = await it.service.chat(request("go"))
        events = aiter(stream)
        text = text_of([await anext(events)])
        (run_id,) = it.service.agents.ids("default")
        assert await it.service.agents.tell("default", run_id, Paused())
        while it.service.status().running:
            await asyncio.sleep(0.005)
        live = it.service.agents.live("default", run_id)
        assert live is not None
        so_far = list(live.progress.said)
        await asyncio.sleep(0.05)
        assert live.progress.said == so_far
        assert await it.service.agents.tell("default", run_id, Unpaused())
        assert text + text_of([event async for event in events]) == "abcdefghij" * 20


async def test_a_run_can_be_stepped(tmp_path: Path) -> None:
    rules = {ANSWERED: "Done.", "go": call("echo")}
    async with benched(tmp_path, rules, [BodyTool("echo", echo)], tokens_per_s=200) as it:
        stream = await it.service.chat(request("go"))
        reading = asyncio.create_task(_all(stream))
        (run_id,) = it.service.agents.ids("default")
        await it.service.agents.tell("default", run_id, Paused())
        live = it.service.agents.live("default", run_id)
        assert live is not None
        assert live.progress.speaking
        await it.service.agents.tell("default", run_id, Unpaused(one_step=True))
        await live.until(lambda: live.progress.paused and not live.progress.waiting)
        assert (live.progress.step, live.progress.speaking) == (0, False)
        assert live.progress.calls[0].ended is not None
        await it.service.agents.tell("default", run_id, Unpaused(one_step=True))
        assert text_of(await reading) == "Done."


@pytest.mark.parametrize(
    ("idempotent", "read", "made"),
    [
        (True, "<2>", 2),
        (False, r"This result is of \d{4}-\d\d-\d\d \d\d:\d\d UTC, and may not hold any more.\)\n<1>", 1),
    ],
)
async def test_a_result_that_grew_old_while_the_run_stood_still_is_fetched_again_or_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idempotent: bool, read: str, made: int
) -> None:
    calls = 0

    async def price(_: dict[str, Any], __: CallContext) -> str:
        nonlocal calls
        calls += 1
        return f"<{calls}>"

    rules = {read: "As I read it.", "tool_response": "What was that?", "go": call("price")}
    tool = BodyTool("price", price, idempotent=idempotent, fresh_for_s=60)
    async with benched(tmp_path, rules, [tool]) as it:
        stream = await it.service.chat(request("go"))
        (run_id,) = it.service.agents.ids("default")
        await it.service.agents.tell("default", run_id, Paused())
        live = it.service.agents.live("default", run_id)
        assert live is not None
        await it.service.agents.tell("default", run_id, Unpaused(one_step=True))
        await live.until(lambda: live.progress.paused and not live.progress.waiting)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 7200)
        await it.service.agents.tell("default", run_id, Unpaused())
        assert text_of(await _all(stream)) == "As I read it."
        assert calls == made


async def test_what_the_model_read_in_earlier_steps_is_remarked_upon_once_it_grew_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def price(_: dict[str, Any], __: CallContext) -> str:
        return "seven"

    async def wait(_: dict[str, Any], __: CallContext) -> str:
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 7200)
        return "waited"

    rules = {
        r"waited\n\(The result of price of \d{4}-.* UTC may not hold any more\.\)": call("again"),
        "once": "As I read it.",
        "seven": call("wait"),
        "go": call("price"),
    }
    tools = [BodyTool("price", price, fresh_for_s=60), BodyTool("wait", wait), BodyTool("again", _once)]
    async with benched(tmp_path, rules, tools) as it:
        assert text_of(await it.ask("go")) == "As I read it."


async def _once(_: dict[str, Any], __: CallContext) -> str:
    return "once"


async def test_a_result_in_the_conversation_that_a_run_begins_with_is_marked_if_it_is_old(tmp_path: Path) -> None:
    def asked(at: int) -> ChatRequest:
        called = Message("assistant", None, tool_calls=(ToolCall("c1", "price", "{}"),))
        result = Message("tool", "seven", name="price", tool_call_id="c1", at=at)
        messages = (Message("user", "What?"), called, result, Message("user", "And now?"))
        return ChatRequest(id="r", model="agent/a", messages=messages)

    rules = {"of 1970-01-01 00:01 UTC, and may not hold any more.\\)\nseven": "Old.", "seven": "New."}
    async with benched(tmp_path, rules, [BodyTool("price", _once, fresh_for_s=60)], within="prompt") as it:
        for at, answer in ((60_000, "Old."), (int(time.time() * 1000), "New."), (0, "New.")):
            stream = await it.service.chat(asked(at))
            assert text_of(await _all(stream)) == answer


async def test_an_agent_s_own_sampling_lies_over_its_model_s(tmp_path: Path) -> None:
    agent = AgentConfig(sampling=SamplingConfig(temperature=0.1, top_k=-1))
    async with benched(tmp_path, {}, [], agent) as it:
        assert it.service.sampling_defaults("agent/a") == Sampling(temperature=0.1)
        assert it.service.sampling_defaults("agent/b") == Sampling()


async def test_a_message_in_mid_flight_is_read_with_the_next_step(tmp_path: Path) -> None:
    rules = {"also": "Both, then.", "go": "One thing."}
    async with benched(tmp_path, rules, [], tokens_per_s=200) as it:
        stream = await it.service.chat(request("go"))
        (run_id,) = it.service.agents.ids("default")
        assert await it.service.agents.tell("default", run_id, Added(message=Message("user", "also this")))
        assert text_of(await _all(stream)) == "One thing.\n\nBoth, then."


async def test_nobody_else_can_touch_a_run(tmp_path: Path) -> None:
    async with benched(tmp_path, {"go": "a" * 100}, [], tokens_per_s=200) as it:
        stream = await it.service.chat(request("go"))
        (run_id,) = it.service.agents.ids("default")
        assert it.service.agents.live("other", run_id) is None
        assert not await it.service.agents.cancel("other", run_id)
        assert not await it.service.agents.tell("other", run_id, Paused())
        assert await it.service.agents.cancel("default", run_id)
        with pytest.raises(SequenceFailed, match="cancelled"):
            await _all(stream)


async def _all(stream: EventStream) -> list[Event]:
    return [event async for event in stream]


async def test_a_call_that_needs_approval_waits_for_it_and_holds_no_seat(tmp_path: Path) -> None:
    made: list[dict[str, Any]] = []

    async def pay(arguments: dict[str, Any], _: CallContext) -> str:
        made.append(arguments)
        return "paid"

    rules = {"paid": "Done.", "go": call("pay", '{"sum": 1}')}
    agent = AgentConfig(tools=("*",), limits=AgentLimits(wall_s=0.5))
    async with benched(tmp_path, rules, [BodyTool("pay", pay, approval=True)], agent) as it:
        reading = asyncio.create_task(it.ask("go"))
        waiting = await _waiting(it)
        await asyncio.sleep(0.6)  # people take longer than runs may
        assert made == []
        assert it.service.status().running == 0
        with pytest.raises(InvalidRequest, match="'call_x' does not wait for approval. Calls that do: call_"):
            await it.service.agents.approve("default", waiting[0], ApprovalGiven(call_id="call_x", allowed=True))
        assert await it.service.agents.approve("default", waiting[0], ApprovalGiven(call_id=waiting[1], allowed=True))
        assert text_of(await reading) == "Done."
        assert made == [{"sum": 1}]


async def test_a_call_that_is_not_allowed_is_not_made_and_the_model_is_told(tmp_path: Path) -> None:
    async def pay(_: dict[str, Any], __: CallContext) -> str:
        raise AssertionError("never")

    rules = {"not allowed: too dear": "A pity.", "go": call("pay")}
    async with benched(tmp_path, rules, [BodyTool("pay", pay, approval=True)]) as it:
        reading = asyncio.create_task(it.ask("go"))
        run_id, call_id = await _waiting(it)
        given = ApprovalGiven(call_id=call_id, allowed=False, why="too dear", by="anna")
        assert await it.service.agents.approve("default", run_id, given)
        assert not await it.service.agents.approve("other", run_id, given)
        events = await reading
        assert text_of(events) == "A pity."
        assert not [event for event in events if isinstance(event, ToolStarted)]


async def test_of_two_words_at_once_the_second_is_refused(tmp_path: Path) -> None:
    rules = {"not allowed": "A pity.", "once": "Booked.", "go": call("book")}
    async with benched(tmp_path, rules, [BodyTool("book", _once, approval=True)]) as it:
        reading = asyncio.create_task(it.ask("go"))
        run_id, call_id = await _waiting(it)
        words = [
            it.service.agents.approve("default", run_id, ApprovalGiven(call_id=call_id, allowed=allowed))
            for allowed in (False, True)
        ]
        first, second = await asyncio.gather(*words, return_exceptions=True)
        assert first is True
        assert isinstance(second, InvalidRequest)
        assert text_of(await reading) == "A pity."


async def test_a_call_that_nobody_answers_is_not_allowed_once_its_time_is_over(tmp_path: Path) -> None:
    rules = {"This call was not allowed: nobody answered within 0.05 s": "A pity.", "go": call("book")}
    agent = AgentConfig(tools=("*",), limits=AgentLimits(approval_s=0.05))
    async with benched(tmp_path, rules, [BodyTool("book", _once, approval=True)], agent) as it:
        events = await it.ask("go")
    assert text_of(events) == "A pity."
    assert not [event for event in events if isinstance(event, ToolStarted)]


async def _waiting(it: Bench) -> tuple[str, str]:
    """The run that waits for a person, and its call."""
    while True:
        for run_id in it.service.agents.ids("default"):
            live = it.service.agents.live("default", run_id)
            if live is not None and (asked := [each.id for each in live.progress.waiting if each.asked]):
                return run_id, asked[0]
        await asyncio.sleep(0.005)


async def test_a_caller_hears_of_its_calls_when_they_are_whole_and_the_model_of_what_is_none(tmp_path: Path) -> None:
    broken = '<tool_call>{"name": "mine", "arguments": [1}</tool_call>'
    rules = {"not understood|could not be understood": call("mine", '{"a": 1}'), "go": f"See. {broken}"}
    async with benched(tmp_path, rules, []) as it:
        events = await it.ask("go", tools=(Tool("mine"),))
    opened, arguments, finished = (event for event in events if not isinstance(event, TextDelta | ToolEnded))
    assert isinstance(opened, ToolCallOpened)
    assert (opened.index, opened.name) == (0, "mine")
    assert arguments == ToolCallArguments(0, 0, '{"a": 1}')
    assert finished == ChoiceFinished(0, "tool_calls")

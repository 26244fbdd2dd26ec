"""A run's log says the same to everybody who reads it."""

from __future__ import annotations

from agentflow.agents import record
from agentflow.agents.progress import Heard, Progress
from agentflow.agents.record import Added, Aged, Began, CallEnded, CallStarted, Ended, Event, Said, StepBegan, StepEnded
from agentflow.events import TextDelta, ToolCallArguments, ToolCallClosed, ToolCallOpened, ToolEnded, ToolStarted, Usage
from agentflow.messages import Message, Tool, ToolCall

USER = Message("user", "Look.")
CALL = '<tool_call>{"name": "look", "arguments": {"what": "box"}}</tool_call>'
ID = "call_abc0000"


def begun(*events: Event, tool_format: str = "hermes") -> tuple[Progress, list[Heard]]:
    progress = Progress("run_abc")
    heard: list[Heard] = []
    began = Began(agent="a", model="m", messages=(USER,), tools=(Tool("look"),), tool_format=tool_format, prompt=[1, 2])
    for event in (began, StepBegan(step=0, model="m"), *events):
        heard += progress.apply(record.decode(record.encode(event)))
    return progress, heard


def ended(reason: str = "stop") -> StepEnded:
    return StepEnded(reason=reason, prompt_tokens=2, cached_tokens=1, completion_tokens=3)


def test_text_is_heard_and_becomes_the_said_turn() -> None:
    progress, heard = begun(Said(ids=[3], text="Hel"), Said(ids=[4, 5], text="lo"), ended())
    assert heard == [TextDelta(0, "Hel"), TextDelta(0, "lo")]
    assert progress.said_turn() == Message("assistant", "Hello")
    assert (progress.prompt, progress.said, progress.speaking) == ([1, 2], [3, 4, 5], False)
    assert progress.usage == Usage(2, 3, 1)


def test_a_call_is_heard_opened_and_closed_and_waits_until_it_has_a_result() -> None:
    progress, heard = begun(Said(ids=[3], text="I look. " + CALL))
    assert heard == [
        TextDelta(0, "I look. "),
        ToolCallOpened(0, 0, ID, "look"),
        ToolCallArguments(0, 0, '{"what": "box"}'),
        ToolCallClosed(0, 0, ID),
    ]
    (call,) = progress.waiting
    assert (call.id, call.arguments, call.attempt) == (ID, '{"what": "box"}', 0)
    started = CallStarted(call_id=ID, name="look", arguments=call.arguments, idempotent=True)
    assert progress.apply(started) == [ToolStarted(0, ID, "look", '{"what": "box"}')]
    over = progress.apply(CallEnded(call_id=ID, text="a hat", handle="h_1"))
    assert over == [ToolEnded(0, ID, "look", "a hat", False, "h_1")]
    assert progress.waiting == []
    assert progress.new_turns() == [Message("tool", "a hat", name="look", tool_call_id=ID)]
    assert progress.said_turn() == Message(
        "assistant", "I look. ", tool_calls=(ToolCall(ID, "look", '{"what": "box"}'),)
    )


def test_results_that_grew_old_are_remarked_upon_behind_the_new_turns_of_one_step() -> None:
    step = [Said(ids=[3], text=CALL), ended(), CallEnded(call_id=ID, text="a hat", at=7)]
    progress, _ = begun(*step, StepBegan(step=1, model="m"))
    assert [call.id for call in progress.past] == [ID]
    for event in (ended(), Aged(call_ids=(ID,), text="(old)"), Added(message=Message("user", "And?"))):
        progress.apply(event)
    assert progress.past == []
    assert progress.new_turns() == [Message("user", "And?\n(old)")]
    progress.apply(StepBegan(step=2, model="m"))
    progress.apply(Added(message=Message("user", "So?")))
    assert progress.new_turns() == [Message("user", "So?")]


def test_a_remark_stands_behind_a_result_and_not_in_the_user_s_words() -> None:
    result = CallEnded(at=9, call_id=ID, text="a hat", answered_at=7)
    progress, _ = begun(Said(ids=[3], text=CALL), ended(), result)
    progress.apply(Added(message=Message("user", "And?")))
    progress.apply(Aged(call_ids=("call_old",), text="(old)"))
    told = Message("tool", "a hat\n(old)", name="look", tool_call_id=ID, at=7)
    assert progress.new_turns() == [told, Message("user", "And?")]


def test_results_are_new_turns_in_the_order_of_the_calls_whatever_came_first() -> None:
    progress, _ = begun(
        Said(ids=[3], text=CALL + CALL),
        CallEnded(call_id="call_abc0001", text="second"),
        CallEnded(call_id="call_abc0000", text="first"),
        Added(message=Message("user", "Hurry.")),
    )
    assert [turn.content for turn in progress.new_turns()] == ["first", "second", "Hurry."]


def test_the_next_step_has_the_prompt_and_what_was_said_and_added() -> None:
    progress, _ = begun(
        Said(ids=[3], text=CALL), ended(), CallEnded(call_id=ID, text="a hat"), StepBegan(step=1, model="m", added=[9])
    )
    assert progress.prompt == [1, 2, 3, 9]
    assert (progress.said, progress.calls, progress.speaking) == ([], [], True)
    assert [message.role for message in progress.history] == ["user", "assistant", "tool"]


def test_a_prompt_that_was_rendered_anew_replaces_the_old_one() -> None:
    progress, _ = begun(Said(ids=[3], text="x"), ended(), StepBegan(step=1, model="m", prompt=[7, 8]))
    assert progress.prompt == [7, 8]


def test_a_call_that_is_no_json_ends_with_an_error_that_the_model_reads() -> None:
    progress, heard = begun(Said(ids=[3], text='<tool_call>{"name": "look", "arguments": {"what": '), ended("length"))
    assert [type(each) for each in heard] == [ToolCallOpened, ToolCallArguments, ToolEnded]
    (result,) = progress.new_turns()
    assert result.content is not None
    assert result.content.startswith("This call could not be understood")
    assert progress.waiting == []
    assert progress.said_turn().tool_calls == ()


def test_a_marker_with_no_call_in_it_is_a_call_that_was_not_understood() -> None:
    progress, heard = begun(Said(ids=[3], text="<tool_call>look in the box</tool_call>"), ended())
    (over,) = heard
    assert isinstance(over, ToolEnded)
    assert (over.name, over.is_error) == ("unknown", True)
    assert len(progress.new_turns()) == 1


def test_the_arguments_of_a_forced_call_are_the_whole_text() -> None:
    progress, heard = begun(
        Said(ids=[3], text="x"), ended(), StepBegan(step=1, model="small", forced="look"), Said(ids=[4], text='{"a":1}')
    )
    assert progress.model == "small"
    assert heard[1:] == [
        ToolCallOpened(0, 0, ID, "look"),
        ToolCallArguments(0, 0, '{"a":1}'),
        ToolCallClosed(0, 0, ID),
    ]


def test_a_model_that_writes_no_calls_is_heard_as_it_speaks() -> None:
    _, heard = begun(Said(ids=[3], text=CALL), tool_format="none")
    assert heard == [TextDelta(0, CALL)]


def test_a_second_attempt_is_not_heard_as_another_call() -> None:
    progress, _ = begun(Said(ids=[3], text=CALL))
    first = CallStarted(call_id=ID, name="look", arguments="{}", idempotent=True)
    progress.apply(first)
    assert progress.apply(CallStarted(call_id=ID, name="look", arguments="{}", idempotent=True, attempt=2)) == []
    assert progress.calls[0].attempt == 2


def test_the_end_is_the_end() -> None:
    progress, _ = begun(Said(ids=[3], text="x"), Ended(end="cancelled", why="cancelled"))
    assert progress.ended == Ended(end="cancelled", why="cancelled")
    assert not progress.speaking

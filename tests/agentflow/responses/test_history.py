"""What went before is told to the model as it was, and calls have their results."""

from __future__ import annotations

import pytest

from agentflow.agents.instructions import instructed, uninstructed
from agentflow.agents.progress import Progress
from agentflow.agents.record import (
    Added,
    ApprovalAsked,
    ApprovalGiven,
    Began,
    CallEnded,
    CallStarted,
    Ended,
    Event,
    Said,
    StepBegan,
    StepEnded,
)
from agentflow.errors import InvalidRequest
from agentflow.messages import Message, Tool, ToolCall
from agentflow.responses.history import check_calls, context_of, messages_of, take_results
from agentflow.responses.items import CallItem, Item, MessageItem, ResultItem, ToolItem

USER = Message("user", "Look.")
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
ID = "call_abc0000"
LOST = "The outcome of this call is unknown: it was cut off while it was under way. It may have been done, and is not repeated."


def progress(agent: str, *events: Event, messages: tuple[Message, ...] = (USER,), instructions: str = "") -> Progress:
    made = Progress("run_abc")
    began = Began(
        agent=agent,
        model="m",
        messages=instructed(messages, instructions),
        tools=(Tool("look"),),
        tool_format="hermes",
        instructions=instructions,
    )
    for event in (began, *events):
        made.apply(event)
    return made


def step(number: int, text: str) -> tuple[Event, ...]:
    over = StepEnded(reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=1)
    return StepBegan(step=number, model="m"), Said(ids=[1], text=text), over


@pytest.mark.parametrize("instructions", ["", "Be brief."])
@pytest.mark.parametrize(
    "messages",
    [
        (USER,),
        (Message("system", "You are."), USER),
        (Message("developer", ""), USER),
        (Message("system", "Be brief."),),
    ],
)
def test_instructions_go_in_and_come_out_again(messages: tuple[Message, ...], instructions: str) -> None:
    given = instructed(messages, instructions)
    assert uninstructed(given, instructions) == messages
    assert sum(message.role in ("system", "developer") for message in given) <= 1


def test_the_context_of_a_run_is_all_that_was_said_but_its_instructions() -> None:
    started = CallStarted(call_id=ID, name="look", arguments="{}", idempotent=True)
    done = CallEnded(call_id=ID, text="a hat")
    over = progress(
        "a", *step(0, "I look. " + CALL), started, done, *step(1, "A hat."), Ended(end="completed", why="stop"),
        instructions="Be brief.",
    )  # fmt: skip
    assert context_of(over) == (
        USER,
        Message("assistant", "I look. ", tool_calls=(ToolCall(ID, "look", "{}"),)),
        Message("tool", "a hat", name="look", tool_call_id=ID),
        Message("assistant", "A hat."),
    )


def test_a_call_of_an_agents_that_was_cut_off_is_told_so_and_one_of_the_callers_waits() -> None:
    agents = context_of(progress("a", *step(0, CALL), Ended(end="cancelled", why="cancelled")))
    assert agents[-1].content == "This call was cut off, and has no result."
    check_calls(agents, [USER])
    started = CallStarted(call_id=ID, name="look", arguments="{}", idempotent=False)
    made = context_of(progress("a", *step(0, CALL), started, Ended(end="cancelled", why="cancelled")))
    assert made[-1].content == LOST
    callers = context_of(progress("", *step(0, CALL), Ended(end="completed", why="stop")))
    assert callers[-1].tool_calls[0].id == ID
    with pytest.raises(InvalidRequest, match="No tool output found"):
        check_calls(callers, [USER])
    check_calls(callers, [Message("tool", "a hat", tool_call_id=ID), USER])


def test_what_came_of_calls_that_a_person_was_asked_about_is_told_without_what_was_said_since() -> None:
    asked = progress("a", *step(0, CALL), ApprovalAsked(call_id=ID))
    before = context_of(asked)[:-1]
    assert [message.role for message in before] == ["user", "assistant"]
    word = ApprovalGiven(call_id=ID, allowed=True), Added(message=Message("user", "Be quick."))
    started = CallStarted(call_id=ID, name="look", arguments="{}", idempotent=False)
    take_results(asked, [*word, started, CallEnded(call_id=ID, text="a hat"), *step(1, "A hat.")])
    assert context_of(asked) == (*before, Message("tool", "a hat", name="look", tool_call_id=ID))


def test_a_run_that_never_spoke_leaves_what_it_was_asked() -> None:
    assert context_of(progress("a", instructions="Be brief.")) == (USER,)


def test_items_become_turns() -> None:
    items: list[Item] = [
        MessageItem(id="1", role="user", texts=("One ", "two.")),
        MessageItem(id="2", role="assistant", texts=("I call.",)),
        CallItem(id="3", call_id="c1", name="f", arguments="{}"),
        CallItem(id="4", call_id="c2", name="g", arguments="{}"),
        ResultItem(id="5", call_id="c1", output="r1"),
        ResultItem(id="6", call_id="c2", output="r2"),
        ToolItem(id="7", name="h", arguments="{}", output="r3", at=5000),
        ToolItem(id="8", name="h", arguments="{}", status="incomplete"),
    ]
    assert messages_of(items) == (
        Message("user", "One two."),
        Message("assistant", "I call.", tool_calls=(ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "{}"))),
        Message("tool", "r1", name="f", tool_call_id="c1"),
        Message("tool", "r2", name="g", tool_call_id="c2"),
        Message("assistant", None, tool_calls=(ToolCall("7", "h", "{}"),)),
        Message("tool", "r3", name="h", tool_call_id="7", at=5000),
        Message("assistant", None, tool_calls=(ToolCall("8", "h", "{}"),)),
        Message("tool", LOST, name="h", tool_call_id="8"),
    )


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ([Message("tool", "r", tool_call_id="c")], "No tool call found for function call output with call_id c."),
        (
            [Message("assistant", None, tool_calls=(ToolCall("c", "f", "{}"),))],
            "No tool output found for function call c.",
        ),
        (
            [
                Message("assistant", None, tool_calls=(ToolCall("c", "f", "{}"),)),
                USER,
                Message("tool", "", tool_call_id="c"),
            ],
            "No tool output found for function call c.",
        ),
    ],
)
def test_calls_and_results_belong_together(new: list[Message], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_calls([], new)
    assert (str(caught.value), caught.value.param) == (says, "input")

"""A log is told as the same events, wherever it is cut and however often it is read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentflow.agents import record
from agentflow.agents.record import (
    ANY_TOOL,
    Added,
    ApprovalAsked,
    ApprovalGiven,
    Began,
    CallEnded,
    CallStarted,
    Ended,
    Event,
    Resumed,
    RunEnd,
    Said,
    StepBegan,
    StepEnded,
)
from agentflow.events import Usage
from agentflow.messages import Message, Tool
from agentflow.responses.events import (
    ArgumentsAdded,
    ArgumentsDone,
    Failure,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ResponseEvent,
    ResponseState,
    StateTold,
    TextAdded,
    TextDone,
    ToolTold,
)
from agentflow.responses.history import messages_of
from agentflow.responses.items import ApprovalItem, CallItem, Item, MessageItem, ToolItem, kept
from agentflow.responses.projection import Projection
from agentflow.responses.records import ResponseRecord

SUFFIX = "0123456789abcdef01234567"
RECORD = ResponseRecord(id=f"resp_{SUFFIX}", model="m", input=())
CALL = '<tool_call>{"name": "look", "arguments": {"what": "box"}}</tool_call>'


def call_id(number: int) -> str:
    return f"call_{SUFFIX}{number:04x}"


def began(agent: str = "a", **more: Any) -> list[Event]:
    tools = (Tool("look"), Tool("file_search"))
    first = Began(
        agent=agent, model="m", messages=(Message("user", "Look."),), tools=tools, tool_format="hermes", at=5000, **more
    )
    return [first, StepBegan(step=0, model="m", forced=more.get("forced"))]


def said(*texts: str) -> list[Event]:
    return [Said(ids=[n], text=text) for n, text in enumerate(texts)]


def stepped(reason: str = "stop") -> StepEnded:
    return StepEnded(reason=reason, prompt_tokens=2, cached_tokens=1, completion_tokens=3)


def ended(end: RunEnd = "completed", why: str = "stop", error: str | None = None) -> Ended:
    return Ended(end=end, why=why, error=error, at=9000)


def called(number: int, text: str, *, name: str = "look", is_error: bool = False) -> list[Event]:
    started = CallStarted(call_id=call_id(number), name=name, arguments="{}", idempotent=True)
    return [started, CallEnded(call_id=call_id(number), text=text, is_error=is_error, at=7000)]


def told(log: list[Event]) -> tuple[list[ResponseEvent], ResponseState]:
    projection = Projection(RECORD)
    events = [each for event in log for each in projection.apply(record.decode(record.encode(event)))]
    assert [event.number for event in events] == list(range(len(events)))
    return events, projection.state()


WHOLE = [
    *began(),
    *said("I ", "look. ", CALL[:20], CALL[20:40], CALL[40:], "Then"),
    *called(0, "a hat")[:1],
    stepped(),
    *called(0, "a hat")[1:],
    StepBegan(step=1, model="m"),
    *said("A ha"),
    Resumed(kept=1),
    *said("t."),
    stepped(),
    ended(),
]


def test_a_text_is_one_message_with_one_part() -> None:
    events, state = told([*began(), *said("Hel", "lo"), stepped(), ended()])
    item_id = f"msg_{SUFFIX}0000"
    opened = MessageItem(id=item_id, role="assistant", texts=(), status="in_progress")
    whole = MessageItem(id=item_id, role="assistant", texts=("Hello",))
    assert events[2:-1] == [
        ItemAdded(2, 0, opened),
        PartAdded(3, 0, item_id),
        TextAdded(4, 0, item_id, "Hel"),
        TextAdded(5, 0, item_id, "lo"),
        TextDone(6, 0, item_id, "Hello"),
        PartDone(7, 0, item_id, "Hello"),
        ItemDone(8, 0, whole),
    ]
    moments = [(event.moment, event.response.status) for event in events if isinstance(event, StateTold)]
    assert moments == [("created", "in_progress"), ("in_progress", "in_progress"), ("completed", "completed")]
    assert (state.output, state.created_ms, state.completed_ms) == ((whole,), 5000, 9000)
    assert state.usage == Usage(2, 3, 1)
    last = events[-1]
    assert isinstance(last, StateTold)
    assert last.response == state


def test_a_tool_of_an_agents_is_an_item_with_stages() -> None:
    events, state = told(WHOLE)
    item_id = f"mcp_{SUFFIX}0001"
    of_tool = [event for event in events if getattr(event, "item_id", None) == item_id]
    assert [event.stage for event in of_tool if isinstance(event, ToolTold)] == ["in_progress", "completed"]
    pieces = [event.text for event in of_tool if isinstance(event, ArgumentsAdded)]
    assert "".join(pieces) == '{"what": "box"}'
    assert [event.text for event in of_tool if isinstance(event, ArgumentsDone)] == ['{"what": "box"}']
    texts = ["I look. ", "Then", "A hat."]
    assert [item.texts[0] for item in state.output if isinstance(item, MessageItem)] == texts
    assert state.output[1] == ToolItem(id=item_id, name="look", arguments='{"what": "box"}', output="a hat", at=7000)
    assert state.usage == Usage(4, 6, 2)


@pytest.mark.parametrize("cut", range(1, len(WHOLE) + 1))
def test_at_every_cut_what_was_told_stays_and_the_rest_follows(cut: int) -> None:
    whole, _ = told(WHOLE)
    events, state = told(WHOLE[:cut])
    assert events == whole[: len(events)]
    assert state.status == ("completed" if cut == len(WHOLE) else "in_progress")
    done: dict[int, Item] = {event.place: event.item for event in events if isinstance(event, ItemDone)}
    opened = {event.place: event.item for event in events if isinstance(event, ItemAdded)}
    assert state.output == tuple(done.get(place, item) for place, item in sorted(opened.items()))


@pytest.mark.parametrize(
    ("end", "moment", "status", "incomplete"),
    [
        (ended("incomplete", "max_tokens"), "incomplete", "incomplete", "max_output_tokens"),
        (ended("incomplete", "max_steps", "All steps."), "incomplete", "incomplete", "max_messages"),
        (ended("cancelled", "cancelled"), "incomplete", "cancelled", None),
        (ended("failed", "EngineDied", "It died."), "failed", "failed", None),
    ],
)
def test_an_end_that_is_none_closes_what_is_open(end: Ended, moment: str, status: str, incomplete: str | None) -> None:
    log = [*began(), *said("One ", CALL, " two")]
    events, state = told([*log, end])
    last = events[-1]
    assert isinstance(last, StateTold)
    assert (last.moment, state.status, state.incomplete, state.completed_ms) == (moment, status, incomplete, None)
    assert state.failure == (Failure("server_error", "It died.") if status == "failed" else None)
    assert [item.status for item in state.output if isinstance(item, ToolItem)] == ["incomplete"]
    done = [event.item for event in events if isinstance(event, ItemDone)]
    assert sorted(done, key=lambda item: item.id) == sorted(state.output, key=lambda item: item.id)
    assert state.output[2] == MessageItem(
        id=f"msg_{SUFFIX}0002", role="assistant", texts=(" two",), status="incomplete"
    )


def test_a_prompt_that_is_too_long_is_the_callers_fault() -> None:
    _, state = told([*began(), ended("failed", "context_length_exceeded", "Too long.")])
    assert state.failure == Failure("invalid_prompt", "Too long.")


def test_a_plain_models_calls_are_the_callers() -> None:
    events, state = told([*began(""), *said("I look. ", CALL, CALL), stepped(), ended()])
    calls = [item for item in state.output if isinstance(item, CallItem)]
    assert [(call.id, call.call_id, call.arguments) for call in calls] == [
        (f"fc_{SUFFIX}000{n}", call_id(n - 1), '{"what": "box"}') for n in (1, 2)
    ]
    assert not [event for event in events if isinstance(event, ToolTold)]
    assert [event.own for event in events if isinstance(event, ArgumentsAdded)] == [False, False]


def test_calls_that_were_forced_are_read_as_they_are_written() -> None:
    list_ = '[{"name": "look", "arguments": {"what": 1}}, {"name": "look", "arguments": {}}]'
    _, state = told([*began("", forced=ANY_TOOL), *said(list_), stepped(), ended()])
    assert [item.arguments for item in state.output if isinstance(item, CallItem)] == ['{"what": 1}', "{}"]
    _, state = told([*began("", forced="look"), *said('{"what": 2}'), stepped(), ended()])
    assert [item.arguments for item in state.output if isinstance(item, CallItem)] == ['{"what": 2}']


def test_a_call_that_was_cut_off_is_incomplete() -> None:
    _, state = told([*began(""), *said(CALL[:45]), stepped("length"), ended("incomplete", "max_tokens")])
    (call,) = state.output
    assert isinstance(call, CallItem)
    assert (call.name, call.status) == ("look", "incomplete")


def test_a_call_that_an_agent_did_not_write_well_is_a_tool_that_failed() -> None:
    broken = "<tool_call>nonsense</tool_call>"
    log = [
        *began(),
        *said("See: ", broken),
        stepped(),
        StepBegan(step=1, model="m"),
        *said("Sorry."),
        stepped(),
        ended(),
    ]
    _, state = told(log)
    assert [
        (type(item).__name__, item.status) for item in state.output if isinstance(item, MessageItem | ToolItem)
    ] == [
        ("MessageItem", "completed"),
        ("ToolItem", "failed"),
        ("MessageItem", "completed"),
    ]


@pytest.mark.parametrize("name", ["look", "file_search"])
def test_a_result_that_is_fetched_again_or_marked_as_old_changes_nothing(name: str) -> None:
    started, first = called(0, "old", name=name)
    assert isinstance(started, CallStarted)
    log = [*began(), *said(CALL.replace("look", name)), started, first, stepped()]
    again = [
        *called(0, "(old) old", name=name)[1:],
        ApprovalAsked(call_id=call_id(0)),
        replace(started, attempt=2),
        *called(0, "new", name=name)[1:],
    ]
    assert told([*log, *again, ended()]) == told([*log, ended()])
    (item,) = told([*log, *again, ended()])[1].output
    assert isinstance(item, ToolItem)
    assert item.output == "old"


def test_a_call_that_waits_for_a_person_asks_in_an_item_of_its_own() -> None:
    asked = [*began(), *said(CALL), stepped(), ApprovalAsked(call_id=call_id(0))]
    events, state = told(asked)
    call, request = state.output
    assert request == ApprovalItem(id=f"mcpr_{SUFFIX}0000", name="look", arguments='{"what": "box"}')
    assert events[-2:] == [ItemAdded(len(events) - 2, 1, request), ItemDone(len(events) - 1, 1, request)]
    _, state = told([*asked, ApprovalGiven(call_id=call_id(0), allowed=True), *called(0, "a hat"), ended()])
    done, again = state.output
    assert isinstance(call, ToolItem)
    assert done == replace(
        call, arguments=request.arguments, output="a hat", status="completed", approval=request.id, at=7000
    )
    assert again == request
    assert kept(state.output) == (done,)
    assert [message.role for message in messages_of(state.output)] == ["assistant", "tool"]


def asking() -> list[Event]:
    asked = ApprovalAsked(call_id=call_id(0), at=7000)
    return [*began(asking=("look",)), *said("See. ", CALL), stepped(), asked]


def test_a_stored_response_is_over_where_a_person_is_asked_and_another_tells_the_rest() -> None:
    events, state = told(asking())
    message, request = state.output
    assert isinstance(message, MessageItem)
    assert request == ApprovalItem(id=f"mcpr_{SUFFIX}0000", name="look", arguments='{"what": "box"}')
    assert (state.status, state.usage, state.completed_ms) == ("completed", Usage(2, 3, 1), 7000)
    assert events[-1] == StateTold(len(events) - 1, "completed", state)
    word = [ApprovalGiven(call_id=call_id(0), allowed=True), *called(0, "a hat")]
    log = [*asking(), *word, ended()]
    assert told(log) == (events, state)
    projection = Projection(RECORD)
    for event in log:
        projection.apply(event)
    assert (projection.asks, projection.followed, projection.applied) == (True, True, len(asking()))
    next_one = replace(RECORD, id="resp_" + "9" * 24, run=RECORD.run_id, after=projection.applied)
    rest = Projection(next_one)
    events = [each for event in log for each in rest.apply(event)]
    assert [event.number for event in events] == list(range(len(events)))
    (call,) = rest.state().output
    assert call == ToolItem(
        id=f"mcp_{'9' * 24}0000", name="look", arguments='{"what": "box"}', output="a hat", approval=request.id, at=7000
    )
    assert rest.state().usage == Usage(0, 0, 0)


def test_a_response_that_answers_one_of_two_ends_with_the_other_question_once_more() -> None:
    asked = [ApprovalAsked(call_id=call_id(number)) for number in range(2)]
    log = [*began(asking=("look",)), *said(CALL, CALL), stepped(), *asked]
    _, first = told(log)
    rest = Projection(replace(RECORD, id="resp_" + "9" * 24, run=RECORD.run_id, after=len(log)))
    events = [
        each
        for event in (*log, ApprovalGiven(call_id=call_id(1), allowed=True), *called(1, "a hat"))
        for each in rest.apply(event)
    ]
    call, request = rest.state().output
    assert isinstance(call, ToolItem)
    assert (call.output, request) == ("a hat", first.output[0])
    assert rest.waits
    assert events[-3:-1] == [ItemAdded(events[-3].number, 1, request), ItemDone(events[-2].number, 1, request)]


def test_a_response_that_is_not_stored_waits_for_the_word() -> None:
    projection = Projection(replace(RECORD, store=False))
    for event in asking():
        projection.apply(event)
    assert not projection.over
    assert projection.state().status == "in_progress"
    whole = Projection(replace(RECORD, store=False))
    whole.parts = True
    for event in asking():
        whole.apply(event)
    assert whole.over
    assert whole.state().output == told(asking())[1].output


def added(text: str) -> Added:
    return Added(message=Message("user", text))


def test_what_people_say_meanwhile_stands_where_it_was_read_and_in_no_output() -> None:
    asks = tuple(MessageItem(id=f"msg_{n}", role="user", texts=("Look.",)) for n in range(9))
    first, step = began()
    log = [
        first,
        added("one"),
        step,
        *said("A "),
        added("two"),
        added("three"),
        *said("hat."),
        stepped(),
        StepBegan(step=1, model="m"),
        *said("Red."),
        stepped(),
        added("four"),
        ended(),
    ]
    projection = Projection(replace(RECORD, input=asks))
    for event in log:
        projection.apply(event)
    items = projection.items()
    texts = ["one", "A hat.", "two", "three", "Red.", "four"]
    assert [item.texts[0] for item in items if isinstance(item, MessageItem)] == texts
    assert len({item.id for item in items}) == len(items)
    assert [item for item in items if item in projection.state().output] == list(projection.state().output)
    assert len(projection.state().output) == 2
    other = Projection(replace(RECORD, input=asks), 0x4000)
    for event in log:
        other.apply(event)
    assert not {item.id for item in items} & {item.id for item in other.items()}


def test_what_a_plain_model_did_not_write_as_a_call_is_text() -> None:
    broken = "<tool_call>nonsense</tool_call>"
    events, state = told([*began(""), *said("See: ", broken), stepped(), ended()])
    (message,) = state.output
    assert isinstance(message, MessageItem)
    assert message.texts == ("See: " + broken,)
    assert "".join(event.text for event in events if isinstance(event, TextAdded)) == message.texts[0]


def test_a_search_has_stages_of_its_own_and_no_arguments() -> None:
    search = CALL.replace("look", "file_search")
    events, state = told([*began(), *said(search), stepped(), *called(0, "found", name="file_search")])
    assert [(event.stage, event.search) for event in events if isinstance(event, ToolTold)] == [
        ("in_progress", True), ("searching", True), ("completed", True),
    ]  # fmt: skip
    assert not [event for event in events if isinstance(event, ArgumentsAdded | ArgumentsDone)]
    assert state.output[0].id == f"fs_{SUFFIX}0000"

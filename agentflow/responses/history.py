"""History: what a model reads of what went before. Pure: items and runs in, messages out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from agentflow.agents.instructions import uninstructed
from agentflow.agents.progress import OUTCOME_UNKNOWN, Progress
from agentflow.agents.record import Added, Event, StepBegan
from agentflow.errors import InvalidRequest
from agentflow.messages import Message, ToolCall
from agentflow.responses.items import CallItem, Item, MessageItem, ResultItem, ToolItem

_CUT_OFF = "This call was cut off, and has no result."


def messages_of(items: Iterable[Item]) -> tuple[Message, ...]:
    """The items as turns. Calls join the assistant's turn that they follow."""
    messages: list[Message] = []
    names: dict[str, str] = {}
    for item in items:
        match item:
            case MessageItem(role=role, texts=texts):
                messages.append(Message(role, "".join(texts)))
            case CallItem(call_id=call_id, name=name, arguments=arguments):
                names[call_id] = name
                _call(messages, ToolCall(call_id, name, arguments))
            case ResultItem(call_id=call_id, output=output):
                messages.append(Message("tool", output, name=names.get(call_id), tool_call_id=call_id))
            case ToolItem():
                _call(messages, ToolCall(item.id, item.name, item.arguments))
                output = OUTCOME_UNKNOWN if item.output is None else item.output
                messages.append(Message("tool", output, name=item.name, tool_call_id=item.id, at=item.at))
    return tuple(messages)


def context_of(progress: Progress) -> tuple[Message, ...]:
    """The conversation of a run up to where it stands, without the instructions that were for it alone."""
    began = progress.began
    assert began is not None, "a run's log begins with Began"
    messages = list(uninstructed(tuple(progress.history), began.instructions))
    if progress.step < 0:
        return tuple(messages)
    said = progress.said_turn()
    if said.content or said.tool_calls:
        messages.append(said)
    messages += progress.new_turns()
    if began.agent:
        answered = {call.id for call in progress.calls if call.ended is not None or call.clients}
        begun = {call.id for call in progress.calls if call.attempt}
        messages += [
            Message("tool", OUTCOME_UNKNOWN if call.id in begun else _CUT_OFF, name=call.name, tool_call_id=call.id)
            for call in said.tool_calls
            if call.id not in answered
        ]
    return tuple(messages)


def take_results(progress: Progress, behind: Iterable[Event]) -> None:
    """Add to a run, where it asked a person, what came of that step's calls, and nothing that was said since.

    `behind`: the events of its log from there on.
    """
    for event in behind:
        if isinstance(event, StepBegan):
            return
        if not isinstance(event, Added):
            progress.apply(event)


def check_calls(before: Sequence[Message], new: Sequence[Message]) -> None:
    """Every call has its result before anybody speaks again, and every new result its call. Raises InvalidRequest."""
    waiting: dict[str, None] = {}
    for message in before:
        waiting |= dict.fromkeys(call.id for call in message.tool_calls)
        waiting.pop(message.tool_call_id or "", None)
    for message in new:
        if message.role == "tool":
            call_id = message.tool_call_id or ""
            if call_id not in waiting:
                raise InvalidRequest(
                    f"No tool call found for function call output with call_id {call_id[:64]}.", param="input"
                )
            del waiting[call_id]
        else:
            _check_none(waiting)
            waiting |= dict.fromkeys(call.id for call in message.tool_calls)
    _check_none(waiting)


def _check_none(waiting: dict[str, None]) -> None:
    for call_id in waiting:
        raise InvalidRequest(f"No tool output found for function call {call_id[:64]}.", param="input")


def _call(messages: list[Message], call: ToolCall) -> None:
    if messages and messages[-1].role == "assistant":
        last = messages[-1]
        messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
    else:
        messages.append(Message("assistant", None, tool_calls=(call,)))

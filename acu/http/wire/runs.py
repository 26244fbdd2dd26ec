"""Queries, bodies and answers of /acu/v1/runs. A run's account and its summary go out as agentflow has them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from acu.http.errors import BadRequest
from acu.http.paging import Cursor
from acu.http.wire.decode import BodyDecoder, clean_text
from agentflow.agents.account import RunSummary, Status
from agentflow.agents.record import Began, CallEnded, CallStarted, Event, Recalled, Said, StepBegan

LAST_NUMBER = 2**63 - 2
CHARS_A_VALUE = 256  # of a text: its encoding takes as long as that of a value

EventNumber = Annotated[int, Meta(ge=0, le=LAST_NUMBER)]

EVENT_TYPES: Final[dict[type[Event], str]] = {
    kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Event)
}
"""What the events are called outside: step_began, call_ended, ..."""

MESSAGE_CHARS: Final = 262_144
"""Of a message for a run that goes on. A longer one fits no model's context, and would end the run."""


class RunsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of runs; `agent` and `status` leave those of one."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: Cursor | UnsetType = UNSET
    agent: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    status: Status | UnsetType = UNSET


class RunEventsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query of a run's events: those with numbers above `after`. A `stream` has all of them, whatever the `limit`."""

    after: EventNumber = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    stream: bool = False


class RunMessageBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message of the user's for a run that goes on."""

    content: Annotated[str, Meta(min_length=1, max_length=MESSAGE_CHARS)]


class RunApprovalBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A person's word about a call that waits for it. `why` is for the model, where the call is not allowed.

    `allowed` is an older name of `approve`; one of the two must be given.
    """

    approve: bool | UnsetType = UNSET
    allowed: bool | UnsetType = UNSET
    why: Annotated[str, Meta(max_length=4096)] = ""


class RunList(Struct, frozen=True, kw_only=True):
    """A page of runs, the newest first."""

    object: Literal["list"] = "list"
    data: list[RunSummary]
    first_id: str | None
    last_id: str | None
    has_more: bool


class RunEventObject(Struct, frozen=True, kw_only=True):
    """An event of a run's log. `at` and `answered_at` are in Unix seconds. The fields of its type stand beside these."""

    sequence_number: int
    type: str
    at: float


class RunEventList(Struct, frozen=True, kw_only=True):
    """A page of events. `has_more`: there may be more; go on after the last one's number."""

    object: Literal["list"] = "list"
    data: list[RunEventObject]
    has_more: bool


class RunDeleted(Struct, frozen=True, kw_only=True):
    """A run is gone."""

    id: str
    object: Literal["run.deleted"] = "run.deleted"
    deleted: bool = True


MESSAGE_DECODER = BodyDecoder(RunMessageBody)
APPROVAL_DECODER = BodyDecoder(RunApprovalBody)


def message_content(body: RunMessageBody) -> str:
    """The text of a message, or BadRequest."""
    return clean_text(body.content, "content")


def approval_word(body: RunApprovalBody) -> bool:
    """Whether the call may be made, or BadRequest."""
    if body.approve is not UNSET and body.allowed is not UNSET:
        raise BadRequest("Give 'approve' without 'allowed': they are two names of one thing.", param="allowed")
    word = body.allowed if body.approve is UNSET else body.approve
    if word is UNSET:
        text = "Missing required parameter: 'approve', true or false."
        raise BadRequest(text, param="approve", code="missing_required_parameter")
    return word


def event_object(number: int, event: Event) -> dict[str, Any]:
    """An event as it goes out: its number, type and time, and its own fields under their names."""
    fields = msgspec.structs.asdict(event)
    if isinstance(event, CallEnded):
        fields["answered_at"] = event.said_at / 1000
    return {"sequence_number": number, "type": EVENT_TYPES[type(event)], **fields, "at": event.at / 1000}


def event_list(events: list[tuple[int, Event]], limit: int) -> dict[str, Any]:
    """A page, of which `limit` events were asked."""
    return {
        "object": "list",
        "data": [event_object(number, event) for number, event in events],
        "has_more": len(events) == limit,
    }


def event_size(event: Event) -> int:
    """About how many values an event has."""
    match event:
        case Began():
            texts = sum(len(message.content or "") for message in event.messages)
            return len(event.prompt) + len(event.messages) + 20 * len(event.tools) + texts // CHARS_A_VALUE
        case StepBegan():
            return len(event.added) + len(event.prompt or ())
        case Said():
            return 3 + len(event.ids)
        case CallStarted():
            return 5 + len(event.arguments) // CHARS_A_VALUE
        case Recalled():
            return 10 + 3 * len(event.texts) + sum(map(len, event.texts)) // CHARS_A_VALUE
        case CallEnded():
            return 5 + len(event.text) // CHARS_A_VALUE
    return 5

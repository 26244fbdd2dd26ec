"""What a response's stream says. Frozen values; `number` counts them from 0, `place` is the item's in the output."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from agentflow.events import Usage
from agentflow.responses.items import Item
from agentflow.responses.records import ResponseRecord

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
Moment = Literal["created", "in_progress", "completed", "incomplete", "failed"]
ToolStage = Literal["in_progress", "searching", "completed", "failed"]


class Failure(Struct, frozen=True):
    """Why a response failed: a word of the API's, and a sentence."""

    code: str
    message: str


class ResponseState(Struct, frozen=True, kw_only=True):
    """A response as it stands. `incomplete`: the word for why it is."""

    record: ResponseRecord
    created_ms: int
    status: ResponseStatus
    output: tuple[Item, ...] = ()
    usage: Usage | None = None
    completed_ms: int | None = None
    incomplete: str | None = None
    failure: Failure | None = None


class StateTold(Struct, frozen=True):
    """The whole response, at a moment of its life."""

    number: int
    moment: Moment
    response: ResponseState


class ItemAdded(Struct, frozen=True):
    """An item begins."""

    number: int
    place: int
    item: Item


class ItemDone(Struct, frozen=True):
    """An item is whole."""

    number: int
    place: int
    item: Item


class PartAdded(Struct, frozen=True):
    """A message's only part begins."""

    number: int
    place: int
    item_id: str


class PartDone(Struct, frozen=True):
    """A message's only part is whole."""

    number: int
    place: int
    item_id: str
    text: str


class TextAdded(Struct, frozen=True, gc=False):
    """More of a message's text."""

    number: int
    place: int
    item_id: str
    text: str


class TextDone(Struct, frozen=True):
    """A message's text is whole."""

    number: int
    place: int
    item_id: str
    text: str


class ArgumentsAdded(Struct, frozen=True):
    """More of a call's arguments; `own`: the call is the server's own to make."""

    number: int
    place: int
    item_id: str
    text: str
    own: bool


class ArgumentsDone(Struct, frozen=True):
    """A call's arguments are whole."""

    number: int
    place: int
    item_id: str
    text: str
    own: bool


class ToolTold(Struct, frozen=True):
    """How far a call of the server's own is."""

    number: int
    place: int
    item_id: str
    stage: ToolStage
    search: bool


ResponseEvent = (
    StateTold
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextAdded
    | TextDone
    | ArgumentsAdded
    | ArgumentsDone
    | ToolTold
)

"""Items: what goes into a response and comes out of it, free of any wire format. Frozen values, stored as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

ItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]
Speaking = Literal["system", "developer", "user", "assistant"]


class MessageItem(Struct, frozen=True, kw_only=True, tag="message"):
    """Somebody's turn, in one text or several parts."""

    id: str
    role: Speaking
    texts: tuple[str, ...]
    status: ItemStatus = "completed"


class CallItem(Struct, frozen=True, kw_only=True, tag="call"):
    """A call that the model makes and the caller carries out. `arguments` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class ResultItem(Struct, frozen=True, kw_only=True, tag="result"):
    """What the caller got from a call."""

    id: str
    call_id: str
    output: str


class ToolItem(Struct, frozen=True, kw_only=True, tag="tool"):
    """A call of a tool of an agent's. `output` is what its model read, None: nothing yet; `failed` if that is an error.

    `approval`: the item that asked a person to allow it. `at`: when the output came, in milliseconds since 1970; 0: nobody knows.
    """

    id: str
    name: str
    arguments: str
    output: str | None = None
    status: ItemStatus = "completed"
    approval: str | None = None
    at: int = 0


class ApprovalItem(Struct, frozen=True, kw_only=True, tag="approval"):
    """A call of a tool of an agent's waits for a person's word."""

    id: str
    name: str
    arguments: str


class WordItem(Struct, frozen=True, kw_only=True, tag="word"):
    """A person's word about a call: `request` is the id of the ApprovalItem; `reason` is for the model."""

    id: str
    request: str
    approve: bool
    reason: str | None = None


Item = MessageItem | CallItem | ResultItem | ToolItem | ApprovalItem | WordItem


def kept(items: Iterable[Item]) -> tuple[Item, ...]:
    """Those of a response's items that are worth going on from: no question, no word, and no call that was cut off."""
    return tuple(
        item
        for item in items
        if not isinstance(item, ApprovalItem | WordItem)
        and not (isinstance(item, CallItem) and item.status != "completed")
    )

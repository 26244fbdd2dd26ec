"""Conversations as answers tell them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from agentflow.responses.records import ConversationRecord


class ConversationObject(Struct, frozen=True, kw_only=True):
    """A conversation."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(Struct, frozen=True, kw_only=True):
    """A conversation is gone."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


def conversation_object(record: ConversationRecord) -> ConversationObject:
    """The API's shape of a conversation."""
    return ConversationObject(id=record.id, created_at=record.created_ms // 1000, metadata=record.metadata)

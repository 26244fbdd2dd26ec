"""Bodies of /v1/conversations."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from acu.http.wire.decode import BodyDecoder
from acu.http.wire.response_body import Metadata
from acu.http.wire.response_items import InputItem

MOST_ITEMS = 20


class ConversationBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation to make, with its first items."""

    items: Annotated[list[InputItem], Meta(max_length=MOST_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationUpdateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The new metadata of a conversation; null for none."""

    metadata: Metadata | None


class ConversationItemsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Items to add."""

    items: Annotated[list[InputItem], Meta(min_length=1, max_length=MOST_ITEMS)]


CONVERSATION_DECODER = BodyDecoder(ConversationBody)
CONVERSATION_UPDATE_DECODER = BodyDecoder(ConversationUpdateBody)
CONVERSATION_ITEMS_DECODER = BodyDecoder(ConversationItemsBody)

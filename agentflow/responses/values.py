"""What a caller asks of responses and conversations. Frozen values, free of any wire format."""

from __future__ import annotations

from msgspec import Struct

from agentflow.messages import ChatRequest
from agentflow.responses.items import Item
from agentflow.responses.records import Settings


class NewResponse(Struct, frozen=True, kw_only=True):
    """A response to make. `request` is without messages: they come from `input` and from what went before."""

    request: ChatRequest
    input: tuple[Item, ...]
    settings: Settings

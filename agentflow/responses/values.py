"""What a caller asks of responses and conversations. Frozen values, free of any wire format."""

from __future__ import annotations

from msgspec import Struct

from agentflow.messages import ChatRequest
from agentflow.responses.items import Item
from agentflow.responses.records import Settings


class NewResponse(Struct, frozen=True, kw_only=True):
    """A response to make. `request` is without messages: they come from `input` and from what went before.

    `given`: which of the `settings` were asked for, and are no defaults.
    """

    request: ChatRequest
    input: tuple[Item, ...]
    settings: Settings
    given: frozenset[str] = frozenset()

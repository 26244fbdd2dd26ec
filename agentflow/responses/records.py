"""What is stored of responses and conversations: records in the data plane's state store, as JSON.

    kind               name                          value
    response           <response id>                 ResponseRecord; what was answered is in the log of its run
    conversation       <conversation id>             ConversationRecord
    conversation_item  <conversation id>/<place>     ItemRecord; places sort by when the items came
    conversation_due   <conversation id>/<response>  empty: the response's items belong in, once it is over
    response_part      <run id>/<response>           empty: the response goes on with the run of an earlier one

A reader ignores fields that it does not know, and what is added later has a default.

Order: a response's record, and what is due of it, are durable before its run begins, or goes on with its words. A crash between
them leaves a record of which no log tells, which is as unknown as none: what is due of it comes to nothing, and is removed with
it by whoever next looks at its conversation. The items of a response that is over are written before its due is removed, under
names that follow from its log: they can be written twice.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from agentflow.messages import Tool, ToolChoice
from agentflow.responses.ids import run_of
from agentflow.responses.items import Item


class TextFormat(Struct, frozen=True, kw_only=True):
    """The form that an answer must have; `schema` and what describes it with `json_schema` only."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """What a response was asked with, and tells again."""

    instructions: str | None = None
    metadata: dict[str, str] = {}
    temperature: float = 1.0
    top_p: float = 1.0
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    text: TextFormat = TextFormat()
    verbosity: str | None = None
    truncation: str = "disabled"
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    reasoning: dict[str, Any] | None = None


class ResponseRecord(Struct, frozen=True, kw_only=True):
    """What was asked: `input` are the items that came with the request, and none of what went before.

    `run`: the run that an earlier response began, where this one goes on with it behind the first `after` events of its log.
    `told`: up to which event each conversation is told of the run by the responses before this one, those that were deleted
    since among them. `named`: the words in the log name the response that brought them; those of an earlier release do not.
    """

    id: str
    model: str
    input: tuple[Item, ...]
    settings: Settings = Settings()
    store: bool = True
    run: str = ""
    after: int = 0
    told: dict[str, int] = {}
    named: bool = False

    @property
    def run_id(self) -> str:
        """The run that makes the response, or a part of which does."""
        return self.run or run_of(self.id)


class ConversationRecord(Struct, frozen=True, kw_only=True):
    """A conversation. Times of all records are milliseconds since 1970, UTC."""

    id: str
    created_ms: int
    metadata: dict[str, str] = {}


class ItemRecord(Struct, frozen=True, kw_only=True):
    """An item of a conversation."""

    item: Item

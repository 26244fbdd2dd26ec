"""The tools with which an agent uses its own memory: look something up, note something, forget something.

Which memory it is follows from the run that calls, never from the arguments. A note has an id that follows from its run and its
text, so that noting it again changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from agentflow.errors import AgentFlowError, EngineFailure, Refused
from agentflow.memory.agentmemory import Keeping
from agentflow.memory.memories import Entry, Memories, Wanted, memory_id
from agentflow.memory.recollection import line
from agentflow.tools.errors import InvalidArguments, ToolFailed
from agentflow.tools.tool import CallContext, Tool, ToolOutput, ToolSpec

MOST_NOTE: Final = 4000  # characters
MOST_FOUND: Final = 20
_DAY_MS: Final = 86_400_000
_LEFT_S: Final = 0.5  # of a call's time, so that it can still say what came of it

KeepingOf = Callable[[str, str], Keeping | None]
"""How the memory of a run's agent is kept, by tenant and run id."""


def remembering_tools(memories: Memories, keeping: KeepingOf) -> tuple[Tool, ...]:
    """All of them."""
    return MemorySearch(memories, keeping), MemoryWrite(memories, keeping), MemoryForget(memories, keeping)


class MemorySearch:
    """What the agent remembers about something."""

    spec = ToolSpec(
        name="memory_search",
        description="Looks up what was said and noted in earlier conversations with this user.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for.", "minLength": 1, "maxLength": 1000},
                "count": {
                    "type": "integer",
                    "description": "How many memories at most. Default: 5.",
                    "minimum": 1,
                    "maximum": MOST_FOUND,
                },
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        timeout_s=10.0,
        idempotent=True,
        examples=(
            "what did I tell you about my sister?",
            "do you remember which hotel I liked?",
            "what did we talk about last week?",
            "你还记得我喜欢什么吗",
            "我上次跟你说过什么",
        ),
        aliases=(
            "remember when",
            "do you remember",
            "did I tell you",
            "last time we",
            "你还记得",
            "还记得",
            "上次我说",
        ),
    )

    def __init__(self, memories: Memories, keeping: KeepingOf) -> None:
        self._memories = memories
        self._keeping = keeping

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """A line of JSON for each memory, the best first. Raises ToolFailed, InvalidArguments."""
        kept = _kept(self._keeping, context)
        within_s = max(_LEFT_S, context.deadline_at - time.monotonic() - _LEFT_S)
        wanted = Wanted(_text(arguments, "query"), int(arguments.get("count", 5)), within_s)
        try:
            found = await self._memories.search(context.tenant, kept.name, wanted)
        except AgentFlowError as error:
            raise _failed(error) from error
        lines = list(map(line, found.memories)) or ["Nothing is remembered that fits."]
        return ToolOutput("\n".join([*lines, *([f"Not complete: {found.why}."] if found.why else ())]))


class MemoryWrite:
    """Notes something for later conversations."""

    spec = ToolSpec(
        name="memory_write",
        description="Notes something for later conversations with this user: a fact, a wish, a decision. Whole sentences.",
        parameters={
            "type": "object",
            "properties": {
                "text": {
                    "type": "string",
                    "description": "What to note. It must make sense by itself.",
                    "minLength": 1,
                    "maxLength": MOST_NOTE,
                }
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        timeout_s=30.0,
        idempotent=True,
        examples=(
            "remember that I am allergic to nuts",
            "please note that my train leaves on Friday",
            "keep in mind that I prefer window seats",
            "记住我不吃辣",
            "请记下来我周五出差",
        ),
        aliases=("remember that", "keep in mind", "note that", "don't forget that", "记住", "记下", "别忘了"),
    )

    def __init__(self, memories: Memories, keeping: KeepingOf) -> None:
        self._memories = memories
        self._keeping = keeping

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """`Noted as m_...`. Raises ToolFailed, InvalidArguments."""
        kept, text = _kept(self._keeping, context), _text(arguments, "text")
        if not kept.notes:
            raise ToolFailed("This agent writes no notes: its memory is not kept.")
        now = time.time_ns() // 1_000_000
        note = Entry(
            id=memory_id(context.run_id, "note", text),
            kind="note",
            text=text,
            agent=kept.agent,
            run_id=context.run_id,
            at=now,
            until=None if kept.ttl_days is None else now + int(kept.ttl_days * _DAY_MS),
        )
        try:
            await self._memories.write(context.tenant, kept.name, [note])
        except AgentFlowError as error:
            raise _failed(error) from error
        return ToolOutput(f"Noted as {note.id}.")


class MemoryForget:
    """Removes one memory for good."""

    spec = ToolSpec(
        name="memory_forget",
        description="Removes one memory for good. Its id comes from memory_search, or stands with what is remembered.",
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "Such as m_1f6c0e9a4b7d2c35.", "pattern": "^m_[0-9a-f]{16}$"}
            },
            "required": ["id"],
            "additionalProperties": False,
        },
        timeout_s=10.0,
        idempotent=True,
        examples=(
            "forget what I told you about my address",
            "delete that from your memory",
            "忘掉我的地址",
            "把这个从记忆里删掉",
        ),
        aliases=("forget that", "forget what", "from your memory", "忘掉", "忘记我"),
    )

    def __init__(self, memories: Memories, keeping: KeepingOf) -> None:
        self._memories = memories
        self._keeping = keeping

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """`Forgotten.`, or that there was nothing to forget: a second try finds it gone. Raises ToolFailed, InvalidArguments."""
        kept, memory = _kept(self._keeping, context), _text(arguments, "id")
        try:
            was_there = await self._memories.forget(context.tenant, kept.name, memory)
        except AgentFlowError as error:
            raise _failed(error) from error
        return ToolOutput("Forgotten." if was_there else f"Nothing of the id {memory} is remembered (any more).")


def _kept(keeping: KeepingOf, context: CallContext) -> Keeping:
    kept = keeping(context.tenant, context.run_id)
    if kept is None:
        raise ToolFailed("This agent has no memory.")
    return kept


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments[name]
    if not isinstance(value, str) or not value.strip():
        raise InvalidArguments(f"{name} must be a text with words in it, not a handle.")
    return value.strip()


def _failed(error: AgentFlowError) -> ToolFailed:
    return ToolFailed(f"The memory cannot be used: {error}", again=isinstance(error, Refused | EngineFailure))

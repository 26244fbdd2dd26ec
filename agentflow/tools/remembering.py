"""The tools with which an agent uses its own memory: look something up, note something, read what a name has, forget something.

Which memory it is follows from the run that calls, never from the arguments. A note has an id that follows from its run and its
text, so that noting it again changes nothing; one with a name replaces the one of that name.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

from agentflow.errors import AgentFlowError, EngineFailure, InvalidRequest, Refused
from agentflow.memory.agentmemory import Keeping
from agentflow.memory.diary import Diary, Page
from agentflow.memory.memories import Memories, Wanted
from agentflow.memory.named import MOST_NAME, NamedNote, checked_name, told_names
from agentflow.memory.recollection import line
from agentflow.memory.rows import Entry, memory_id
from agentflow.tools.errors import InvalidArguments, ToolFailed
from agentflow.tools.tool import CallContext, Tool, ToolOutput, ToolSpec

MOST_NOTE: Final = 4000  # characters
MOST_FOUND: Final = 20
_LATER: Final = " A search finds it a little later."
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": MOST_NAME}
_DAY_MS: Final = 86_400_000
_LEFT_S: Final = 0.5  # of a call's time, so that it can still say what came of it

KeepingOf = Callable[[str, str], Keeping | None]
"""How the memory of a run's agent is kept, by tenant and run id."""


def remembering_tools(memories: Memories, diary: Diary, keeping: KeepingOf) -> tuple[Tool, ...]:
    """All of them."""
    return (
        MemorySearch(memories, keeping),
        MemoryRead(memories, keeping),
        MemoryWrite(memories, diary, keeping),
        MemoryForget(memories, diary, keeping),
    )


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


class MemoryRead:
    """What is kept under a name, exactly as it was written. Nothing is embedded, nor searched."""

    spec = ToolSpec(
        name="memory_read",
        description="Reads the note that memory_write keeps under a name, word for word.",
        parameters={
            "type": "object",
            "properties": {"name": _NAME | {"description": "The note's name, as it was written."}},
            "required": ["name"],
            "additionalProperties": False,
        },
        timeout_s=10.0,
        idempotent=True,
        result_bytes=4 * MOST_NOTE,
        examples=(
            "read the note named shopping list",
            "what is in the note called project status?",
            "what do you have under the name deploy key?",
            "读一下名为购物清单的笔记",
            "名叫项目进度的那条记录里写了什么",
        ),
        aliases=("note named", "note called", "under the name", "名为", "名叫"),
    )

    def __init__(self, memories: Memories, keeping: KeepingOf) -> None:
        self._memories = memories
        self._keeping = keeping

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """The text, or which names there are. Raises ToolFailed, InvalidArguments."""
        kept, name = _kept(self._keeping, context), _name(arguments)
        try:
            notes = await self._memories.named()
            note, _ = await notes.get(context.tenant, kept.name, name)
            if note is not None:
                return ToolOutput(note.text)
            names = await notes.names(context.tenant, kept.name)
        except AgentFlowError as error:
            raise _failed(error) from error
        told = await asyncio.to_thread(told_names, names, name)  # a thousand take 10 ms
        return ToolOutput(f"Nothing is kept under the name {_quoted(name)}. {told}")


class MemoryWrite:
    """Notes something for later conversations."""

    spec = ToolSpec(
        name="memory_write",
        description="Notes something for later conversations with this user: a fact, a wish, a decision. Whole sentences. What "
        "may change, or is to be read again exactly, gets a name: it replaces what was noted under that name.",
        parameters={
            "type": "object",
            "properties": {
                "text": {
                    "type": "string",
                    "description": "What to note. It must make sense by itself.",
                    "minLength": 1,
                    "maxLength": MOST_NOTE,
                },
                "name": _NAME
                | {"description": "A short name, such as home_address, to keep it under. Default: it has none."},
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

    def __init__(self, memories: Memories, diary: Diary, keeping: KeepingOf) -> None:
        self._memories = memories
        self._diary = diary
        self._keeping = keeping

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """`Noted as m_...`, or under which name. Raises ToolFailed, InvalidArguments."""
        kept, text = _kept(self._keeping, context), _text(arguments, "text")
        if not kept.notes:
            raise ToolFailed("This agent writes no notes: its memory is not kept.")
        now = time.time_ns() // 1_000_000
        until = None if kept.ttl_days is None else now + int(kept.ttl_days * _DAY_MS)
        if arguments.get("name") is not None:
            exact = NamedNote(text=arguments["text"], agent=kept.agent, run_id=context.run_id, at=now, until=until)
            return await self._keep(context.tenant, kept.name, _name(arguments), exact)
        note = Entry(
            id=memory_id(context.run_id, "note", text),
            kind="note",
            text=text,
            agent=kept.agent,
            run_id=context.run_id,
            at=now,
            until=until,
        )
        return ToolOutput(f"Noted as {note.id}.{await self._write(context, kept.name, note)}")

    async def _write(self, context: CallContext, memory: str, note: Entry) -> str:
        """Write a note; where there is no vector for it now, promise to. What the model is told of that."""
        try:
            try:
                await self._memories.write(context.tenant, memory, [note])
            except (Refused, EngineFailure):
                await self._diary.put(context.tenant, f"{context.run_id}/{note.id}", Page(name=memory, entries=(note,)))
                return _LATER
        except AgentFlowError as error:
            raise _failed(error) from error
        return ""

    async def _keep(self, tenant: str, memory: str, name: str, note: NamedNote) -> ToolOutput:
        try:
            found = await self._diary.keep(tenant, memory, name, note)
        except AgentFlowError as error:
            raise _failed(error) from error
        return ToolOutput(f"Noted under the name {_quoted(name)}.{'' if found else _LATER}")


class MemoryForget:
    """Removes one memory for good."""

    spec = ToolSpec(
        name="memory_forget",
        description="Removes one memory for good, by its name or its id. Both come from memory_search, or stand with what is "
        "remembered.",
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "Such as m_1f6c0e9a4b7d2c35.", "pattern": "^m_[0-9a-f]{16}$"},
                "name": _NAME | {"description": "The name of a note that has one. Then no id is needed."},
            },
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

    def __init__(self, memories: Memories, diary: Diary, keeping: KeepingOf) -> None:
        self._memories = memories
        self._diary = diary
        self._keeping = keeping

    async def call(self, arguments: dict[str, Any], context: CallContext) -> ToolOutput:
        """`Forgotten.`, or that there was nothing to forget: a second try finds it gone. Raises ToolFailed, InvalidArguments."""
        kept, id_, name = _kept(self._keeping, context), arguments.get("id"), arguments.get("name")
        if (id_ is None) == (name is None):
            raise InvalidArguments("memory_forget takes an id or a name, one of the two.")
        try:
            if name is None:
                memory = _text(arguments, "id")
                there, which = await self._memories.forget(context.tenant, kept.name, memory), f"of the id {memory}"
            else:
                name = _name(arguments)
                there, which = await self._diary.drop(context.tenant, kept.name, name), f"of the name {_quoted(name)}"
        except AgentFlowError as error:
            raise _failed(error) from error
        return ToolOutput("Forgotten." if there else f"Nothing {which} is remembered (any more).")


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


def _name(arguments: dict[str, Any]) -> str:
    try:
        return checked_name(_text(arguments, "name"))
    except InvalidRequest as error:
        raise InvalidArguments(str(error)) from error


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _failed(error: AgentFlowError) -> ToolFailed:
    return ToolFailed(f"The memory cannot be used: {error}", again=isinstance(error, Refused | EngineFailure))

"""Form: a tool's arguments as something that a small model can fill in. Pure.

The model gets the tool's fields and the end of the conversation, and nothing else to do; a grammar holds it to the schema. Texts
and lists without a bound get one, since a small model may not find the end of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentflow.messages import Message, Sampling, Structured, Tool
from agentflow.parsing.forced import named_schema

MAX_TOKENS = 512
MAX_TEXT = 400  # characters of one text
MAX_ITEMS = 32
TURNS = 4  # of the conversation that are read: what a follow-up leaves out stands in the turns before it
_HEAD = (
    "You fill in a form from what the user says. Answer with one JSON object that has the form's fields, and with nothing else. "
    "Use the user's own words and numbers. Leave out fields that the user says nothing about, unless they are required."
)


def messages(conversation: Sequence[Message], tool: Tool) -> list[Message]:
    """What the model reads: the form, and the end of the conversation without its instructions."""
    lines = [_HEAD, "", f"Form: {tool.name}", *(f"  {tool.description}".splitlines() if tool.description else ())]
    lines += list(_fields(named_schema(tool)))
    said = [message for message in conversation if message.role in ("user", "assistant") and message.content]
    while said and said[0].role != "user":
        said = said[1:]
    end = said[-TURNS:]
    if end and end[0].role != "user":
        end = end[1:]
    return [Message("system", "\n".join(lines)), *(Message(turn.role, turn.content) for turn in end)]


def sampling(tool: Tool) -> Sampling:
    """The likeliest arguments, in the tool's schema."""
    schema = bounded(named_schema(tool))
    return Sampling(temperature=0.0, max_tokens=MAX_TOKENS, structured=Structured("json", schema, "tools"))


def bounded(schema: Any) -> Any:
    """A copy of a JSON schema in which every text and list has a largest length."""
    if isinstance(schema, list):
        return [bounded(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {
        key: value if key in ("enum", "const", "default", "examples") else bounded(value)
        for key, value in schema.items()
    }
    if copy.get("type") == "string" and not {"maxLength", "enum", "const", "format", "pattern"} & copy.keys():
        copy["maxLength"] = MAX_TEXT
    if copy.get("type") == "array" and "maxItems" not in copy:
        copy["maxItems"] = max(MAX_ITEMS, int(copy.get("minItems", 0)))
    return copy


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    for name, field in properties.items() if isinstance(properties, dict) else ():
        kind, said = "", ""
        if isinstance(field, dict):
            kind = " or ".join(map(str, field["enum"])) if "enum" in field else str(field.get("type", ""))
            said = str(field.get("description", ""))
        need = "required" if name in required else "optional"
        yield f"- {name} ({', '.join(filter(None, (kind, need)))}){': ' if said else ''}{said}"

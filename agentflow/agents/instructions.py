"""Instructions: put in front of a conversation, and taken away from it again. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from agentflow.messages import Message


def instructed(messages: tuple[Message, ...], instructions: str) -> tuple[Message, ...]:
    """The conversation with `instructions` in front of it, in one message with those that it begins with."""
    if not instructions:
        return messages
    if messages[0].role in ("system", "developer"):
        first = replace(messages[0], content=f"{instructions}\n\n{messages[0].content or ''}")
        return (first, *messages[1:])
    return (Message("system", instructions), *messages)


def uninstructed(messages: tuple[Message, ...], instructions: str) -> tuple[Message, ...]:
    """The conversation that `instructed` was given."""
    if not instructions:
        return messages
    first = messages[0].content or ""
    if first == instructions:
        return messages[1:]
    return (replace(messages[0], content=first.removeprefix(f"{instructions}\n\n")), *messages[1:])

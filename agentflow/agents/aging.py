"""Aging: results of tools that hold only for a while, and what a model reads of those that are older. Pure.

A result in a conversation that begins is marked where it stands. In the middle of a run nothing is changed that the model has
read (its tokens are in the KV cache): there a remark stands behind the new turns. Both name the moment and not the age, so that
the text, once it is there, stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from agentflow.messages import Message
from agentflow.tools.tool import ToolSpec

Holds = Mapping[str, float]
"""For how many seconds a tool's results hold, by its name. What is not in it holds for ever."""

_MARK = re.compile(r"\(This result is of \d{4}-\d\d-\d\d \d\d:\d\d UTC, and may not hold any more\.\)\n")


def holds_of(specs: Iterable[ToolSpec]) -> dict[str, float]:
    """Of these tools."""
    return {spec.name: spec.fresh_for_s for spec in specs if spec.fresh_for_s is not None}


def is_old(name: str, at_ms: int, holds: Holds, now_ms: int) -> bool:
    """Whether what tool `name` said at `at_ms` (milliseconds since 1970; 0: nobody knows when) may not hold at `now_ms`."""
    seconds = holds.get(name)
    return seconds is not None and at_ms > 0 and now_ms - at_ms > 1000 * seconds


def mark(text: str, at_ms: int) -> str:
    """The result with its moment in front. Marking it again changes nothing."""
    return text if _MARK.match(text) else f"(This result is of {_moment(at_ms)}, and may not hold any more.)\n{text}"


def marked(messages: Sequence[Message], holds: Holds, now_ms: int) -> tuple[Message, ...]:
    """The conversation with its old results marked."""
    return tuple(
        replace(message, content=mark(message.content or "", message.at))
        if message.role == "tool" and is_old(message.name or "", message.at, holds, now_ms)
        else message
        for message in messages
    )


def remark(old: Iterable[tuple[str, int]]) -> str:
    """Of results that the model has read before: names of the tools, and when they answered."""
    return "\n".join(f"(The result of {name} of {_moment(at)} may not hold any more.)" for name, at in old)


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"

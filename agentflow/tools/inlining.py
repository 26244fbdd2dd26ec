"""Content among a call's arguments as a server elsewhere gets it: in the JSON, since it cannot read our files."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any, Final

from agentflow.tools.errors import InvalidArguments, ToolFailed, UnknownHandle
from agentflow.tools.tool import Content

_DEEPEST: Final = 64


async def inlined(arguments: dict[str, Any], most_bytes: int) -> dict[str, Any]:
    """The arguments with each Content replaced by its text, or by base64 where it is none.

    Raises InvalidArguments where they are more than `most_bytes` together, UnknownHandle where a file is gone.
    """
    contents = list(_contents(arguments))
    if not contents:
        return arguments
    size = sum(content.size for content in contents)
    if size > most_bytes:
        raise InvalidArguments(f"The handles stand for {size:,} bytes; this tool takes at most {most_bytes:,}.")
    replaced: dict[str, Any] = await asyncio.to_thread(_replaced, arguments)
    return replaced


def _contents(value: Any, depth: int = 0) -> Iterator[Content]:
    if isinstance(value, Content):
        yield value
    elif isinstance(value, dict | list) and depth < _DEEPEST:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _contents(each, depth + 1)


def _replaced(value: Any, depth: int = 0) -> Any:
    if isinstance(value, Content):
        return _text(value)
    if depth >= _DEEPEST:
        raise ToolFailed("The arguments nest too deep.")
    if isinstance(value, dict):
        return {key: _replaced(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, depth + 1) for each in value]
    return value


def _text(content: Content) -> str:
    try:
        data = content.read(content.size)
    except OSError as error:
        raise UnknownHandle("What a handle stands for is no longer there. Call its tool again.") from error
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii")

"""A call's arguments as the model wrote them: JSON text that becomes an object, and the handles in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from agentflow.tools.errors import InvalidArguments
from agentflow.tools.handles import HANDLE

MAX_LENGTH: Final = 1 << 16
MAX_DEPTH: Final = 48
"""Objects and lists within each other. A validator recurses several calls deep for each of them."""


def parsed(text: str) -> dict[str, Any]:
    """The object that the text is; no text is {}. A JSON text in which that object is again text is unwrapped.

    Raises InvalidArguments.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidArguments(
            f"The arguments are longer than {MAX_LENGTH:,} characters. Give long content as a handle."
        )
    values = _decoded(text) if text.strip() else {}
    if isinstance(values, str):  # models write arguments as a text now and then
        values = _decoded(values) if values.strip() else {}
    if not isinstance(values, dict):
        raise InvalidArguments("The arguments must be a JSON object, such as {}.")
    return values


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise InvalidArguments(f"The arguments nest more than {MAX_DEPTH} deep.") from error
    except ValueError as error:
        raise InvalidArguments(f"The arguments are no JSON: {error}. Give one JSON object.") from error


def places_of_handles(values: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each object or list and key of it where a text is written like a handle. Raises InvalidArguments where it is too deep."""
    pending: list[tuple[Any, int]] = [(values, 1)]
    while pending:
        around, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise InvalidArguments(f"The arguments nest more than {MAX_DEPTH} deep.")
        for key, value in around.items() if isinstance(around, dict) else enumerate(around):
            if isinstance(value, dict | list):
                pending.append((value, depth + 1))
            elif isinstance(value, str) and HANDLE.fullmatch(value):
                yield around, key

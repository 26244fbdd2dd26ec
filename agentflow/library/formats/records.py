"""JSON and JSONL: a line `path.to.key: value` for each value.

The objects of a list, and the lines of JSONL, are apart by an empty line. A passage then says by itself what its values are
called, which brackets and indentation would not survive. Numbers stay as they are written. The elements of a list share
their list's path; what is empty or null is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentflow.library.errors import FileTooLarge, FileUnreadable
from agentflow.library.transcript import Transcript

MAX_DEPTH = 200


def read_json(text: str, out: Transcript) -> None:
    """Write the values of one document. Raises FileUnreadable for invalid JSON and FileTooLarge for deep nesting."""
    _write(_parse(text, ""), out)


def read_jsonl(text: str, out: Transcript) -> None:
    """Write the values of one document a line; empty lines are skipped. Raises as `read_json`, and names the line."""
    for number, line in enumerate(_lines(text), 1):
        if not line.isspace():
            _write(_parse(line, f" in line {number:,}"), out)


def _lines(text: str) -> Iterator[str]:
    """Lines with their line feeds. (`splitlines` would cut at characters that JSON strings may hold.)"""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        place = f"column {error.colno:,}" if where else f"line {error.lineno:,}, column {error.colno:,}"
        raise FileUnreadable(
            f"it is no valid JSON{where} ({error.msg}: {place}): correct it, or name it .txt to have it read as text"
        ) from error
    except RecursionError as error:
        raise _too_deep() from error


def _too_deep() -> FileTooLarge:
    return FileTooLarge(f"its JSON is nested more than {MAX_DEPTH} levels deep: flatten it, or name it .txt")


class _Open(NamedTuple):
    """A list or object that is being walked: what is left of its members, and the path to them."""

    members: Iterator[tuple[str, Any]]
    path: str
    is_list: bool


def _open(value: dict[str, Any] | list[Any], path: str) -> _Open:
    if isinstance(value, dict):
        return _Open(iter(value.items()), path, is_list=False)
    return _Open((("", element) for element in value), path, is_list=True)


def _write(document: Any, out: Transcript) -> None:
    """Walk the document with a stack of our own, so that its depth is ours to bound."""
    stack = [_open([document], "")]
    while stack:
        top = stack[-1]
        for key, value in top.members:
            path = f"{top.path}.{key}" if top.path and key else top.path or key
            if isinstance(value, dict | list):
                stack.append(_open(value, path))
                break
            _write_value(path, value, out)
        else:
            stack.pop()
            if not top.is_list and stack and stack[-1].is_list:
                out.add("\n")
        if len(stack) > MAX_DEPTH:
            raise _too_deep()


def _write_value(path: str, value: Any, out: Transcript) -> None:
    """`value` is a str (as numbers are here), a bool or None. Nothing is written of what is empty."""
    text = str(value).lower() if isinstance(value, bool) else value
    if text:
        out.add(f"{path}: {text}\n" if path else f"{text}\n")

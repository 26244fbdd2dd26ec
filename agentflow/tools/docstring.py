"""What a docstring in Google's style says for a model: the first paragraph, and the parameters under `Args:`. Pure.

    Tell the weather of a day.

    Args:
        city (str): Where. May go on
            in a line that stands further in.
        day: When.

Whatever else is in it (Returns:, Raises:, examples) is for people.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_ARGS: Final = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?:\s*(?P<text>.*)")


class Docstring(NamedTuple):
    """`summary`: the first paragraph in one line. `parameters`: descriptions by name, a line each."""

    summary: str
    parameters: dict[str, str]


def read_docstring(text: str) -> Docstring:
    """Take apart a docstring that `inspect.getdoc` has cleaned."""
    lines = text.strip().splitlines()
    summary: list[str] = []
    for line in lines:
        if not line.strip() or _ARGS.fullmatch(line):
            break
        summary.append(line.strip())
    start = next((number for number, line in enumerate(lines) if _ARGS.fullmatch(line)), len(lines))
    return Docstring(" ".join(summary), _entries(lines[start + 1 :]))


def _entries(lines: list[str]) -> dict[str, str]:
    entries: dict[str, str] = {}
    margin: int | None = None
    name = ""
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break  # the next section
        margin = indent if margin is None else margin
        entry = _ENTRY.fullmatch(line.strip())
        if indent <= margin and entry is not None:
            name = entry["name"]
            entries[name] = entry["text"].strip()
        elif name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries

"""The tools of the agents' benchmark, which ACU runs in its worker processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from agentflow.tools.function import tool

_TEXT = (
    "the river rises in the hills and runs past the old town where a bridge of stone leads over to the market and the road "
    "to the north goes on through fields of corn and along the edge of a wood"
)


@tool(idempotent=True, timeout_s=120)
def wait(seconds: float) -> str:
    """Ask a service that takes a while."""
    time.sleep(seconds)
    return f"answered after {seconds:g} s"


@tool(idempotent=True, timeout_s=120, concurrency=64)
def rest(seconds: float, place: str) -> str:
    """Ask a service that takes a while. While it is at work, its process's number is a file's name in `place`."""
    mark = Path(place) / str(os.getpid())
    mark.touch()
    time.sleep(seconds)
    mark.unlink()
    return f"rested for {seconds:g} s"


@tool(idempotent=True)
def stamp(number: int) -> str:
    """Say what time it is on the machine's own clock."""
    return f"{time.monotonic():.6f}"


@tool(idempotent=True)
def page(number: int) -> str:
    """Read a page of a book."""
    return passage(300, number)


def passage(words: int, number: int) -> str:
    """So many words, each about a token; other ones for another number."""
    text = _TEXT.split()
    return " ".join(text[(at * (number + 1) + number) % len(text)] for at in range(words))

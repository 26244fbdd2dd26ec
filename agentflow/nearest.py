"""Nearest: which of the names that there are was meant by one that is none of them, for the messages of errors. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_READ: Final = 128
"""Characters that are read of a name, which may be anybody's and of any length."""
_TOLD: Final = 3
"""Characters from which on a name's beginning tells it."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like it, whatever their case; else the shortest that it begins. None where there is neither."""
    import difflib  # only on the way to an error message

    asked, by_key = name[:_READ].lower(), {each.lower(): each for each in known}
    close = difflib.get_close_matches(asked, by_key, n=1, cutoff=0.6)
    begun = sorted((key for key in by_key if len(asked) >= _TOLD and key.startswith(asked)), key=len)
    return next((by_key[key] for key in (*close, *begun)), None)


def did_you_mean(near: str | None) -> str:
    """The question after `nearest`'s name, as a sentence with a space before it. Nothing where there is none."""
    return f" Did you mean {near!r}?" if near is not None else ""

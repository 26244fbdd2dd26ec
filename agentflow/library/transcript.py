"""The text that comes out of a file, bounded while it grows.

Some formats make a long text of a short file (a table repeats its header in every record), so the bound is held at each
piece, not at the end.
"""

from __future__ import annotations

import re
from typing import Final

from agentflow.library.errors import FileTooLarge

_NOT_TEXT: Final = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufeff\ufffe\uffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Transcript:
    """Pieces of text, and together at most `limit_bytes` of UTF-8."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Append `piece`. Raises FileTooLarge when the whole passes the limit."""
        self._bytes += len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        if self._bytes > self._limit:
            raise FileTooLarge(f"its text is longer than {self._limit:,} bytes: split the file into smaller ones")
        self._pieces.append(piece)

    def text(self) -> str:
        """All of it: lines end in a line feed, no control characters but tab and form feed, valid Unicode."""
        text = "".join(self._pieces)
        self._pieces.clear()
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if _NOT_TEXT.search(text):
            text = _NOT_TEXT.sub("", text)
        if not text.isascii() and _SURROGATE.search(text):  # JSON's escapes may hold halves of pairs
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text.strip("\n")

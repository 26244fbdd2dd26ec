"""Blob: content as a Python tool sees it. A file that is there already, and is read only where the tool asks for it."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import BinaryIO

BINARY = "application/octet-stream"


class Blob:
    """Bytes in a file. A parameter of this type takes a handle; a tool that has made a file returns one of it.

    `path`: the file, to be read and not written. `media_type`: what is in it, by its name if nothing is said.
    """

    __slots__ = ("media_type", "path")

    def __init__(self, path: Path | str, media_type: str | None = None) -> None:
        self.path = Path(path)
        self.media_type = media_type or mimetypes.guess_type(self.path.name)[0] or BINARY

    @property
    def size(self) -> int:
        """Bytes in the file. Raises OSError."""
        return self.path.stat().st_size

    def text(self) -> str:
        """All of it, as UTF-8; what is none becomes U+FFFD. Raises OSError."""
        return self.path.read_bytes().decode("utf-8", "replace")

    def bytes(self) -> bytes:
        """All of it. Raises OSError."""
        return self.path.read_bytes()

    def open(self) -> BinaryIO:
        """The file, open for reading; close it. Raises OSError."""
        return self.path.open("rb")

    def __repr__(self) -> str:
        return f"Blob({str(self.path)!r}, {self.media_type!r})"

"""What reading one file may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExtractionLimits:
    """Bounds of one extraction. A file that passes one of them is refused; nothing else is held up by it.

    `memory_bytes` bounds the child's address space, which is more than what it holds: the interpreter and a PDF library
    map some 100 MB, and the file itself is mapped too. `wall_s` counts from the child's start.
    """

    file_bytes: int = 128 << 20
    text_bytes: int = 32 << 20
    """Of the text in UTF-8."""
    pages: int = 2_000
    cpu_s: int = 60
    wall_s: float = 180.0
    memory_bytes: int = 1 << 30

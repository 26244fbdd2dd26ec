"""Damage to files, as a bad disk does it."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, at: int | None = None, *, share: float = 0.5) -> None:
    """Change one byte of a file: at a position, or at a share of its length. Done twice, the file is as before."""
    position = int(path.stat().st_size * share) if at is None else at
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x11]))

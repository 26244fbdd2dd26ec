"""Damage to files, as a bad disk does it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from dataplane.store import DataPlane
from tests.dataplane.planes import TENANT


def flip(path: Path, at: int | None = None, *, share: float = 0.5) -> None:
    """Change one byte of a file: at a position, or at a share of its length. Done twice, the file is as before."""
    position = int(path.stat().st_size * share) if at is None else at
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x11]))


async def spoil_table(plane: DataPlane, tables: int = 2) -> Path:
    """Give the database `tables` more table files with the same keys, and damage the last, of which nothing is in memory.

    Who compacts the family state meets it.
    """
    for _ in range(tables):
        await asyncio.gather(*(plane.state.put(TENANT, "blob", f"{n}", os.urandom(1000)) for n in range(50)))
        await asyncio.to_thread(plane.rocks.flush)
    large = [path for path in (plane.folder / "rocks").glob("*.sst") if path.stat().st_size > 50_000]
    table = max(large, key=lambda path: path.name)
    flip(table)
    return table

"""The tools proper of the headline's request, which both sides call: pure functions, bytes in and bytes out, 12 MB in all.

The table is CSV: ROWS orders in lines of one length, so that numpy cuts it without reading its text. It is the same every time.

    collect     6.0 MB   the table as it lies in a file
    refine      4.0 MB   of that table: the orders of two of the three regions
    summarise   2.0 MB   of that table: number and amount of each order
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

ROWS = 99_999
HEADER = b"order,region,day,article,customer,amount,note,hand,state\n"
WIDTH = 60  # bytes of a line
SIZES = {
    "collect": len(HEADER) + WIDTH * ROWS,
    "refine": len(HEADER) + WIDTH * ROWS * 2 // 3,
    "summarise": 20 * ROWS,
}
"""Bytes that each of them gives."""
_REGIONS = ("north", "south", "coast")
_REGION = 8  # where a line's region begins


def table() -> bytes:
    """The whole table."""
    lines = []
    for row in range(ROWS):
        start = f"{row:07d},{_REGIONS[row % 3]},2026-{row % 12 + 1:02d}-{row % 28 + 1:02d},a{row * 7919 % 10_000:04d}"
        lines.append(f"{start},c{row * 104_729 % 1_000_000:06d},{row * 37 % 10_000_000:011d},ok,,open\n")
    return HEADER + "".join(lines).encode()


def collect(path: Path) -> bytes:
    """The table as it lies in a file. Blocks."""
    return path.read_bytes()


def refine(data: bytes) -> bytes:
    """The orders that are not of the coast."""
    lines = _lines(data)
    kept: bytes = lines[lines[:, _REGION] != ord("c")].tobytes()
    return HEADER + kept


def summarise(data: bytes) -> bytes:
    """The number and the amount of each order, in lines of 20 bytes."""
    lines = _lines(data)
    cut: bytes = np.concatenate((lines[:, :8], lines[:, 39:50], lines[:, -1:]), axis=1).tobytes()
    return cut


def _lines(data: bytes) -> np.ndarray:
    """uint8, shape [rows, WIDTH]."""
    return np.frombuffer(data, np.uint8, offset=len(HEADER)).reshape(-1, WIDTH)

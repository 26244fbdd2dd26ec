"""The sketches of a snapshot: which rows have them, so that a start need not read and sketch their vectors again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane.hot.sketch import sketch_words
from dataplane.hot.table import TableView

PART = 16_384  # rows that are written at a time
Rows = NDArray[np.uint64]
Floats = NDArray[np.float32]


class SavedSketches(Struct, frozen=True):
    """Rows, rising, shape [n], what the file has of them (it is mapped, not read), and the centre of all."""

    rows: Rows
    content: NDArray[Any]
    centre: Floats

    def of(self, rows: Rows) -> tuple[NDArray[np.bool_], tuple[NDArray[np.uint64], Floats, Floats]]:
        """Which of `rows`, shape [n], are here, and the sketches, factors and bases of those."""
        places = np.searchsorted(self.rows, rows)
        known = self.rows.take(places, mode="clip") == rows if len(self.rows) else np.zeros(len(rows), np.bool_)
        found = self.content[places[known]]
        return known, (found["words"], found["factor"], found["base"])


def save(path: Path, view: TableView, slots: NDArray[np.int64]) -> None:
    """Write the sketches of the rows at `slots`, rising, a part after the other. Raises OSError."""
    kind, npy = _kind(view.sketches.shape[1]), cast("Any", np.lib.format)
    with path.open("wb") as file:
        descr = npy.dtype_to_descr(kind)
        npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (len(slots),)})
        for start in range(0, len(slots), PART):
            here = slots[start : start + PART]
            part = np.empty(len(here), kind)
            part["row"], part["words"] = view.rows[here], view.sketches[here]
            part["factor"], part["base"] = view.factors[here], view.bases[here]
            file.write(part.tobytes())


def load(path: Path, centre: Floats) -> SavedSketches:
    """What `save` wrote, with the `centre`, shape [dimensions], that it was made with. Raises OSError, ValueError."""
    content = np.load(path, mmap_mode="r", allow_pickle=False)
    if content.dtype != _kind(sketch_words(len(centre))):
        raise ValueError(f"{path} does not hold sketches of {len(centre)} dimensions")
    return SavedSketches(np.ascontiguousarray(content["row"]), content, centre)


def _kind(words: int) -> np.dtype[Any]:
    return np.dtype([("row", "<u8"), ("words", "<u8", (words,)), ("factor", "<f4"), ("base", "<f4")])

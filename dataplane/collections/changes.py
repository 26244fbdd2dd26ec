"""What a written command changed in a collection, as memory is told of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dataplane.filters import Attribute

Floats = NDArray[np.float32]


class RowBatch(Struct, frozen=True):
    """Rows to insert, each at one position of every field. Vectors: float32, shape [n, dimensions], ready to compare."""

    ids: Sequence[str]
    vectors: Floats
    texts: Sequence[str | None]
    attributes: Sequence[dict[str, Attribute]]
    expires_ms: Sequence[int | None]

    def __len__(self) -> int:
        return len(self.ids)


class Ended(Struct, frozen=True):
    """A row that was deleted or replaced, and its text."""

    row: int
    text: str | None


class Change(Struct, frozen=True):
    """What one command changed: `batch` was inserted from row `first` on, `ended` were ended; its numbers end with `last`."""

    first: int
    last: int
    batch: RowBatch | None
    ended: Sequence[Ended]
    hour: float

    @property
    def texts(self) -> Sequence[str | None]:
        """Of the rows that were inserted."""
        return () if self.batch is None else self.batch.texts

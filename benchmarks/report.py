"""Rounds of figures into medians, spreads and ratios, and these into a table or a line of JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0 to 1) of `values`, nearest rank; 0.0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs, round by round: the median and the smallest and largest of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Pair the rounds; a round in which theirs is 0 is left out."""
        ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b]
        return cls(statistics.median(ratios), min(ratios), max(ratios)) if ratios else cls(0.0, 0.0, 0.0)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table; columns as wide as their widest cell."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(["", title, *lines])


def last_line(figures: Mapping[str, object]) -> str:
    """The figures as one JSON object, for the last line of the output."""
    return json.dumps(figures, default=lambda value: value.__dict__)

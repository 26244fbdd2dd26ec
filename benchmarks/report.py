"""Rounds of figures into medians, spreads and ratios, and these into a table or a line of JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class NotMeasured(Exception):
    """Something kept the benchmark from measuring; the message says what."""


def percentile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0 to 1) of `values`, nearest rank. Raises NotMeasured of nothing."""
    if not values:
        raise NotMeasured("a percentile of no values at all")
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs, round by round: the median and the smallest and largest of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Pair the rounds. Raises NotMeasured where theirs is nothing, or 0."""
        if not theirs or not all(theirs):
            raise NotMeasured("a ratio to nothing")
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and the lowest and the highest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table; columns as wide as their widest cell."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(["", title, *lines])


def last_line(figures: Mapping[str, object]) -> str:
    """The figures as one JSON object, for the last line of the output."""
    return json.dumps(figures)

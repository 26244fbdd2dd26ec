"""Bench: what the parts of the data plane's benchmark share, and where their figures go."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.corpus import Corpus

K = 10  # neighbours that every search asks for


@dataclass(frozen=True)
class Bench:
    """The rows, a folder on the disk, .venv-bench's Python, and how much is asked for. `figures`: by key, one a round."""

    corpus: Corpus
    folder: Path
    peers_python: Path
    rounds: int
    seconds: float  # of the mixed load, a round
    only: frozenset[str]  # keys that are wanted; empty: all
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def wants(self, *keys: str) -> bool:
        """Whether one of the keys is asked for."""
        return not self.only or not self.only.isdisjoint(keys)

    def add(self, **values: float) -> None:
        """One more round's figures."""
        for key, value in values.items():
            self.figures[key].append(float(value))

    def say(self, what: str) -> None:
        """A line of progress."""
        print(f"[{time.monotonic() - self.began:4.0f} s] {what}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A folder on the disk that is removed at the end, so that the parts do not add up."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

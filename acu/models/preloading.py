"""Preloading: the models' weights are read into the page cache while the engines import their libraries.

A thread of its own reads; it costs nothing but disk, and what goes wrong is told and costs only speed. `line` may be
asked from another thread: how far it is, is one reference that is replaced as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from acu.errors import AcuError

if TYPE_CHECKING:
    from acu.models import Preloaded

SILENT_S = 10.0  # without a byte, before it is told

log = logging.getLogger(__name__)


class Reading(Struct, frozen=True):
    """How far one folder is: `done` bytes of `total` `at` a time (time.monotonic()), since `started`."""

    folder: str
    done: int
    total: int
    started: float
    at: float

    def line(self, now: float) -> str:
        """In a few words, with the rate up to the last byte; of a disk that gives none since, for how long."""
        seconds = max(self.at - self.started, 1e-6)
        line = f"reading {self.folder}: {self.done / max(self.total, 1):.0%}"
        if self.done:
            line += f" at {self.done / seconds / 1e6:.0f} MB/s"
        silent = now - self.at
        return line if silent < SILENT_S else f"{line}, and nothing for {silent:.0f} s; look at the disk"


class Preloading:
    """The thread, and how far it is."""

    def __init__(self, folders: list[Path]) -> None:
        self._reading: Reading | None = None
        self._folders = folders
        # A daemon thread: a disk that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="preload", daemon=True)

    @property
    def line(self) -> str:
        """What is read now, how much of it, how fast; empty when nothing is."""
        reading = self._reading
        return "" if reading is None else reading.line(time.monotonic())

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def _work(self) -> None:
        for folder in self._folders:
            try:
                self._read(folder)
            finally:
                self._reading = None

    def _read(self, folder: Path) -> None:
        from acu.models import preload  # after the daemon accepts

        started = time.monotonic()
        self._reading = Reading(folder.name, 0, 0, started, started)

        def progress(_stage: str, done: int, total: int) -> None:
            self._reading = Reading(folder.name, done, total, started, time.monotonic())

        try:
            done = preload(folder, progress)
        except (AcuError, OSError, MemoryError) as error:
            why = str(error) or "there is no memory for it"
            log.warning("the weights were not preloaded", extra={"model": folder.name, "why": why})
        else:
            log.info("weights preloaded", extra={"model": folder.name, **told(done)})


def told(done: Preloaded) -> dict[str, int]:
    """What the log says of a preload: MB, MB/s, and how many MB were in memory before, where that is known."""
    figures = {"mb": done.bytes // 10**6, "mb_s": round(done.mb_s)}
    return figures if done.cached is None else figures | {"cached_mb": done.cached // 10**6}

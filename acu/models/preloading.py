"""Preloading: the models' weights are read into the page cache while the engines import their libraries.

A thread of its own reads; it costs nothing but disk, and what goes wrong is told and costs only speed. `line` may be
asked from another thread: it is one reference that is replaced as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from acu.errors import AcuError

if TYPE_CHECKING:
    from acu.models import Preloaded

log = logging.getLogger(__name__)


class Preloading:
    """The thread, and how far it is."""

    def __init__(self, folders: list[Path]) -> None:
        self.line = ""
        """What is read now, how much of it, how fast; empty when nothing is."""
        self._folders = folders
        # A daemon thread: a disk that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="preload", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def _work(self) -> None:
        for folder in self._folders:
            self._read(folder)
            self.line = ""

    def _read(self, folder: Path) -> None:
        from acu.models import preload  # after the daemon accepts

        started = time.monotonic()

        def progress(_stage: str, done: int, total: int) -> None:
            seconds = max(time.monotonic() - started, 1e-6)
            self.line = f"reading {folder.name}: {done / max(total, 1):.0%} at {done / seconds / 1e6:.0f} MB/s"

        try:
            done = preload(folder, progress)
        except (AcuError, OSError) as error:
            log.warning("the weights were not preloaded", extra={"model": folder.name, "why": str(error)})
        else:
            log.info("weights preloaded", extra={"model": folder.name, **told(done)})


def told(done: Preloaded) -> dict[str, int]:
    """What the log says of a preload: MB, MB/s, and how many MB were in memory before, where that is known."""
    figures = {"mb": done.bytes // 10**6, "mb_s": round(done.mb_s)}
    return figures if done.cached is None else figures | {"cached_mb": done.cached // 10**6}

"""LastResort: the end that comes when the orderly one does not.

A daemon thread that waits for its time and then removes the socket files and ends the process with exit code 1, whatever the
event loop is doing. Everything that the daemon started dies with it (see agentflow/engine/vllm/child.py). The socket files, and
whoever reads what it says, get a few seconds: they may be what does not answer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

CLEAN_S = 3.0


class LastResort:
    """Ends the process `seconds` after the latest `within(seconds)`, unless `disarm` comes first."""

    def __init__(self, cleanup: Callable[[], None], exit_process: Callable[[int], None] = os._exit) -> None:
        self._cleanup = cleanup
        self._exit_process = exit_process
        self._at: float | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def within(self, seconds: float) -> None:
        """End the process in this many seconds from now; replaces what was said before."""
        with self._changed:
            self._at = time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="last-resort", daemon=True)
                self._thread.start()
            self._changed.notify()

    def disarm(self) -> None:
        """The orderly end came."""
        with self._changed:
            self._at = None
            self._thread = None
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while self._at is not None:
                left = self._at - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            else:
                return
        cleaner = threading.Thread(target=self._clean, name="last-resort-clean", daemon=True)
        cleaner.start()
        cleaner.join(CLEAN_S)
        self._exit_process(1)

    def _clean(self) -> None:
        self._cleanup()
        sys.stderr.write("acu: the orderly end took too long; ended by force\n")

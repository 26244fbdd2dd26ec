"""Minded: a process of the daemon that has become a minder (minder.py), from its beginning to its end.

It ends as what it minds does, after all that this started: nothing of it is left once it has ended, of which a descriptor
tells the loop. A signal goes to a process that has not been reaped, and to no other that has its number by now. One that does
not answer for LAST_S is killed itself, which is the one way in which what it minds may leave something.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from agentflow.tools.minder import END

GRACE_S: Final = 0.1
"""What a process said last may take so long to come, after its end: it may lie in a pipe or in a socket still."""
LAST_S: Final = 5.0
"""What a minder has to end all, before it is killed itself."""


class Minded:
    """Made in any thread of a process that has just begun; then either `watch` it on the loop, or `discard` it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int:
        """The minder's."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """How it ended, as subprocess.Popen has it; None: it has not been reaped."""
        return self._process.returncode

    @property
    def ended(self) -> bool:
        """Whether it has ended, and been reaped."""
        return self._ended.is_set()

    def watch(self, on_end: Callable[[], None]) -> None:
        """Reap it as soon as it has ended, and call `on_end` then, once, on this loop. Raises OSError."""
        ending = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(ending, self._reap, ending, on_end)

    async def wait(self) -> None:
        """Wait until it has been reaped. It must be watched."""
        await self._ended.wait()

    def signal(self, number: int) -> None:
        """Does nothing where it has been reaped: its number may be another's."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Have it end at once, with all that it started. On the loop; does not wait. Idempotent."""
        if not self.ended:
            self._tell()
            asyncio.get_running_loop().call_later(LAST_S, self.signal, signal.SIGKILL)

    def discard(self) -> None:
        """End it, where nobody takes it on. Blocks for milliseconds."""
        self._tell()
        self._process.wait()

    def _tell(self) -> None:
        self.signal(END)
        self.signal(signal.SIGCONT)  # what it minds may have stopped it

    def _reap(self, ending: int, on_end: Callable[[], None]) -> None:
        asyncio.get_running_loop().remove_reader(ending)
        os.close(ending)
        self._process.wait()  # it has ended: this does not block
        self._ended.set()
        on_end()

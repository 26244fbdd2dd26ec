"""The processes of one engine: found, told apart from others that got their numbers later, and ended.

Processes are held by pidfd, so that a signal can never reach a stranger with a recycled pid.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path


class Processes:
    """EngineCore (a root: spawned by the daemon itself) and everything below it, as they are found."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._roots: set[int] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process that was found and not forgotten, in the order of finding."""
        return tuple(self._fds)

    def find(self, thread_id: int) -> None:
        """Take up the children that thread `thread_id` of this process spawned, and all below them."""
        for pid in _children(Path(f"/proc/self/task/{thread_id}")):
            self._roots.add(pid)
            self._take(pid)
        below = list(self._fds)
        while below:
            pid = below.pop()
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    for child in _children(task):
                        if child not in self._fds:
                            self._take(child)
                            below.append(child)

    def forget_the_dead(self) -> None:
        """Drop those that have ended: compilers and probes that ran during the start."""
        for pid, fd in list(self._fds.items()):
            if _ended([fd]):
                os.close(self._fds.pop(pid))
                self._roots.discard(pid)

    def root_ended(self) -> bool:
        """Whether an EngineCore has ended."""
        return bool(_ended([self._fds[pid] for pid in self._roots]))

    def gone(self) -> bool:
        """Whether none of them lives."""
        return len(_ended(list(self._fds.values()))) == len(self._fds)

    def kill(self) -> None:
        """SIGKILL to all of them, the first found first."""
        for fd in self._fds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)

    def close(self) -> None:
        """Give back the descriptors. Idempotent."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self._roots.clear()

    def _take(self, pid: int) -> None:
        if pid not in self._fds:
            with contextlib.suppress(ProcessLookupError):
                self._fds[pid] = os.pidfd_open(pid)


def _children(task: Path) -> list[int]:
    try:
        return [int(pid) for pid in (task / "children").read_text(encoding="ascii").split()]
    except OSError:  # the thread is over, or the kernel keeps no such list
        return []


def _ended(fds: list[int]) -> list[int]:
    """Those of the pidfds whose process has ended."""
    if not fds:
        return []
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(0)]

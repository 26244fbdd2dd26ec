"""Minder: the process between the daemon and a program, which leaves nothing of the program when either of them is gone.

    daemon -> minder -> program -> whatever that starts

The kernel gives the minder every process below it whose parent has ended (it is a "subreaper"), also one that left its group
and its session. So what has no parent any more is still found: the minder kills its children until it has none. It does so
when the program has ended, when the daemon asks (END), and when the thread of the daemon that started it is gone, of which
the kernel tells it, after kill -9 too. Then it ends, as the program did. SIGTERM it passes on to the program's group.

The program has a session of its own, so that no signal to its group reaches the minder, and the kernel kills it when the minder
is killed. It is the first to go when memory runs out, gains no privileges and leaves no core dump.

The limit: who kills the minder itself with SIGKILL ends the program, and leaves what that had started. Nothing here does that
to one that answers.

Imports little: a program waits for it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress

END = signal.SIGUSR1
"""The signal at which a minder ends the program, and all that it started."""

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 38, 36
_HEARD = frozenset({END, signal.SIGTERM, signal.SIGCHLD})


def mind(parent: int) -> None:
    """Return in a child of this process, which is the program. This process minds it from now on.

    Ends both at once if `parent`, a process id, is no longer the parent. Call it while there is one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    libc.prctl(_PR_SET_PDEATHSIG, END, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    minder = os.getpid()
    if (program := os.fork()) != 0:
        _mind(program)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != minder:
        os._exit(1)
    os.setsid()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - starts sooner
        file.write("1000")
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _mind(program: int) -> None:
    """Does not return."""
    os.closerange(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # they are the program's, whose end closes them
    status = None
    while status is None and (heard := signal.sigwait(_HEARD)) != END:
        if heard == signal.SIGTERM:
            with suppress(ProcessLookupError):
                os.killpg(program, signal.SIGTERM)
        status = _reaped(program)
    if status is None:
        _kill(program)
        status = os.waitpid(program, 0)[1]
    _end_rest()
    _end_as(os.waitstatus_to_exitcode(status))


def _reaped(program: int) -> int | None:
    """Take leave of children that have ended; the program's status if it is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in (0, program):
            return status if pid else None


def _end_rest() -> None:
    """Kill and reap until there is nothing. What a killed process had started comes to us before we hear of its end."""
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            if not (children := _children()):
                return  # /proc is out of reach
            for child in children:
                _kill(child)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    me, found = os.getpid(), []
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - starts sooner
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                if int(file.read().rpartition(b")")[2].split()[1]) == me:
                    found.append(int(name))
    return found


def _kill(child: int) -> None:
    """With its group, if that is not ours: so no process of it can start another meanwhile."""
    with suppress(ProcessLookupError):
        group = os.getpgid(child)
        if group != os.getpgrp():
            os.killpg(group, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)


def _end_as(code: int) -> None:
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, signal.NSIG))
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)

"""What a worker takes from itself before it imports a stranger's module.

- It dies with the thread that started it (the kernel sends the signal, after kill -9 of the daemon too).
- It is the first that the kernel ends when memory runs out, and gains no privileges.
- Its address space and its open files are bounded, and it leaves no core dump.

Unlike a file's reader (agentflow/library/confinement.py) it may open sockets and start threads and processes: tools do. So
this keeps an accident from harming others, and is no prison: a tool runs as the daemon's user. A process that a tool started
ends when the daemon ends the worker, with its group; it outlives them if it left that group, or if the daemon was killed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from agentflow.library.confinement import limit

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38


def confine(parent: int, memory_bytes: int, open_files: int) -> None:
    """Do all of the above in this process. Ends it at once if `parent`, a process id, is no longer its parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)
    with suppress(OSError):  # /proc may be out of reach
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_AS, memory_bytes)
    limit(resource.RLIMIT_NOFILE, open_files)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

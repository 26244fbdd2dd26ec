"""What the child takes from itself before it opens a stranger's file.

- It dies with the thread that started it (the kernel sends the signal, after kill -9 of the daemon too).
- It is the first that the kernel ends when memory runs out, and gives way to everything else on the processor.
- CPU time, address space, size of what it writes and open files are bounded; it leaves no core dump.
- It gains no privileges, and starts no process or thread and opens no socket: RLIMIT_NPROC for users, and a filter of
  system calls that holds for root too. The filter names what is refused, not what is allowed, so it is a second fence
  behind the parsers, not a prison.

What was set cannot be undone by the process itself (a root process could raise its limits again).
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from agentflow.library.limits import ExtractionLimits

HEADER_BYTES: Final = 1 << 16
"""What the child may write beside the text."""

_OPEN_FILES = 16
_NICE = 10
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 38, 22
_SECCOMP_MODE_FILTER = 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_X32 = 0x40000000  # system calls of another kind on the same machine, above this number
# fork, vfork, clone, clone3, execve, execveat, socket, socketpair, ptrace, io_uring_setup (linux/audit.h, unistd.h)
_REFUSED = MappingProxyType(
    {
        "x86_64": (0xC000003E, (57, 58, 56, 435, 59, 322, 41, 53, 101, 425)),
        "aarch64": (0xC00000B7, (220, 435, 221, 281, 198, 199, 117, 425)),
    }
)


def confine(parent: int, limits: ExtractionLimits) -> None:
    """Do all of the above in this process. Ends it at once if `parent`, a process id, is no longer its parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)
    with suppress(OSError):  # /proc may be out of reach
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    os.nice(_NICE)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, limits.cpu_s, grace=1)  # SIGXCPU first, which the parent can tell from a kill
    limit(resource.RLIMIT_AS, limits.memory_bytes)
    limit(resource.RLIMIT_FSIZE, limits.text_bytes + HEADER_BYTES)
    limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    limit(resource.RLIMIT_NPROC, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _refuse_calls(libc)


def limit(which: int, amount: int, grace: int = 0) -> None:
    """Bound a resource at `amount`, or at what the process may have already if that is less."""
    _, most = resource.getrlimit(which)
    hard = amount + grace if most == resource.RLIM_INFINITY else min(amount + grace, most)
    resource.setrlimit(which, (min(amount, hard), hard))


def _refuse_calls(libc: ctypes.CDLL) -> None:
    """Install the filter. Where the kernel or the machine has none, the other limits hold."""
    if (known := _REFUSED.get(os.uname().machine)) is None or sys.maxsize < 2**32:
        return
    architecture, calls = known
    end = len(calls) + 1  # instructions from the first comparison to the one that allows
    program = [
        struct.pack("HBBI", _LOAD, 0, 0, 4),  # seccomp_data.arch
        struct.pack("HBBI", _JUMP_EQUAL, 0, end + 2, architecture),
        struct.pack("HBBI", _LOAD, 0, 0, 0),  # seccomp_data.nr
        struct.pack("HBBI", _JUMP_AT_LEAST, end, 0, _X32),
        *(struct.pack("HBBI", _JUMP_EQUAL, end - 1 - place, 0, call) for place, call in enumerate(calls)),
        struct.pack("HBBI", _RETURN, 0, 0, _ALLOW),
        struct.pack("HBBI", _RETURN, 0, 0, _REFUSE),
    ]
    code = ctypes.create_string_buffer(b"".join(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(header), 0, 0)

"""`python -I -S mcplaunch.py PARENT PROGRAM ARGUMENT...`: run a program in this process's group, which does not outlive PARENT.

The kernel tells this process when the thread that started it ends, and so after a kill -9 of the daemon too: it then kills its
group, which is the program and what that started. If this process is killed itself, the kernel kills the program. It ends as
the program does, and holds none of its descriptors.

The program is the first to go when memory runs out, gains no privileges and leaves no core dump.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from types import FrameType

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_NO_PROGRAM = 127


def main() -> None:
    """Ends with 127 if there is no such program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)

    def orphaned(_number: int, _frame: FrameType | None) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)  # else it was meant for the program, which has it too

    signal.signal(signal.SIGTERM, orphaned)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - starts sooner
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    me = os.getpid()
    if (child := os.fork()) == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != me:
            os._exit(1)
        _become(command)
    for descriptor in range(3):
        os.close(descriptor)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def _become(command: list[str]) -> None:
    # Python changes these, and a program would inherit that.
    for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the operator's program, and no shell is wanted
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NO_PROGRAM)


if __name__ == "__main__":
    main()

"""`python -I -S mcplaunch.py PARENT PROGRAM ARGUMENT...`: become a program, as a child that does not outlive its parent.

The kernel kills it when the thread that started it ends, and so after a kill -9 of the daemon too: what is set here holds
for the program that takes this one's place. It is the first to go when memory runs out, gains no privileges and leaves no
core dump.
Its own children see the end of their standard input; they are its to end.
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


def main() -> None:
    """Ends at once if PARENT, a process id, is no longer its parent; with 127 if there is no such program."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - it starts sooner
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two, and a program would inherit that
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the operator's program, and no shell is wanted
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    main()

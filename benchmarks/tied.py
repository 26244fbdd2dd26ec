"""`python -P -S tied.py PARENT UNTIL COMMAND...`: become a command that dies with the process that started it (see ending.py)."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, whose process id is PARENT, and become COMMAND, which has no descriptor UNTIL (-1: any)."""
    parent, until, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if until >= 0:
        os.set_inheritable(until, False)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()

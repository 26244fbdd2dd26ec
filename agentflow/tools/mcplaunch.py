"""`python -I -S mcplaunch.py PARENT PROGRAM ARGUMENT...`: run a program that does not outlive PARENT, nor does what it starts.

See minder.py. Ends as the program does, and with 127 if there is no such program.
"""

import os
import signal
import sys

if __name__ == "__main__":
    sys.path.append(os.path.abspath(__file__ + "/../../.."))  # noqa: PTH100 - starts sooner; where `agentflow` is

from agentflow.tools.minder import mind

_NO_PROGRAM = 127


def main() -> None:
    """Does not return."""
    mind(int(sys.argv[1]))
    # Python changes these, and a program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    command = sys.argv[2:]
    try:
        os.execvp(command[0], command)  # noqa: S606 - the operator's program, and no shell is wanted
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NO_PROGRAM)


if __name__ == "__main__":
    main()

"""`python -P tied.py PARENT MODULE ARGS...`: run a module in a process that dies with the one that started it.

Linux sends the signal when the parent dies, kill -9 included, so that no downloader or converter goes on writing into a
folder that the next pull takes over. Started by its path, and with -P, so that nothing in the
working folder is imported by mistake.
"""

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent (whose process id is PARENT), then become MODULE."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        sys.exit(1)
    sys.argv = sys.argv[2:]
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # where `acu` is, installed or not
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""What every process that vLLM starts does first: tie its life to the daemon's, and turn its output to the daemon.

vLLM's processes (EngineCore, and workers where it has any) survive `kill -9` of whoever started them, and hold gigabytes.
Python's own `multiprocessing` gives no hook between fork and exec, so the hook is the first thing that a spawned child does
by itself: it runs the main module of the process that started it as `__mp_main__`. While the daemon spawns (see
spawning.py), this module stands in as that main module. So, some 50 ms after exec and before a single heavy import, a child

1. asks the kernel to kill it when its parent ends (PR_SET_PDEATHSIG), and ends at once if the daemon is gone already;
2. leaves the daemon's process group, so that a ctrl-C at the terminal drains the daemon instead of cutting its streams;
3. takes the priority that the daemon gives it (NICE), so that an engine on the CPU does not hold up the daemon;
4. sends its standard output and error to the daemon's pipe, in a form that the daemon can read back.

A child's own children inherit all of it, since their main module is this one too: when EngineCore dies, its workers die.
(A wrapper executable, by `multiprocessing.set_executable`, would not be inherited; a thread that watches a pipe needs
the interpreter's lock, which imports and compilers hold for seconds. The kernel needs nothing.)

The signal comes when the *thread* ends that spawned the child: the daemon spawns on one that lives as long as the engine.
`tie_to_parent` is also a plugin (`vllm.general_plugins`), for processes that vLLM may come to start in another way; it
does nothing in the daemon itself, and nothing in a program that is not an ACU.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

DAEMON_PID = "ACU_DAEMON_PID"
OUTPUT = "ACU_ENGINE_OUTPUT"
NICE = "ACU_ENGINE_NICE"
"""How much nicer than the daemon an engine's process is to be; a whole number, 0 without it."""
LOG_FORMAT = "\x1e%(levelname)s %(name)s: %(message)s"  # the separator tells a record's first line from the others

_PR_SET_PDEATHSIG = 1


def descends_from(ancestor: int) -> bool:
    """Whether `ancestor` is this process's parent, or its parent's, and so on."""
    pid = os.getppid()
    while pid > 1 and pid != ancestor:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid == ancestor


def tie_to_parent() -> None:
    """Die with the process that started this one, if that is a daemon or one of its children."""
    daemon = os.environ.get(DAEMON_PID)  # noqa: TID251 - set by the daemon for this very reader
    if daemon is None or int(daemon) == os.getpid():
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not descends_from(int(daemon)):  # it died before the call above
        os._exit(1)


def make_nicer() -> None:
    """Take the priority that the daemon gives; a worker has it from EngineCore already."""
    nicer = int(os.environ.pop(NICE, "0"))  # noqa: TID251 - as above
    os.nice(nicer)


def send_output_to_daemon() -> None:
    """Make standard output, standard error and the logs of vLLM lines in the daemon's pipe."""
    pipe = os.environ.get(OUTPUT)  # noqa: TID251 - as above
    if pipe is None:
        return
    try:
        fd = os.open(pipe, os.O_WRONLY)
    except OSError:
        return  # the daemon is gone, or hides its descriptors: the output then goes where the daemon's goes
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=LOG_FORMAT)
    logging.getLogger("vllm").setLevel(logging.INFO)


if __name__ == "__mp_main__":
    tie_to_parent()
    os.setpgid(0, 0)
    make_nicer()
    send_output_to_daemon()

"""How a benchmark ends before its time, and its servers with it.

`to_the_end` runs a main. SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt where the main thread is, also below an event loop,
so that the exit stacks unwind: servers are ended, also those that are stopped (SIGSTOP), and temporary folders are removed.
asyncio's own way is to cancel the main task, which a call that blocks (`Server.wait`) would not notice. Further signals are not
heard meanwhile; they would break off the unwinding. A signal that is ignored, as by nohup, stays so.

What no process can catch, SIGKILL, unwinds nothing: `tied` is for that, and `start_tied` where a process's start is measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BROKEN_OFF: Final = 128  # and the signal's number
_LAUNCHER: Final = Path(__file__).with_name("tied.py")


def to_the_end(main: Callable[[], int | None]) -> int:
    """The exit code of `main`, or 128 and the number of the signal that ended it. For the main thread."""
    caught: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        if not caught:
            caught.append(number)
            raise KeyboardInterrupt

    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        code = main() or 0
    except BaseException as error:
        if not caught:
            raise
        if not isinstance(error, KeyboardInterrupt):
            print(f"while it ended: {type(error).__name__}: {error}", file=sys.stderr)
        code = 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return BROKEN_OFF + caught[0] if caught else code


def tied(command: list[str], until: int = -1) -> list[str]:
    """The command of a process that the kernel kills when this one's thread ends that started it, by SIGKILL too.

    The process is the command's own (tied.py becomes it), and the file descriptor `until`, which it has to inherit, is closed as
    soon as it is. What that starts in turn is not tied.
    """
    return [sys.executable, "-P", "-S", str(_LAUNCHER), str(os.getpid()), str(until), *command]


def start_tied(command: list[str], **options: Any) -> tuple[subprocess.Popen[bytes], float]:
    """Start a tied process, with Popen's options: it, and when it became the command, by `time.perf_counter` in seconds.

    Python's own start in tied.py, some 20 ms, is over by then. A command that is not there ends as it does with `tied`.
    """
    reading, until = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        try:
            process = subprocess.Popen(tied(command, until), pass_fds=(until,), **options)
        finally:
            os.close(until)
        pipe.read()  # to its end, which is when the process has no such descriptor any more
    return process, time.perf_counter()

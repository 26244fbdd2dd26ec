"""How a benchmark ends before its time, and its servers with it.

`to_the_end` runs a main. SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt where the main thread is, also below an event loop,
so that the exit stacks unwind: servers are ended, also those that are stopped (SIGSTOP), and temporary folders are removed.
asyncio's own way is to cancel the main task, which a call that blocks (`Server.wait`) would not notice. Further signals are not
heard meanwhile; they would break off the unwinding. A signal that is ignored, as by nohup, stays so.

What no process can catch, SIGKILL, unwinds nothing: `tied` is for that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

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


def tied(command: list[str]) -> list[str]:
    """The command of a process that the kernel kills when this one's thread ends that started it, by SIGKILL too.

    The process is the command's own (tied.py becomes it). What that starts in turn is not tied.
    """
    return [sys.executable, "-P", "-S", str(_LAUNCHER), str(os.getpid()), *command]

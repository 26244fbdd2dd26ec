"""Signals: those that the daemon handles, held from before its sockets are bound until its loop can handle them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HANDLED_SIGNALS = (*STOP_SIGNALS, signal.SIGHUP)


@contextlib.contextmanager
def signals_held(numbers: Iterable[signal.Signals] = HANDLED_SIGNALS) -> Iterator[None]:
    """Hold signals, by default those that the daemon handles; what came meanwhile is delivered when they are no longer held."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    # After an orderly end they stay held: a late signal must not turn its exit code 0 into a death by signal.

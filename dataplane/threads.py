"""Threads: work that does not outlive whoever waits for it, and on which cores the data plane's own threads run.

`asyncio.to_thread` leaves its thread running when the caller is cancelled. A thread that still reads RocksDB then would hold
its lock beyond the closing of the data plane, and one that writes could write after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def share_cores() -> None:
    """This thread leaves the last core to the keeper.

    Threads that hold the interpreter's lock in turn gain nothing from a core each, and the kernel leaves one that was woken
    to wait behind the keeper's long computations for milliseconds, beside a core that is idle.
    """
    _keep_off(-1)


def compute_apart() -> None:
    """This thread computes for long without the interpreter's lock: it leaves the first core to the others."""
    _keep_off(0)


def _keep_off(place: int) -> None:
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        del cores[place]
        with contextlib.suppress(OSError):  # the cpuset changed this moment
            os.sched_setaffinity(0, cores)


async def in_thread(call: Callable[..., T], *args: Any, stop: threading.Event | None = None) -> T:
    """What `call(*args)` returns, from a thread. A caller that is cancelled waits for its end first.

    So a call is short, or looks at `stop`, which is set then.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:  # again: the thread goes on all the same
                continue
        if not work.cancelled():
            work.exception()  # nobody is left to whom it matters
        raise

"""Work in threads that does not outlive whoever waits for it.

`asyncio.to_thread` leaves its thread running when the caller is cancelled. A thread that still reads RocksDB then would hold
its lock beyond the closing of the data plane, and one that writes could write after it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


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

"""The disk: blocking calls on files run in threads, and no thread outlives whom it works for."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any, TypeVar

from agentflow.library.refusals import DiskFull

T = TypeVar("T")
RETRY_S = 30.0


async def on_disk(call: Callable[..., T], *args: Any) -> T:
    """What `call` returns, from a thread. Raises DiskFull where there is no room, and any other OSError as it is.

    When this is cancelled it first waits for the thread: it has a file in its hands that is about to be closed, and whose
    number may be another file's a moment later.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # nobody is left to whom it matters
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull("The disk has no room for the file.", retry_after_s=RETRY_S) from error

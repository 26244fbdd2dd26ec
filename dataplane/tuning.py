"""What the owner of a process that lives long sets for it, once, before it opens a data plane. It changes the whole process.

the C library's heaps     two for all threads, and large arrays by themselves, so that they go back to the system when
                          they are freed
Arrow's memory            the C library's, too: Arrow's own pool keeps what was freed
numpy's BLAS              one thread: another would look for work in a loop for milliseconds after each product of a few
                          thousand rows, on a core that somebody else needs
the interpreter's lock    asked for after half a millisecond, and not after five: the event loop and the writer's thread
                          hold it for less than that, searches and the keeper for more
"""

from __future__ import annotations

import sys

import pyarrow as pa
import threadpoolctl

from dataplane import allocator

SWITCH_S = 0.0005


def tune_process() -> None:
    """Idempotent. Threads that run already keep their heaps."""
    allocator.tune()
    pa.set_memory_pool(pa.system_memory_pool())
    threadpoolctl.threadpool_limits(limits=1, user_api="blas")
    sys.setswitchinterval(SWITCH_S)

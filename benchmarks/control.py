"""The machine's own part in a latency: the same rate of calls, each of which does a fixed piece of work on the loop.

No thread, no lock, no disk and no memory beyond the core's own cache take part. So what its p99 is above its median comes from
the machine: on a shared host, spells in which the same instructions take several times as long. A program that does as much
work a call can hardly have a better p99, however it is made.
"""

from __future__ import annotations

import json
import time

from benchmarks.lateness import paced

WORK_S = 0.25e-3  # about what a single insert costs the loop and the writer together
STEP = 10  # entries
TRIES = 200


def piece(entries: int) -> str:
    """Work of the interpreter alone."""
    return json.dumps({str(at): [at, 2 * at] for at in range(entries)})


def calibrated() -> int:
    """Entries of a piece that takes WORK_S, half of the times, where nothing waits."""
    took = []
    for _ in range(TRIES):
        began = time.perf_counter()
        piece(STEP)
        took.append(time.perf_counter() - began)
    return max(1, round(STEP * WORK_S / sorted(took)[TRIES // 2]))


async def control_s(rate: float, seconds: float) -> list[float]:
    """Seconds from the due time of each call to its end."""
    entries = calibrated()
    took: list[float] = []

    async def call(_number: int) -> None:
        piece(entries)
        took.append(time.perf_counter())

    began = time.perf_counter()
    await paced(rate, int(rate * seconds), call)
    return [ended - (began + number / rate) for number, ended in enumerate(took)]

"""Clock: what time it is, in the two units in which the data plane keeps it."""

from __future__ import annotations

import time

HOUR_MS = 3_600_000


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def hour(at_ms: int) -> float:
    """Hours since 1970, with parts, of a time in milliseconds since then."""
    return at_ms / HOUR_MS

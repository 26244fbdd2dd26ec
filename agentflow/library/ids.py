"""Ids that sort by when they were made: a prefix, 12 hex digits of milliseconds, 16 of chance."""

from __future__ import annotations

import secrets
import time


class Ids:
    """Makes ids. Those of one maker rise, even if the clock is set back while it lives."""

    def __init__(self) -> None:
        self._last_ms = 0

    def new(self, prefix: str) -> tuple[str, int]:
        """An id, and when it was made, in milliseconds since 1970."""
        now = time.time_ns() // 1_000_000
        self._last_ms = max(now, self._last_ms + 1)
        return f"{prefix}{self._last_ms:012x}{secrets.token_hex(8)}", now

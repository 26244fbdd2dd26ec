"""Pace: the timetable of a scripted stream. Pure: whoever asks says what time it is.

Token k of a stream is due at a fixed point of time, so a late loop causes no drift: whatever is due by then comes merged.
Streams that begin together are put out of phase, so that a thousand of them do not wake the loop all at once.
"""

from __future__ import annotations

from agentflow.engine.script import Rule, Script

_NO_RULE = Rule()
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread as evenly as can be


class Pace:
    """The timetable of a stream. Token 0 is due when it begins, token k a fixed time after that."""

    __slots__ = ("_origin", "_phase", "interval_s", "per_delta", "ttft_s")

    def __init__(self, script: Script, rule: Rule | None, number: int) -> None:
        rule = rule or _NO_RULE
        rate = script.tokens_per_s if rule.tokens_per_s is None else rule.tokens_per_s
        self.ttft_s = script.ttft_s if rule.ttft_s is None else rule.ttft_s
        self.per_delta = rule.tokens_per_delta or script.tokens_per_delta
        self.interval_s = 1.0 / rate if rate else 0.0
        # Token 1 comes up to one interval early: no stream is ever slower than its rate.
        self._phase = number * _GOLDEN % 1.0 * self.interval_s
        self._origin = 0.0

    def begin(self, now: float) -> int:
        """Start the clock. Returns how many tokens are due."""
        self._origin = now - self._phase
        return self.per_delta

    def next(self, now: float, emitted: int) -> tuple[int, float]:
        """How many tokens the next delta should reach, and when it is due (not after `now`: it is late)."""
        upto = emitted + self.per_delta
        if not self.interval_s:
            return upto, now
        due = self._origin + (upto - 1) * self.interval_s
        if due <= now:
            upto = max(upto, int((now - self._origin) / self.interval_s) + 1)
        return upto, due

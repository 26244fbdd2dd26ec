"""Stages: how long each stage of an engine's start took. Pure: the clock's readings are given."""

from __future__ import annotations


class Stages:
    """The account of one start. Times in seconds of any clock that does not go back; a stage that is told twice is one."""

    def __init__(self) -> None:
        self._took: dict[str, float] = {}
        self._stage: str | None = None
        self._since = 0.0

    def reach(self, stage: str | None, now: float) -> None:
        """The start is in `stage` from now on; None: it is over."""
        if stage == self._stage:
            return
        if self._stage is not None:
            self._took[self._stage] = self._took.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def took(self) -> dict[str, float]:
        """Seconds by stage, in the order in which they were reached; the present one is not among them."""
        return {stage: round(seconds, 2) for stage, seconds in self._took.items()}

"""How far a start of vLLM is: its stages, each with its share of the time that a start was measured to take.

vLLM tells no figure for the whole. What can be known is which stage it is in (its logs), how many of the weights' files
it has read (its logs too), and how many of its modules the daemon has imported. So the fraction is the expected time of
the stages before, and the known part of this one, over the expected time of all. Only the proportions matter: a slow
machine is slow in all of them. The fraction never falls, whatever the order in which stages are told, and never passes 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentflow.engine.protocol import StartProgress

IMPORTING = "importing"
INITIALIZING = "initializing"
LOADING = "loading"
LOADED = "loaded"
ALLOCATING = "allocating the KV cache"
WARMING = "warming"

# In their order. Seconds, measured on two cores with a small model, its files in the page cache, uncompiled.
_SECONDS = {IMPORTING: 9.0, INITIALIZING: 7.0, LOADING: 0.2, LOADED: 0.7, ALLOCATING: 1.0, WARMING: 1.5}
_WEIGHTS_PER_S = 0.5e9  # bytes that are read, converted and put into place
_COMPILING_S = 60.0  # part of warming, with the compiler's cache empty
MODULES = 5000  # that vLLM brings with it


def expected_seconds(weights_bytes: int, *, compiled: bool) -> dict[str, float]:
    """How long each stage takes, in their order; good for comparing them, not for foretelling."""
    loading = _SECONDS[LOADING] + weights_bytes / _WEIGHTS_PER_S
    warming = _SECONDS[WARMING] + (_COMPILING_S if compiled else 0.0)
    return _SECONDS | {LOADING: loading, WARMING: warming}


class Startup:
    """The account of one start. `report` gets each change: a new stage, or one hundredth more of the whole."""

    def __init__(self, expected: Mapping[str, float], report: Callable[[StartProgress], None]) -> None:
        whole = sum(expected.values())
        self._share = {stage: seconds / whole for stage, seconds in expected.items()}
        self._report = report
        self._told: StartProgress | None = None

    @property
    def stage(self) -> str | None:
        """The stage that was told last."""
        return self._told.stage if self._told else None

    def reach(self, stage: str, part: float = 0.0) -> None:
        """The start is in `stage`, of which `part` (0.0 to 1.0) is known to be done. An unknown stage adds nothing."""
        done = 0.0
        for known, share in self._share.items():
            if known == stage:
                done += share * min(max(part, 0.0), 1.0)
                break
            done += share
        else:
            done = 0.0
        before = self._told.fraction or 0.0 if self._told else 0.0
        progress = StartProgress(stage, max(before, min(round(done, 2), 1.0)))
        if progress != self._told:
            self._told = progress
            self._report(progress)

"""Run: the one mutable record of a request.

A run is one sequence on one engine. Its status changes only through `advance`, along `TRANSITIONS`; everything else
about it is written by exactly one owner (the scheduler until it is admitted, the stream that drives it after that).
All times are seconds of `time.monotonic()`.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Literal

from agentflow.messages import Caller, Sampling


class RunStatus(enum.Enum):
    """Where a run stands. The last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"  # the caller went away, or a drain ran out of time
    FAILED = "failed"  # the engine failed under it
    REJECTED = "rejected"  # it never reached an engine


TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.ABORTED, RunStatus.REJECTED}),
    RunStatus.RUNNING: frozenset({RunStatus.FINISHED, RunStatus.ABORTED, RunStatus.FAILED}),
    RunStatus.FINISHED: frozenset(),
    RunStatus.ABORTED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.REJECTED: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class Run:
    """What is known of one sequence, from its arrival to its end.

    `max_tokens` is resolved when the run is seated. `reason` says in one word why a run ended as it did
    (`stop`, `queue_full`, `client_gone`, `engine_died`, ...); it is a metric label. `continues`: it is a later step of work that
    was admitted, which is not refused for a full queue, nor for a drain that waits for it.
    """

    id: str
    request_id: str
    model: str
    prompt_token_ids: list[int]
    sampling: Sampling
    max_tokens: int
    caller: Caller
    priority: int
    deadline_at: float
    kind: Literal["generate", "embed"] = "generate"
    continues: bool = False
    arrived_at: float = field(default_factory=time.monotonic)
    status: RunStatus = RunStatus.QUEUED
    reason: str | None = None
    engine_id: str | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: str | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0

    def advance(self, status: RunStatus, reason: str | None = None) -> None:
        """Move to `status`, or raise ValueError when the table does not allow it."""
        if status not in TRANSITIONS[self.status]:
            raise ValueError(f"run {self.id}: {self.status.value} -> {status.value} is not a transition")
        self.status = status
        if reason is not None:
            self.reason = reason
        if status is RunStatus.RUNNING:
            self.admitted_at = time.monotonic()
        else:
            self.finished_at = time.monotonic()

    @property
    def final(self) -> bool:
        """Whether the run has ended, one way or another."""
        return not TRANSITIONS[self.status]

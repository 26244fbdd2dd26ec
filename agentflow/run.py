"""Run: the one mutable record of a request.

A run is one sequence on one engine. Its status changes only through `advance`, along `TRANSITIONS`; everything else
about it is written by exactly one owner (the scheduler until it is admitted, the stream that drives it after that).
All times are seconds of `time.monotonic()`.
"""

from __future__ import annotations

import enum
import time

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


class Run:
    """What is known of one sequence, from its arrival to its end.

    `max_tokens` is resolved (never None). `reason` says in one word why a run did not finish
    (`queue_full`, `deadline`, `draining`, `client_gone`, `engine_died`, ...); it is a metric label.
    """

    __slots__ = (
        "admitted_at",
        "arrived_at",
        "cached_tokens",
        "caller",
        "completion_tokens",
        "deadline_at",
        "engine_id",
        "finish_reason",
        "finished_at",
        "first_token_at",
        "id",
        "kind",
        "last_token_at",
        "max_tokens",
        "model",
        "priority",
        "prompt_token_ids",
        "reason",
        "request_id",
        "sampling",
        "status",
    )

    def __init__(
        self,
        *,
        id: str,
        request_id: str,
        model: str,
        prompt_token_ids: list[int],
        sampling: Sampling,
        max_tokens: int,
        caller: Caller,
        priority: int,
        deadline_at: float,
        kind: str = "generate",
    ) -> None:
        self.id = id
        self.request_id = request_id
        self.kind = kind
        self.model = model
        self.prompt_token_ids = prompt_token_ids
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.caller = caller
        self.priority = priority
        self.arrived_at = time.monotonic()
        self.deadline_at = deadline_at
        self.status = RunStatus.QUEUED
        self.reason: str | None = None
        self.engine_id: str | None = None
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.finished_at: float | None = None
        self.finish_reason: str | None = None
        self.completion_tokens = 0
        self.cached_tokens = 0

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

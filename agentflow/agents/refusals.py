"""What cannot be done with a run.

InvalidRequest
└── RunConflict         what is asked does not fit where the run stands
"""

from __future__ import annotations

from agentflow.errors import InvalidRequest


class RunConflict(InvalidRequest):
    """The run is over, or goes on still, or does not go on here. The message says which, and what to do."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, param="run_id", code=code)

"""Ids of responses: those of their runs, by another name."""

from __future__ import annotations

RESPONSE = "resp_"
RUN = "run_"


def response_of(run_id: str) -> str:
    """The id of the response that a run makes."""
    return RESPONSE + run_id.removeprefix(RUN)


def run_of(response_id: str) -> str:
    """The id of the run that makes a response."""
    return RUN + response_id.removeprefix(RESPONSE)

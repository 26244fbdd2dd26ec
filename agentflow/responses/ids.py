"""Ids of responses, and of what they ask: those of their runs and calls, by another name."""

from __future__ import annotations

import re

RESPONSE = "resp_"
RUN = "run_"
CALL = "call_"
APPROVAL = "mcpr_"

_APPROVAL = re.compile(r"mcpr_([0-9a-f]{24})([0-9a-f]{4,8})")


def response_of(run_id: str) -> str:
    """The id of the response that a run makes."""
    return RESPONSE + run_id.removeprefix(RUN)


def call_of(approval_id: str) -> tuple[str, str] | None:
    """The run and the call that an approval's id names; None for what is no such id."""
    found = _APPROVAL.fullmatch(approval_id)
    return None if found is None else (RUN + found[1], CALL + found[1] + found[2])


def approval_of(call_id: str) -> str:
    """The id of the item that asks for a call's approval."""
    return APPROVAL + call_id.removeprefix(CALL)


def run_of(response_id: str) -> str:
    """The id of the run that makes a response."""
    return RUN + response_id.removeprefix(RESPONSE)

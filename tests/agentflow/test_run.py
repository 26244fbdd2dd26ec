"""The record of a request, and the one table along which its status changes."""

from __future__ import annotations

import time

import pytest

from agentflow.messages import Caller, Sampling
from agentflow.run import TRANSITIONS, Run, RunStatus


def make_run() -> Run:
    return Run(
        id="r",
        request_id="r",
        model="m",
        prompt_token_ids=[1],
        sampling=Sampling(),
        max_tokens=1,
        caller=Caller(),
        priority=0,
        deadline_at=time.monotonic() + 1,
    )


def test_only_the_transitions_of_the_table_are_allowed() -> None:
    for start in RunStatus:
        for end in RunStatus:
            run = make_run()
            run.status = start
            if end in TRANSITIONS[start]:
                run.advance(end)
                assert run.status is end
            else:
                with pytest.raises(ValueError, match="is not a transition"):
                    run.advance(end)
                assert run.status is start


def test_admission_and_end_are_timed_and_the_reason_is_kept() -> None:
    run = make_run()
    run.advance(RunStatus.RUNNING)
    assert run.admitted_at is not None
    assert (run.finished_at, run.final) == (None, False)
    run.advance(RunStatus.ABORTED, "client_gone")
    assert run.finished_at is not None
    assert run.finished_at >= run.admitted_at
    assert (run.reason, run.final) == ("client_gone", True)

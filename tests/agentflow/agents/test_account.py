"""A run's account says what its log says, at any moment of the run."""

from __future__ import annotations

import msgspec
import pytest

from agentflow.agents.account import MOST_ARGUMENTS, MOST_TEXT, RunAccount, account, summary
from agentflow.agents.progress import Progress
from agentflow.agents.record import (
    Added,
    ApprovalAsked,
    ApprovalGiven,
    Began,
    CallEnded,
    CallStarted,
    Ended,
    Event,
    Paused,
    Recalled,
    Resumed,
    Routed,
    Said,
    StepBegan,
    StepEnded,
    Unpaused,
)
from agentflow.events import Usage
from agentflow.library.refusals import DataDamaged
from agentflow.messages import Message, Tool

ID = "call_abc0000"
CALL = '<tool_call>{"name": "look", "arguments": {"what": "box"}}</tool_call>'
BEGAN = Began(
    at=1000, agent="desk", model="m", messages=(Message("user", "Look."),), tools=(Tool("look"),), tool_format="hermes"
)
STARTED = CallStarted(at=3000, call_id=ID, name="look", arguments='{"what": "box"}', idempotent=True)
STEPPED = StepEnded(
    at=4000,
    reason="stop",
    prompt_tokens=9,
    cached_tokens=4,
    completion_tokens=3,
    queue_s=0.25,
    ttft_s=0.5,
    decode_s=1.5,
)
WHOLE: tuple[Event, ...] = (
    BEGAN,
    StepBegan(at=2000, step=0, model="m"),
    Said(at=2500, ids=[1, 2], text="I look. "),
    Said(at=2900, ids=[3], text=CALL),
    STARTED,
    STEPPED,
    CallEnded(at=5000, call_id=ID, text="a hat", handle="h_1", seconds=1.9),
    StepBegan(at=5100, step=1, model="m", added=[7]),
    Said(at=5200, ids=[4], text="A hat."),
    StepEnded(at=6000, reason="stop", prompt_tokens=13, cached_tokens=12, completion_tokens=1),
    Ended(at=6001, end="completed", why="stop"),
)


def told(*events: Event, now: float = 99.0, going: bool = False) -> RunAccount:
    found = account("run_abc", enumerate(events, 1), now, going=going)
    assert found is not None
    return found


def test_a_run_that_is_over_is_told_with_its_steps_calls_times_and_figures() -> None:
    run = told(*WHOLE)
    assert (run.id, run.agent, run.model, run.status, run.why, run.error) == (
        "run_abc", "desk", "m", "completed", "stop", None
    )  # fmt: skip
    assert (run.created_at, run.ended_at, run.as_of, run.last) == (1.0, 6.001, 6.001, 11)
    assert run.usage == Usage(prompt_tokens=22, completion_tokens=4, cached_tokens=16)
    first, second = run.steps
    assert (first.number, first.began_at, first.ended_at, first.text) == (0, 2.0, 4.0, "I look. ")
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (9, 4, 3)
    assert (first.queue_s, first.ttft_s, first.decode_s, first.finish_reason) == (0.25, 0.5, 1.5, "stop")
    (call,) = first.calls
    assert (call.id, call.name, call.arguments, call.attempts) == (ID, "look", '{"what": "box"}', 1)
    assert (call.started_at, call.ended_at, call.seconds) == (3.0, 5.0, 1.9)
    assert (call.is_error, call.result, call.handle) == (False, "a hat", "h_1")
    assert (second.number, second.text, second.calls) == (1, "A hat.", ())


def test_a_run_in_mid_flight_is_told_so_far() -> None:
    run = told(*WHOLE[:5], going=True)
    assert (run.status, run.ended_at, run.as_of, run.last) == ("running", None, 99.0, 5)
    (step,) = run.steps
    assert (step.ended_at, step.queue_s, step.finish_reason) == (None, None, None)
    assert step.completion_tokens == 3
    (call,) = step.calls
    assert (call.started_at, call.ended_at, call.result, call.seconds) == (3.0, None, None, None)
    assert run.usage.completion_tokens == 3


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_a_stored_run_without_an_end_is_open_wherever_its_log_is_cut(cut: int) -> None:
    run = told(*WHOLE[:cut])
    assert (run.status, run.why, run.last) == ("open", None, cut)
    assert run.as_of == WHOLE[cut - 1].at / 1000


def test_a_log_without_events_has_no_account() -> None:
    assert account("run_abc", [], 0.0) is None


def test_a_call_that_is_not_understood_has_a_result_and_was_never_started() -> None:
    run = told(*WHOLE[:2], Said(at=2600, ids=[3], text="<tool_call>look in the box</tool_call>"))
    (call,) = run.steps[0].calls
    assert (call.name, call.started_at, call.ended_at, call.is_error, call.attempts) == ("unknown", None, 2.6, True, 0)
    assert (call.result or "").startswith("This call could not be understood")


def test_a_call_that_was_refused_before_it_was_made_has_no_start() -> None:
    run = told(*WHOLE[:4], CallEnded(at=3100, call_id=ID, text="no such tool", is_error=True))
    (call,) = run.steps[0].calls
    assert (call.started_at, call.ended_at, call.seconds, call.result) == (None, 3.1, None, "no such tool")


def test_a_call_that_is_made_again_keeps_its_first_start() -> None:
    again = CallStarted(at=9000, call_id=ID, name="look", arguments="{}", idempotent=True, attempt=2)
    (call,) = told(*WHOLE[:6], again).steps[0].calls
    assert (call.started_at, call.attempts) == (3.0, 2)


def test_lost_engines_are_counted_and_what_they_left_half_said_is_not() -> None:
    (step,) = told(*WHOLE[:3], Said(at=2600, ids=[8, 9], text=""), Resumed(at=2700, kept=2)).steps
    assert (step.resumptions, step.completion_tokens, step.text) == (1, 2, "I look. ")


def test_whether_a_person_allowed_a_call_is_told() -> None:
    asked = (*WHOLE[:4], ApprovalAsked(at=3000, call_id=ID))
    assert told(*WHOLE[:4]).steps[0].calls[0].approval is None
    assert told(*asked).steps[0].calls[0].approval == "asked"
    assert told(*asked, ApprovalGiven(call_id=ID, allowed=True)).steps[0].calls[0].approval == "allowed"
    assert told(*asked, ApprovalGiven(call_id=ID, allowed=False)).steps[0].calls[0].approval == "refused"


def test_what_the_router_decided_of_a_step_is_told() -> None:
    routed = Routed(route="extract", tool="look", score=0.9, reasons=("says look",))
    (step,) = told(BEGAN, StepBegan(at=2000, step=0, model="small", forced="look", routed=routed)).steps
    assert (step.model, step.forced, step.routed) == ("small", "look", routed)


def test_pauses_and_messages_are_told_with_their_times() -> None:
    message = Added(at=3300, message=Message("user", "Hurry."))
    run = told(*WHOLE[:3], Paused(at=3000), message, going=True)
    assert run.status == "paused"
    assert [(pause.began_at, pause.ended_at) for pause in run.pauses] == [(3.0, None)]
    (added,) = run.messages
    assert (added.at, added.step, added.role, added.content) == (3.3, 0, "user", "Hurry.")
    run = told(
        *WHOLE[:3], Paused(at=3000), Unpaused(at=3500), Paused(at=3600), Ended(at=4000, end="cancelled", why="c")
    )
    assert [(pause.began_at, pause.ended_at) for pause in run.pauses] == [(3.0, 3.5), (3.6, 4.0)]


def test_a_run_that_goes_on_for_one_step_is_paused_when_that_is_over() -> None:
    run = told(*WHOLE[:3], Paused(at=2600), Unpaused(at=2700, one_step=True), *WHOLE[3:8], going=True)
    assert run.status == "paused"
    assert [(pause.began_at, pause.ended_at) for pause in run.pauses] == [(2.6, 2.7), (4.0, None)]


def test_texts_are_bounded() -> None:
    long = "x" * 10_000
    said = [Said(ids=[1], text="y" * 3000) for _ in range(4)]
    call = f'<tool_call>{{"name": "look", "arguments": {{"what": "{long}"}}}}</tool_call>'
    events = (
        *WHOLE[:2],
        *said,
        Said(ids=[3], text=call),
        CallEnded(call_id=ID, text=long),
        Added(message=Message("user", long)),
    )
    run = told(*events)
    (step,) = run.steps
    assert step.text == "y" * MOST_TEXT + "…"
    assert len(step.calls[0].arguments) == MOST_ARGUMENTS + 1
    assert step.calls[0].result == "x" * MOST_TEXT + "…"
    assert len(run.messages[0].content) == MOST_TEXT + 1


RESUMED = Resumed(at=1500, kept=0)
RECALLED = Recalled(at=1500)


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ((*WHOLE[:2], STARTED), f"tells of a call {ID} that its model did not make"),
        (WHOLE[1:], "'step' as its beginning"),
        ((BEGAN, *WHOLE), "'began' a second time"),
        ((BEGAN, RESUMED, *WHOLE[1:]), "'resumed' outside of a step"),
        ((BEGAN, STEPPED, *WHOLE[1:]), "'stepped' outside of a step"),
        ((BEGAN, *WHOLE[2:]), "'said' outside of a step"),
        ((*WHOLE[:6], RESUMED), "'resumed' outside of a step"),
        ((*WHOLE[:6], STEPPED), "'stepped' outside of a step"),
        ((*WHOLE[:6], WHOLE[2]), "'said' outside of a step"),
        ((BEGAN, *WHOLE[7:]), "'step' 1 behind step -1"),
        ((*WHOLE[:2], *WHOLE[1:]), "'step' 0 behind step 0"),
        ((*WHOLE[:7], *WHOLE[1:]), "'step' 0 behind step 0"),
        ((*WHOLE[:5], *WHOLE[7:]), "'step' 1 behind step 0"),  # which has not ended
        ((*WHOLE[:3], Resumed(at=2600, kept=3)), "'resumed' that keeps 3 of 2 tokens"),
        ((*WHOLE[:3], Resumed(at=2600, kept=-1)), "'resumed' that keeps -1 of 2 tokens"),
        ((*WHOLE[:2], RECALLED), "'recalled' behind its first step"),
        ((*WHOLE, Paused(at=7000)), "'paused' behind its end"),
        ((*WHOLE, WHOLE[-1]), "'ended' behind its end"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(events: tuple[Event, ...], what: str) -> None:
    with pytest.raises(DataDamaged, match=f"the log of run_abc .*{what}"):
        told(*events)


def test_the_summary_of_a_run_counts_what_it_has_done_so_far() -> None:
    progress = Progress("run_abc")
    for event in WHOLE[:5]:
        progress.apply(event)
    run = summary(progress)
    assert (run.id, run.agent, run.status, run.steps, run.calls) == ("run_abc", "desk", "running", 1, 1)
    assert (run.created_at, run.ended_at, run.usage.completion_tokens) == (1.0, None, 3)
    for event in WHOLE[5:]:
        progress.apply(event)
    run = summary(progress)
    assert (run.status, run.why, run.ended_at, run.steps) == ("completed", "stop", 6.001, 2)


def test_what_the_model_was_reminded_of_is_told_in_seconds() -> None:
    recalled = Recalled(
        at=1500,
        texts=("Ann likes tea.",),
        ids=("m1",),
        names=("drinks",),
        written=(1_700_000_000_500,),
        tiers=("hot",),
        seconds=0.25,
    )
    found = account("run_abc", enumerate([BEGAN, recalled], 1), 2.0)
    assert found is not None
    assert msgspec.to_builtins(found.recalled) == {
        "texts": ("Ann likes tea.",),
        "ids": ("m1",),
        "written": (1_700_000_000.5,),
        "tiers": ("hot",),
        "complete": True,
        "seconds": 0.25,
        "why": "",
        "names": ("drinks",),
    }

"""A person's words fit the calls that wait for them, and nobody goes on past calls without results."""

from __future__ import annotations

import pytest

from agentflow.agents.progress import Progress
from agentflow.agents.record import (
    ApprovalAsked,
    ApprovalGiven,
    Began,
    CallEnded,
    CallStarted,
    Ended,
    Event,
    Said,
    StepBegan,
    StepEnded,
)
from agentflow.errors import InvalidRequest
from agentflow.messages import Tool
from agentflow.responses.items import WordItem
from agentflow.responses.words import Words, check_heard

HEX = "a" * 24
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
FIRST, SECOND = f"call_{HEX}0000", f"call_{HEX}0001"


def progress(*events: Event) -> Progress:
    """Two calls wait for a person, and then `events` happen."""
    made = Progress(f"run_{HEX}")
    asked = [ApprovalAsked(call_id=call_id) for call_id in (FIRST, SECOND)]
    over = StepEnded(reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=1)
    began = Began(agent="a", model="m", messages=(), tools=(Tool("look"),), tool_format="hermes", asking=("look",))
    for event in (began, StepBegan(step=0, model="m"), Said(ids=[1], text=CALL * 2), over, *asked, *events):
        made.apply(event)
    return made


def words(*call_ids: str) -> Words:
    given = {call_id: WordItem(id="w", request=call_id.replace("call_", "mcpr_"), approve=True) for call_id in call_ids}
    return Words(f"run_{HEX}", given, ())


ALLOWED = ApprovalGiven(call_id=FIRST, allowed=True)
STARTED = CallStarted(call_id=FIRST, name="look", arguments="{}", idempotent=False)
ENDED = CallEnded(call_id=FIRST, text="a hat")
OVER = Ended(end="cancelled", why="cancelled")


def test_words_fit_calls_that_wait() -> None:
    assert words(FIRST).fit(progress())
    assert words(FIRST, SECOND).fit(progress())
    assert words(SECOND).fit(progress(ALLOWED, STARTED, ENDED))
    with pytest.raises(InvalidRequest) as caught:
        words(f"call_{HEX}0002").fit(progress())
    assert caught.value.code == "approval_request_not_found"


def test_words_about_calls_that_do_not_wait_any_more_do_not_fit() -> None:
    assert not words(FIRST).fit(progress(ALLOWED, STARTED))
    assert not words(FIRST, SECOND).fit(progress(ALLOWED, STARTED, ENDED))
    assert not words(FIRST).fit(progress(OVER))


def test_while_a_call_is_under_way_a_word_about_another_has_to_wait() -> None:
    with pytest.raises(InvalidRequest) as caught:
        words(SECOND).fit(progress(ALLOWED, STARTED))
    assert caught.value.code == "previous_response_in_progress"


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ((), "approval_required"),
        ((ALLOWED,), "previous_response_in_progress"),
        ((ALLOWED, STARTED), "previous_response_in_progress"),
        ((ALLOWED, STARTED, ENDED), "approval_required"),
        ((ALLOWED, STARTED, ENDED, OVER), None),
        ((ALLOWED, STARTED, ENDED, CallEnded(call_id=SECOND, text="no", is_error=True)), None),
    ],
)
def test_a_response_is_gone_on_from_once_its_calls_have_their_results(
    events: tuple[Event, ...], code: str | None
) -> None:
    if code is None:
        check_heard(f"resp_{HEX}", progress(*events))
        return
    with pytest.raises(InvalidRequest) as caught:
        check_heard(f"resp_{HEX}", progress(*events))
    assert caught.value.code == code

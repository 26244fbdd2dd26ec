"""What ended, as spans: names, ids, parents, sampling and attributes."""

from __future__ import annotations

import time

import pytest
from msgspec import structs

from acu.telemetry.spans import CONTENT_CHARS, NAME_CHARS, SpanData, SpanForm
from agentflow.agents.record import Began, Routed, RunEnd, StepEnded
from agentflow.agents.watch import CallOver, Outcome, RunLeft, RunOver, RunSeen, StepOver
from agentflow.messages import Caller, Message, Sampling
from agentflow.run import Run, RunStatus

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT, NOT_SENT = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


def began(agent: str = "a", trace: str = "") -> Began:
    return Began(agent=agent, model="m", messages=(Message("user", "x" * (CONTENT_CHARS + 1)),), trace=trace)


def over(run: Began, run_id: str = "run_1", end: RunEnd = "completed") -> RunOver:
    return RunOver(
        run_id=run_id,
        run=run,
        began_ms=1000,
        ended_ms=3000,
        end=end,
        why="stop",
        error="Why.",
        steps=1,
        calls=0,
    )


def step(run: Began, run_id: str = "run_1", measured: StepEnded | None = None) -> StepOver:
    routed = Routed(route="extract", reasons=("a tool fits",))
    return StepOver(
        run_id=run_id, run=run, began_ms=1000, ended_ms=2000, number=0, model="m", measured=measured, routed=routed
    )


def call(outcome: Outcome, name: str = "add") -> CallOver:
    return CallOver(
        run_id="run_1", run=began(), began_ms=1000, ended_ms=2000, call_id="c", name=name, known=True, outcome=outcome
    )


def request(status: RunStatus = RunStatus.FINISHED, *, trace: str = "", request_id: str = "chatcmpl-1") -> Run:
    run = Run(
        id=request_id,
        request_id=request_id,
        model="m",
        prompt_token_ids=[1] * 7,
        sampling=Sampling(),
        max_tokens=11,
        caller=Caller(trace=trace),
        priority=0,
        deadline_at=0.0,
    )
    if status is not RunStatus.REJECTED:
        run.advance(RunStatus.RUNNING)
    run.advance(status, None if status is RunStatus.FINISHED else "queue_full")
    run.arrived_at = time.monotonic() - 2
    run.admitted_at, run.first_token_at, run.finished_at = run.arrived_at + 0.5, run.arrived_at + 1, run.arrived_at + 2
    run.completion_tokens, run.cached_tokens, run.finish_reason = 11, 3, "stop"
    return run


def span(found: SpanData | None) -> SpanData:
    assert found is not None
    return found


def test_a_run_and_its_parts_stand_in_one_trace_whoever_tells_of_them() -> None:
    run, part = span(SpanForm().of_part(over(began()))), span(SpanForm().of_part(step(began())))
    assert run.place.parent_id == 0
    assert (part.place.trace_id, part.place.parent_id) == (run.place.trace_id, run.place.span_id)
    assert part.place.span_id not in (run.place.span_id, 0)
    assert (run.began_ns, run.ended_ns) == (1_000_000_000, 3_000_000_000)
    assert span(SpanForm().of_part(over(began()))) == run  # by another daemon
    assert span(SpanForm().of_part(over(began(), "run_2"))).place.trace_id != run.place.trace_id


def test_a_trace_of_the_caller_s_is_joined_and_says_whether_it_is_sent() -> None:
    form = SpanForm(share=0.0)
    run = span(form.of_part(over(began(trace=SENT))))
    assert (run.place.trace_id, run.place.parent_id, run.place.remote) == (int(TRACE, 16), int(PARENT, 16), True)
    assert form.of_part(over(began())) is None
    assert SpanForm(share=1.0).of_part(over(began(trace=NOT_SENT))) is None
    assert SpanForm(share=1.0).of_part(step(began(trace=NOT_SENT))) is None


def test_about_the_share_of_traces_is_sent_and_each_of_them_whole() -> None:
    form = SpanForm(share=0.25)
    ids = [f"run_{number}" for number in range(1000)]
    sent = {run_id for run_id in ids if form.of_part(over(began(), run_id)) is not None}
    assert 150 < len(sent) < 350  # the ids are always the same
    assert {run_id for run_id in ids if form.of_part(step(began(), run_id)) is not None} == sent


def test_a_step_of_a_plain_model_has_no_agent_above_it() -> None:
    plain = began(agent="")
    assert SpanForm().of_part(over(plain)) is None
    assert span(SpanForm().of_part(step(plain))).place.parent_id == 0
    joined = span(SpanForm().of_part(step(began(agent="", trace=SENT))))
    assert (joined.place.parent_id, joined.place.remote) == (int(PARENT, 16), True)


def test_what_is_not_over_has_no_span() -> None:
    fields = {"run_id": "run_1", "run": began(), "began_ms": 1, "ended_ms": 1}
    assert SpanForm().of_part(RunSeen(**fields)) is None  # type: ignore[arg-type]
    assert SpanForm().of_part(RunLeft(**fields)) is None  # type: ignore[arg-type]


def test_a_step_tells_its_measures_and_its_route() -> None:
    measured = StepEnded(
        reason="length", prompt_tokens=7, cached_tokens=3, completion_tokens=2, ttft_s=0.5, queue_s=0.25
    )
    found = span(SpanForm().of_part(step(began(), measured=measured)))
    assert (found.name, found.failed) == ("chat m", False)
    assert found.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "acu",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "acu.run.id": "run_1",
        "acu.step": 0,
        "acu.queue_seconds": 0.25,
        "acu.route": "extract",
        "acu.route.reasons": ["a tool fits"],
    }


def test_a_step_that_was_cut_failed() -> None:
    found = span(SpanForm().of_part(step(began())))
    assert (found.failed, found.attributes["error.type"]) == (True, "cut")


@pytest.mark.parametrize(
    ("outcome", "error"),
    [("ok", None), ("error", "tool_error"), ("refused", "call_refused"), ("malformed", "call_malformed")],
)
def test_a_call_says_what_went_wrong(outcome: Outcome, error: str | None) -> None:
    found = span(SpanForm().of_part(call(outcome)))
    assert (found.name, found.failed, found.attributes.get("error.type")) == (
        "execute_tool add",
        error is not None,
        error,
    )


def test_a_name_that_a_model_made_up_is_cut_and_has_only_characters() -> None:
    found = span(SpanForm().of_part(call("refused", "\ud800" + "x" * 1000)))
    assert found.attributes["gen_ai.tool.name"] == "?" + "x" * (NAME_CHARS - 1)


def test_a_failed_run_says_why_and_in_words_only_if_texts_are_wanted() -> None:
    quiet, open_ = (span(SpanForm(content=content).of_part(over(began(), end="failed"))) for content in (False, True))
    assert (quiet.failed, quiet.error, quiet.attributes["error.type"]) == (True, "", "stop")
    assert "gen_ai.input.messages" not in quiet.attributes
    assert open_.error == "Why."
    asked = open_.attributes["gen_ai.input.messages"]
    assert asked == '[{"role":"user","parts":[{"type":"text","content":"' + "x" * CONTENT_CHARS + '"}]}]'


def test_a_plain_request_is_a_trace_of_its_own() -> None:
    found = span(SpanForm().of_request(request()))
    assert (found.name, found.failed, found.place.parent_id) == ("chat m", False, 0)
    assert (found.ended_ns - found.began_ns) / 1e9 == pytest.approx(2.0, abs=0.001)
    assert abs(found.ended_ns / 1e9 - time.time()) < 60
    assert found.attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(1.0)
    assert found.attributes["acu.queue_seconds"] == pytest.approx(0.5)
    assert found.attributes["gen_ai.usage.output_tokens"] == 11
    assert span(SpanForm(0.0).of_request(request(trace=SENT))).place.trace_id == int(TRACE, 16)
    assert SpanForm(0.0).of_request(request()) is None


def test_a_refused_request_says_why() -> None:
    found = span(SpanForm().of_request(request(RunStatus.REJECTED)))
    assert (found.failed, found.attributes["error.type"]) == (True, "queue_full")


def test_a_step_of_a_run_is_no_plain_request() -> None:
    assert SpanForm().of_request(request(request_id="run_1")) is None
    assert span(SpanForm().of_request(request(request_id="cmpl-1"))).name == "text_completion m"


@pytest.mark.parametrize("conversation", ["", "conv_1"])
def test_a_run_and_its_steps_name_the_conversation_where_it_is_known(conversation: str) -> None:
    run = structs.replace(began(), conversation=conversation)
    for part in (over(run), step(run)):
        assert span(SpanForm().of_part(part)).attributes.get("gen_ai.conversation.id", "") == conversation
    assert "gen_ai.conversation.id" not in span(SpanForm().of_part(call("ok"))).attributes

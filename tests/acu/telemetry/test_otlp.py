"""Spans at a real collector: what it gets of a run, and what becomes of them when it is not there."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from acu.config import TelemetryConfig
from acu.telemetry import otlp
from acu.telemetry.metrics import Telemetry
from acu.telemetry.otlp import Tracing
from agentflow.agents.record import Began, StepEnded
from agentflow.agents.watch import RunOver, StepOver
from agentflow.messages import Caller
from agentflow.tools.errors import ToolFailed
from agentflow.tools.tool import CallContext
from tests.acu.collecting import Collector, attributes, collecting
from tests.agentflow.agents.agencies import BodyTool, benched, call

RULES = {"21": "So it is 21.", "sum": "Let me see." + call("add", '{"a": 1}')}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def add(arguments: dict[str, Any], _: CallContext) -> str:
    return str(arguments["a"] + 20)


async def fail(_: dict[str, Any], __: CallContext) -> str:
    raise ToolFailed("21 is not to be had.")


def tracing(collector: Collector, **more: Any) -> Tracing:
    return Tracing(TelemetryConfig(otlp_endpoint=collector.url, **more), {})


def step(number: int) -> StepOver:
    return StepOver(
        run_id="run_1", run=Began(agent="a", model="m", messages=()), began_ms=1, ended_ms=2, number=number, model="m"
    )


async def test_a_run_is_a_trace_with_its_steps_and_calls_below_it(tmp_path: Path) -> None:
    with collecting() as collector:
        traced = tracing(collector, service_name="box")
        async with benched(tmp_path, RULES, [BodyTool("add", add)], watcher=traced.on_part) as it:
            await it.ask("the sum, please")
        traced.close()
        assert collector.resource["service.name"] == "box"
        (root,) = collector.named("invoke_agent a")
        first, second = collector.named("chat m")
        (tool,) = collector.named("execute_tool add")
        assert len(collector.spans) == 4
        assert root.parent_span_id == b""
        for span in (first, second, tool):
            assert (span.trace_id, span.parent_span_id) == (root.trace_id, root.span_id)
            assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano
        assert len({span.span_id for span in collector.spans}) == 4
        assert first.end_time_unix_nano <= second.start_time_unix_nano

        found = attributes(root)
        assert found["gen_ai.operation.name"] == "invoke_agent"
        assert found["gen_ai.agent.name"] == "a"
        assert (found["acu.run.end"], found["acu.run.steps"], found["acu.run.calls"]) == ("completed", 2, 1)
        chat, run = attributes(second), it.ended[1]
        assert chat["gen_ai.operation.name"] == "chat"
        assert chat["gen_ai.request.model"] == "m"
        assert chat["gen_ai.usage.input_tokens"] == len(run.prompt_token_ids)
        assert chat["gen_ai.usage.output_tokens"] == run.completion_tokens
        assert chat["gen_ai.usage.cache_read.input_tokens"] == run.cached_tokens > 0
        assert chat["gen_ai.response.finish_reasons"] == ["stop"]
        assert run.first_token_at is not None
        assert chat["gen_ai.response.time_to_first_chunk"] == pytest.approx(run.first_token_at - run.arrived_at)
        made = attributes(tool)
        assert made["gen_ai.operation.name"] == "execute_tool"
        assert made["gen_ai.tool.name"] == "add"
        assert made["gen_ai.tool.call.id"].startswith("call_")
        assert "error.type" not in made
        sent = str(collector.spans)
        assert [text for text in ("please", "Let me see", "So it is", '\\"a\\"') if text in sent] == []


async def test_a_call_that_fails_is_a_span_with_an_error(tmp_path: Path) -> None:
    with collecting() as collector:
        traced = tracing(collector)
        async with benched(tmp_path, RULES, [BodyTool("add", fail)], watcher=traced.on_part) as it:
            await it.ask("the sum, please")
        traced.close()
        (tool,) = collector.named("execute_tool add")
        assert tool.status.code == 2
        assert attributes(tool)["error.type"] == "tool_error"
        (root,) = collector.named("invoke_agent a")
        assert root.status.code == 0


async def test_a_run_asked_for_in_a_trace_is_a_part_of_it(tmp_path: Path) -> None:
    with collecting() as collector:
        traced = tracing(collector, sample_share=0.0)
        async with benched(tmp_path, RULES, [BodyTool("add", add)], watcher=traced.on_part) as it:
            await it.ask("the sum, please", caller=Caller(trace=f"00-{TRACE}-{PARENT}-01"))
            await it.ask("the sum, please", caller=Caller(trace=f"00-{TRACE}-{PARENT}-00"))
            await it.ask("the sum, please")
        traced.close()
        (root,) = collector.named("invoke_agent a")  # the others are not to be sent
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
        assert root.parent_span_id.hex() == PARENT


async def test_texts_go_along_only_if_they_are_wanted(tmp_path: Path) -> None:
    with collecting() as collector:
        traced = tracing(collector, content=True)
        async with benched(tmp_path, RULES, [BodyTool("add", add)], watcher=traced.on_part) as it:
            await it.ask("the sum, please")
        traced.close()
        (tool,), (root,) = collector.named("execute_tool add"), collector.named("invoke_agent a")
        assert attributes(tool)["gen_ai.tool.call.arguments"] == '{"a": 1}'
        assert attributes(tool)["gen_ai.tool.call.result"] == "21"
        asked = '[{"role":"user","parts":[{"type":"text","content":"the sum, please"}]}]'
        assert attributes(root)["gen_ai.input.messages"] == asked
        assert "So it is 21." in attributes(collector.named("chat m")[1])["gen_ai.output.messages"]


def test_headers_go_along_and_what_was_sent_is_counted() -> None:
    with collecting() as collector:
        traced = Tracing(TelemetryConfig(otlp_endpoint=collector.url + "/"), {"authorization": "Bearer abc"})
        traced.on_part(step(0))
        traced.close()
        assert collector.headers["authorization"] == "Bearer abc"
        telemetry = Telemetry("1", dropped_logs=lambda: 0, dropped_audits=lambda: 0, tracing=traced)
        lines = telemetry.render(full=True).decode().splitlines()
        told = ["acu_spans_lost_total 0.0", "acu_spans_sent_total 1.0", "acu_spans_waiting 0.0"]
        assert sorted(line for line in lines if line.startswith("acu_spans")) == told


def test_a_collector_that_is_away_costs_spans_and_one_log_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        traced = Tracing(TelemetryConfig(otlp_endpoint=f"http://127.0.0.1:{nobody.getsockname()[1]}"), {})
        for number in range(2 * otlp.BATCH_SPANS):
            traced.on_part(step(number))
        traced.close()
        for _ in range(500):
            if traced.figures.failed:
                break
            time.sleep(0.01)
        assert traced.figures.sent == 0
        assert traced.figures.failed >= otlp.BATCH_SPANS
    told = [record for record in caplog.records if record.message == "traces are lost"]
    assert len(told) == 1
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_collector_that_refuses_is_told_of_and_the_next_spans_arrive(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        collector.status = 400
        traced = tracing(collector)
        for number in range(otlp.BATCH_SPANS):
            traced.on_part(step(number))
        while not traced.figures.failed:
            time.sleep(0.01)
        collector.status = 200
        traced.on_part(step(9999))
        traced.close()
        assert (traced.figures.failed, traced.figures.sent) == (otlp.BATCH_SPANS, 1)
        assert len(collector.spans) == 1
    (told,) = [record for record in caplog.records if record.message == "traces are lost"]
    assert vars(told)["spans"] == otlp.BATCH_SPANS


def test_a_collector_that_hangs_holds_up_nothing_and_the_queue_has_an_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", 0.2)
    with collecting() as collector:
        collector.hold.set()
        traced = tracing(collector)
        for number in range(otlp.BATCH_SPANS):
            traced.on_part(step(number))
        while not collector.asked:
            time.sleep(0.01)
        for number in range(otlp.QUEUE_SPANS + 10):
            traced.on_part(step(number))
        assert traced.figures.waiting == otlp.QUEUE_SPANS
        assert traced.figures.dropped == 10
        traced.close()  # returns, though nothing is answered
        assert traced.figures.sent == 0
        traced.on_part(step(1))  # is nobody's any more
        assert traced.figures.waiting == otlp.QUEUE_SPANS
    assert "the collector of traces is too slow; spans are lost" in [record.message for record in caplog.records]


def test_what_a_model_made_up_can_be_sent() -> None:
    with collecting() as collector:
        traced = tracing(collector, content=True)
        began = Began(agent="a", model="m", messages=())
        ended = StepEnded(reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=1)
        part = StepOver(
            run_id="run_1", run=began, began_ms=1, ended_ms=2, number=0, model="m", measured=ended, text="half \ud800"
        )
        traced.on_part(part)
        traced.on_part(
            RunOver(
                run_id="run_1",
                run=began,
                began_ms=1,
                ended_ms=2,
                end="failed",
                why="x",
                error="\ud800",
                steps=1,
                calls=0,
            )
        )
        traced.close()
        assert traced.figures.sent == 2
        (root,) = collector.named("invoke_agent a")
        assert (root.status.code, root.status.message) == (2, "?")

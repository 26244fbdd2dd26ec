"""acu.telemetry.metrics: what a run's end adds to which series."""

from __future__ import annotations

import time
from typing import Literal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from acu.telemetry.metrics import Telemetry, operation
from agentflow.engine.protocol import EngineStats
from agentflow.messages import Caller, Sampling
from agentflow.run import Run, RunStatus
from agentflow.status import EngineStatus, ModelStatus, ServiceStatus

MODEL = '{model_name="m"}'


def run(
    status: RunStatus,
    reason: str | None = None,
    *,
    kind: Literal["generate", "embed"] = "generate",
    request_id: str = "chatcmpl-1",
) -> Run:
    """A run that ended: 0.5 s in the queue, first token at 1 s, ten more within one second."""
    ended = Run(
        id="r",
        request_id=request_id,
        model="m",
        prompt_token_ids=[1] * 7,
        sampling=Sampling(),
        max_tokens=11,
        caller=Caller(),
        priority=0,
        deadline_at=0.0,
        kind=kind,
    )
    if status is RunStatus.REJECTED:
        ended.advance(status, reason)
        return ended
    ended.advance(RunStatus.RUNNING)
    ended.advance(status, reason)
    begun = ended.arrived_at = time.monotonic() - 2
    ended.admitted_at, ended.first_token_at, ended.last_token_at = begun + 0.5, begun + 1, begun + 2
    ended.completion_tokens, ended.cached_tokens, ended.finish_reason = 11, 3, "stop"
    return ended


def samples(telemetry: Telemetry, *, full: bool = True) -> dict[str, float]:
    """The exposition as a table: series with labels -> value."""
    text = telemetry.render(full=full).decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


@pytest.fixture
def telemetry() -> Telemetry:
    """A fresh registry."""
    return Telemetry("1.2.3", dropped_logs=lambda: 4, dropped_audits=lambda: 7)


def test_a_finished_run_feeds_vllms_names(telemetry: Telemetry) -> None:
    telemetry.on_run_end(run(RunStatus.FINISHED))
    found = samples(telemetry)
    assert found[f"vllm:time_to_first_token_seconds_sum{MODEL}"] == pytest.approx(1.0)
    assert found[f"vllm:request_queue_time_seconds_sum{MODEL}"] == pytest.approx(0.5)
    assert found[f"vllm:request_time_per_output_token_seconds_sum{MODEL}"] == pytest.approx(0.1)
    assert found[f"vllm:e2e_request_latency_seconds_sum{MODEL}"] == pytest.approx(2.0)
    assert found[f"vllm:prompt_tokens_total{MODEL}"] == 7
    assert found[f"vllm:generation_tokens_total{MODEL}"] == 11
    assert found[f"acu_cached_prompt_tokens_total{MODEL}"] == 3
    assert found['vllm:request_success_total{finished_reason="stop",model_name="m"}'] == 1


def test_a_finished_run_feeds_opentelemetrys_names(telemetry: Telemetry) -> None:
    telemetry.on_run_end(run(RunStatus.FINISHED))
    found = samples(telemetry)
    labels = 'gen_ai_operation_name="chat",gen_ai_request_model="m"'
    assert found[f"gen_ai_server_time_to_first_token_seconds_sum{{{labels}}}"] == pytest.approx(1.0)
    assert found[f"gen_ai_server_time_per_output_token_seconds_sum{{{labels}}}"] == pytest.approx(0.1)
    assert found[f'gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type="input"}}'] == 7
    assert found[f'gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type="output"}}'] == 11


@pytest.mark.parametrize(
    ("status", "reason", "series"),
    [
        (RunStatus.ABORTED, "client_gone", "acu_runs_aborted_total"),
        (RunStatus.FAILED, "engine_died", "acu_runs_failed_total"),
        (RunStatus.REJECTED, "queue_full", "acu_runs_rejected_total"),
    ],
)
def test_a_run_that_did_not_finish_is_counted_by_its_reason(
    telemetry: Telemetry, status: RunStatus, reason: str, series: str
) -> None:
    telemetry.on_run_end(run(status, reason))
    found = samples(telemetry)
    assert found[f'{series}{{model_name="m",reason="{reason}"}}'] == 1
    assert not any(name.startswith("vllm:request_success") for name in found)
    assert found.get(f"vllm:generation_tokens_total{MODEL}", 0) == (0 if status is RunStatus.REJECTED else 11)


def test_the_gauges_are_read_at_the_scrape(telemetry: Telemetry) -> None:
    running = 3

    def status() -> ServiceStatus:
        engine = EngineStatus(id="m/0", state="ready", stats=EngineStats(kv_cache_usage=0.25), restarts=2)
        model = ModelStatus("m", (), "chat", True, 0, (engine,), 100, queued=1, running=running)
        return ServiceStatus(True, None, False, 1, 10, running, (model,), idle_prefixes=6)

    telemetry.watch(status, lambda: (9, 2, 3), lambda: {"daemon": 0.99, "m/0": 1.0})
    running = 5
    found = samples(telemetry)
    assert found[f"vllm:num_requests_running{MODEL}"] == 5
    assert found[f"vllm:num_requests_waiting{MODEL}"] == 1
    assert found['vllm:kv_cache_usage_perc{engine="m/0",model_name="m"}'] == 0.25
    assert found['acu_engine_restarts_total{engine="m/0",model_name="m"}'] == 2
    assert found["acu_agent_idle_prefixes"] == 6
    assert found["acu_open_connections"] == 9
    assert found["acu_idle_connections_closed_total"] == 2
    assert found["acu_unread_connections_cut_total"] == 3
    assert found['acu_numa_local_ratio{process="daemon"}'] == 0.99
    assert found['acu_numa_local_ratio{process="m/0"}'] == 1.0
    assert found["acu_log_records_dropped_total"] == 4
    assert found["acu_audit_lines_dropped_total"] == 7


def test_what_cannot_be_measured_fails_nothing(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    telemetry.on_part(None)  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == ["what ended cannot be measured"]


async def test_there_is_nothing_to_close_where_nothing_is_traced(telemetry: Telemetry) -> None:
    await telemetry.close()
    assert "acu_spans" not in telemetry.render(full=True).decode()


def test_the_basic_family_tells_nothing_of_requests(telemetry: Telemetry) -> None:
    telemetry.on_run_end(run(RunStatus.FINISHED))
    telemetry.on_response("/v1/models", 200)
    basic = samples(telemetry, full=False)
    assert [name for name in basic if name.startswith("acu_build_info")] != []
    assert not any("token" in name or "http" in name or "process" in name for name in basic)
    assert set(basic) <= set(samples(telemetry))


def test_the_exposition_is_valid_and_every_series_has_help(telemetry: Telemetry) -> None:
    telemetry.on_run_end(run(RunStatus.FINISHED))
    telemetry.loop_lag.observe(0.001)
    for family in text_string_to_metric_families(telemetry.render(full=True).decode()):
        assert family.documentation, family.name


def test_the_operation_is_read_off_the_requests_id() -> None:
    assert operation(run(RunStatus.FINISHED, kind="embed")) == "embeddings"
    assert operation(run(RunStatus.FINISHED, request_id="cmpl-1")) == "text_completion"


def test_what_an_engines_start_took_is_told_by_stage(telemetry: Telemetry) -> None:
    engine = EngineStatus(id="m/0", state="ready", start_s={"importing": 9.5, "warming": 1.25})
    model = ModelStatus("m", (), "chat", True, 0, (engine,), 100, queued=0, running=0)
    telemetry.watch(lambda: ServiceStatus(True, None, False, 0, 0, 0, (model,)), lambda: (0, 0, 0))
    found = samples(telemetry)
    assert found['acu_engine_start_seconds{engine="m/0",model_name="m",stage="importing"}'] == 9.5
    assert found['acu_engine_start_seconds{engine="m/0",model_name="m",stage="warming"}'] == 1.25

"""Tracing as it is configured: the file of headers, and the real daemon with a collector, and with one that hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acu.config import TelemetryConfig
from acu.errors import StartRefused
from acu.telemetry.tracing import open_tracing, read_headers
from acu.terminal.client import Client, Target
from tests.acu.collecting import Collector, attributes, collecting
from tests.acu.running import ROOT, DaemonFactory, RunningDaemon, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def headers_file(folder: Path, content: bytes | str, mode: int = 0o600) -> Path:
    path = folder / "headers.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def test_headers_are_read(tmp_path: Path) -> None:
    path = headers_file(tmp_path, "authorization: Bearer sk-1\nx-scope: 'team 1'\n", 0o640)
    assert read_headers(path) == {"authorization": "Bearer sk-1", "x-scope": "team 1"}


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("authorization: secret", 0o644, "can be read by everybody"),
        ("authorization: secret", 0o620, "written by others"),
        ("- secret", 0o600, "no plain YAML mapping"),
        ("authorization: [secret", 0o600, "no plain YAML mapping"),
        ("a b: secret", 0o600, "a name that no header can have"),
        ("authorization: ['secret']", 0o600, "no printable ASCII"),
        ('authorization: "secret\\nx: y"', 0o600, "no printable ASCII"),
        ("authorization: 'sécret'", 0o600, "no printable ASCII"),
        ("x-number: 7", 0o600, "put it in quotes"),
        (b"\xff\xfesecret", 0o600, "is not UTF-8"),
        (b"#" * ((1 << 20) + 1), 0o600, "is larger than"),
    ],
)
def test_headers_that_cannot_be_used_are_refused_without_quoting_them(
    tmp_path: Path, content: bytes | str, mode: int, why: str
) -> None:
    with pytest.raises(StartRefused) as caught:
        read_headers(headers_file(tmp_path, content, mode))
    assert why in str(caught.value)
    assert "telemetry.headers_file" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_headers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="No such file"):
        read_headers(tmp_path / "none")
    with pytest.raises(StartRefused, match="not a regular file"):
        read_headers(Path("/dev/null"))


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "ftp://x", "http://", "http://u:p@x", "http://x?y", "http://x y"]
)
def test_an_endpoint_must_be_an_address_of_http(endpoint: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"otlp_endpoint": endpoint}, TelemetryConfig)


@pytest.mark.parametrize("endpoint", ["http://x", "https://x.example:4318", "http://[::1]:4318/", "http://x/otlp"])
def test_addresses_of_http_are_taken(endpoint: str) -> None:
    assert msgspec.convert({"otlp_endpoint": endpoint}, TelemetryConfig).otlp_endpoint == endpoint


def test_without_a_collector_nothing_of_opentelemetry_is_imported() -> None:
    assert open_tracing(TelemetryConfig()) is None
    code = (
        "import sys, acu.daemon, acu.telemetry.metrics, acu.telemetry.tracing\n"
        "from acu.config import TelemetryConfig\n"
        "acu.telemetry.tracing.open_tracing(TelemetryConfig())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def ask(running: RunningDaemon, model: str, trace: str | None = None) -> None:
    connection = Client(Target(url=running.url))._connect()
    body = msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": "go"}]})
    headers = {"host": "localhost", "content-type": "application/json"} | ({"traceparent": trace} if trace else {})
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.read()
    connection.close()


def config(collector: Collector, **more: Any) -> dict[str, Any]:
    return {"telemetry": {"otlp_endpoint": collector.url, **more}, "agents": {"a": {}}}


def test_a_daemon_sends_traces_and_does_not_wait_at_its_end_for_a_collector_that_hangs(
    daemon: DaemonFactory, tmp_path: Path
) -> None:
    headers = headers_file(tmp_path, "authorization: Bearer sk-1")
    with collecting() as collector:
        running = daemon(config(collector, headers_file=str(headers)), script={"answer": "four"})
        ask(running, "scripted")
        ask(running, "agent/a", f"00-{TRACE}-{PARENT}-01")
        ask(running, "scripted", "00-nonsense")
        until(lambda: len(collector.spans) == 4, "the spans")
        collector.hold.set()
        ask(running, "scripted")
        running.stop()
        assert "the collector of traces is too slow; spans are lost" in running.events()
        assert collector.headers["authorization"] == "Bearer sk-1"
        plain = [span for span in collector.named("chat scripted") if span.trace_id.hex() != TRACE]
        assert [span.parent_span_id for span in plain] == [b"", b""]
        assert attributes(plain[0])["gen_ai.usage.output_tokens"] == len("four") + 1
        (root,) = collector.named("invoke_agent a")
        assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
        (step,) = [span for span in collector.named("chat scripted") if span.trace_id == root.trace_id]
        assert step.parent_span_id == root.span_id

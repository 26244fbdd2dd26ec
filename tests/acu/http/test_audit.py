"""What is told of a request once it has ended."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from acu.http.audit import Hooks, Journal, audit_line
from acu.http.exchange import RequestRecord

RECORD = RequestRecord(
    request_id="req_1", method="POST", route="/v1/x", path="/v1/x", status=200, code=None, reason=None, model="m",
    streamed=True, tenant="t", key="k", admin=False, peer="127.0.0.1", uid=None, prompt_tokens=3, cached_tokens=1,
    completion_tokens=5, duration_s=0.01234,
)  # fmt: skip


def test_an_audit_line_is_the_record_with_its_time() -> None:
    line = msgspec.json.decode(audit_line(RECORD, 1_700_000_000.1234))
    assert line == {"time": 1_700_000_000.123, **msgspec.structs.asdict(RECORD)}


def test_no_model_breaks_an_audit_line() -> None:
    record = msgspec.structs.replace(RECORD, model="a\u2028b\u0085c\U0001f600\n")
    line = audit_line(record, 1.0)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert msgspec.json.decode(line) == {"time": 1.0, **msgspec.structs.asdict(record)}


def test_a_request_is_counted_logged_and_audited_once(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[tuple[str, int]] = []
    audited: list[bytes] = []
    journal = Journal(Hooks(on_response=lambda route, status: counted.append((route, status)), audit=audited.append))
    with caplog.at_level(logging.INFO):
        journal.request_ended(RECORD)
    assert counted == [("/v1/x", 200)]
    assert len(audited) == 1
    (record,) = caplog.records
    said: dict[str, Any] = vars(record)
    assert (said["request_id"], said["status"], said["duration_ms"]) == ("req_1", 200, 12.3)
    assert "uid" not in said


@pytest.mark.parametrize("route", ["/healthz", "/readyz", "/metrics", "/acu/v1/status"])
@pytest.mark.parametrize(("status", "level"), [(200, "DEBUG"), (503, "DEBUG"), (403, "INFO")])
def test_what_machines_probe_all_the_time_is_logged_at_debug_unless_it_was_refused(
    caplog: pytest.LogCaptureFixture, route: str, status: int, level: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        Journal(Hooks()).request_ended(msgspec.structs.replace(RECORD, route=route, path=route, status=status))
        Journal(Hooks()).request_ended(RECORD)
    assert [record.levelname for record in caplog.records] == [level, "INFO"]

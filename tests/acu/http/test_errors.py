"""Every error has a status, and no answer shows the inside."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import pytest

from acu.http.errors import RULES, HttpError, raw_response, retry_headers, translate
from agentflow import errors as flow
from agentflow.library import errors as files
from agentflow.library import refusals as library


def tree(cls: type[Exception]) -> Iterator[type[Exception]]:
    yield cls
    for child in cls.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize("cls", sorted(set(tree(flow.AgentFlowError)), key=str))
def test_every_class_of_the_orchestrators_tree_is_mapped_by_name(cls: type[Exception]) -> None:
    assert cls in RULES
    assert 400 <= RULES[cls].status <= 599


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "param"),
    [
        (flow.InvalidRequest("no", param="n"), 400, "invalid_request_error", "invalid_value", "n"),
        (flow.InvalidRequest("no", code="own_word"), 400, "invalid_request_error", "own_word", None),
        (flow.ContextLengthExceeded("long"), 400, "invalid_request_error", "context_length_exceeded", "messages"),
        (flow.UnknownModel("who"), 404, "invalid_request_error", "model_not_found", "model"),
        (flow.InvalidGrammar("bad"), 400, "invalid_request_error", "invalid_grammar", "response_format"),
        (flow.QueueFull("full", retry_after_s=1.5), 429, "rate_limit_error", "queue_full", None),
        (flow.DeadlineExceeded("late", retry_after_s=1), 504, "server_error", "deadline_exceeded", None),
        (flow.Draining("going", retry_after_s=1), 503, "server_error", "draining", None),
        (flow.EngineUnavailable("loading", retry_after_s=1), 503, "server_error", "engine_unavailable", None),
        (flow.EngineDied("died"), 503, "server_error", "engine_died", None),
        (flow.EngineStalled("stuck"), 503, "server_error", "engine_stalled", None),
        (library.NotStored("gone", param="file_id"), 404, "invalid_request_error", "not_found", "file_id"),
        (library.QuotaExceeded("much"), 400, "invalid_request_error", "quota_exceeded", None),
        (library.StoreExpired("old"), 400, "invalid_request_error", "vector_store_expired", "vector_store_id"),
        (library.EmbedderChanged("other"), 400, "invalid_request_error", "embedder_changed", "vector_store_id"),
        (library.DataUnavailable("opening", retry_after_s=1), 503, "server_error", "data_plane_unavailable", None),
        (library.DiskFull("full", retry_after_s=30), 507, "server_error", "storage_full", None),
        (files.FileTooLarge("large"), 413, "invalid_request_error", "file_too_large", "file"),
        (files.UnsupportedFile("zip"), 400, "invalid_request_error", "unsupported_file", "file"),
    ],
)
def test_an_error_becomes_openais_shape(error: Exception, status: int, kind: str, code: str, param: str | None) -> None:
    refusal = translate(error)
    assert refusal.status == status
    body = msgspec.json.decode(refusal.body())
    assert body == {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def test_of_damage_a_client_reads_what_is_damaged_and_no_path() -> None:
    says = str(translate(library.DataDamaged("/var/lib/acu/x is short", of="run run_1")))
    assert (
        says
        == "What is stored of the run run_1 is damaged: restore a backup, or delete it. The daemon's log says more."
    )
    assert "/var" not in str(translate(library.DataDamaged("/var/lib/acu/x is short")))


def test_a_refusal_says_when_to_come_again_in_seconds_and_in_milliseconds() -> None:
    refusal = translate(flow.QueueFull("full", retry_after_s=1.2345))
    assert refusal.headers == {"retry-after": "2", "retry-after-ms": "1235"}


def test_a_time_that_is_no_number_is_not_told() -> None:
    assert retry_headers(float("inf")) == {}
    assert retry_headers(-1) == {"retry-after": "0", "retry-after-ms": "0"}


def test_a_class_that_was_derived_later_gets_its_parents_status() -> None:
    class Newer(flow.EngineDied):
        pass

    try:
        assert translate(Newer("x")).status == 503
    finally:
        del Newer  # the walk of the tree above must not meet it


@pytest.mark.parametrize("error", [library.DataDamaged("/srv/data/x"), files.ExtractionFailed("/usr/bin/x")])
def test_what_names_the_machines_paths_is_for_the_log_alone(error: Exception) -> None:
    refusal = translate(error)
    assert refusal.status == 500
    assert "log has the details" in str(refusal)
    assert b"/" not in refusal.body()


def test_a_full_disk_is_not_asked_again_at_once_and_a_plane_that_will_not_come_has_no_time() -> None:
    assert translate(library.DiskFull("full", retry_after_s=30)).headers["x-should-retry"] == "false"
    assert translate(library.DataUnavailable("none", retry_after_s=math.inf)).headers == {}


def test_an_unexpected_exception_tells_nothing_of_the_inside() -> None:
    refusal = translate(RuntimeError("/secret/path, key sk-123"))
    assert refusal.status == 500
    assert b"secret" not in refusal.body()
    assert b"sk-123" not in refusal.body()


def test_an_answer_without_a_request_is_whole_http() -> None:
    raw = raw_response(HttpError(408, "Too slow.", code="header_timeout"))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"connection: close" in head
    assert f"content-length: {len(body)}".encode() in head
    assert msgspec.json.decode(body)["error"]["code"] == "header_timeout"

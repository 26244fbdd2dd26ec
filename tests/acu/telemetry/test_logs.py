"""acu.telemetry.logs: the loop never waits for whoever reads the log."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from acu.telemetry import logs
from acu.telemetry.logs import LogThread, log_style, printable, renderer


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """The root logger is as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in logs.QUIET}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def read_all(fd: int) -> str:
    """What was written into a pipe whose other end is closed."""
    parts = []
    while part := os.read(fd, 65_536):
        parts.append(part)
    return b"".join(parts).decode()


def test_a_record_becomes_one_json_object_with_its_extra_fields() -> None:
    read_end, write_end = os.pipe()
    thread = LogThread("json", write_end)
    thread.install("info")
    log = logging.getLogger("some.library")
    log.info("%s of %d", "part", 2, extra={"id": "x", "ms": 1.5})
    log.debug("not this")
    try:
        int("boom\nsecond line")
    except ValueError:
        log.exception("it failed")
    thread.start()
    thread.stop()
    os.close(write_end)
    first, second = map(json.loads, read_all(read_end).splitlines())
    os.close(read_end)
    assert (first["event"], first["level"], first["logger"], first["id"], first["ms"]) == (
        "part of 2",
        "info",
        "some.library",
        "x",
        1.5,
    )
    assert second["event"] == "it failed"
    assert "ValueError: invalid literal for int" in second["exception"]


def test_a_blocked_pipe_drops_records_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUEUE_RECORDS", 10)
    monkeypatch.setattr(logs, "STOP_TIMEOUT_S", 0.1)
    read_end, write_end = os.pipe()
    thread = LogThread("json", write_end)
    thread.install("info")
    thread.start()
    for _ in range(200):
        logging.getLogger("x").info("y" * 4096)
    assert thread.dropped > 0
    thread.stop()
    os.close(read_end)
    thread._thread.join(30)
    assert not thread._thread.is_alive()


def test_a_reader_that_is_gone_does_not_end_the_thread() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    thread = LogThread("json", write_end)
    thread.install("info")
    thread.start()
    logging.getLogger("x").info("one")
    logging.getLogger("x").info("two")
    thread.stop()
    os.close(write_end)
    assert thread.dropped == 2
    assert not any(t.name == "log" and t.is_alive() for t in threading.enumerate())


def test_chatty_libraries_are_told_from_warnings_up() -> None:
    thread = LogThread("json", os.open(os.devnull, os.O_WRONLY))
    thread.install("debug")
    assert not logging.getLogger("asyncio").isEnabledFor(logging.INFO)
    assert logging.getLogger("acu").isEnabledFor(logging.DEBUG)
    thread.stop()


def test_a_pretty_request_line_leaves_out_what_is_empty() -> None:
    record = logging.makeLogRecord({"name": "acu.http.request", "levelname": "INFO", "msg": "request"})
    record.__dict__.update({"status": 200, "path": "/x", "reason": None, "peer": "unix", "cached_tokens": 0})
    text = renderer("pretty")(record)
    assert "status" in text
    assert "peer" not in text
    assert "cached_tokens" not in text


def test_the_log_is_json_under_systemd_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    assert log_style("auto", under_systemd=True) == "json"
    assert log_style("auto", under_systemd=False) == "pretty"
    assert log_style("json", under_systemd=False) == "json"


def test_a_pretty_line_escapes_what_would_drive_the_terminal() -> None:
    record = logging.makeLogRecord(
        {"name": "x", "levelname": "INFO", "msg": "one\x1b[2J\nforged", "exc_text": "E\x1b[3J"}
    )
    record.__dict__.update({"model": "m\x1b]0;owned\x07", "why": "\ud800\u202e", "many": ["\x1b[4J"]})
    text = renderer("pretty")(record)
    for hostile in ("\x1b[2J", "\x1b[3J", "\x1b[4J", "\x1b]", "\x07", "\ud800", "\u202e", "\nforged"):
        assert hostile not in text
    for shown in ("one\\x1b[2J\n    forged", "m\\x1b]0;owned\\x07", "\\ud800\\u202e", "E\\x1b[3J"):
        assert shown in text


def test_printable_leaves_what_people_read_alone() -> None:
    assert printable("caf\u00e9 \u4e2d") == "caf\u00e9 \u4e2d"
    assert printable("a\nb\x9b", keep="\n") == "a\nb\\x9b"


def test_a_traceback_that_came_as_a_field_keeps_its_lines() -> None:
    record = logging.makeLogRecord({"name": "x", "levelname": "WARNING", "msg": "a call of a tool failed"})
    record.__dict__["exception"] = "Traceback:\n  File desk.py\nRuntimeError: \x1b[2J"
    assert "Traceback:\n  File desk.py\nRuntimeError: \\x1b[2J" in renderer("pretty")(record)
    assert json.loads(renderer("json")(record))["exception"] == record.__dict__["exception"]

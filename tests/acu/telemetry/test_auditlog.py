"""acu.telemetry.auditlog: the loop never waits for the disk, and what is lost is counted."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from acu.telemetry import auditlog
from acu.telemetry.auditlog import AuditLog


def test_it_is_appended_to_in_order_private_and_flushed_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    lines = [b'{"n":%d}' % n for n in range(2000)]
    for half in (lines[:1000], lines[1000:]):
        audit = AuditLog(str(path))
        audit.write(half[0])
        audit.start()
        for line in half[1:]:
            audit.write(line)
        audit.close()
        assert audit.dropped == 0
    assert path.read_bytes() == b"".join(line + b"\n" for line in lines)
    assert path.stat().st_mode & 0o777 == 0o600


def test_lines_over_the_bound_are_dropped_and_counted_and_the_first_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditlog, "QUEUE_LINES", 3)
    audit = AuditLog(str(tmp_path / "audit"))
    for n in range(5):
        audit.write(b"%d" % n)
    assert audit.dropped == 2
    audit.close()
    assert (tmp_path / "audit").read_bytes() == b"0\n1\n2\n"


def test_a_disk_that_does_not_read_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditlog, "QUEUE_LINES", 3)
    monkeypatch.setattr(auditlog, "CLOSE_TIMEOUT_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    audit = AuditLog(str(pipe))
    audit.start()
    for _ in range(200):
        audit.write(b"x" * 4096)
    assert audit.dropped > 0
    audit.close()
    os.close(reader)


def test_a_full_disk_costs_lines_that_are_counted_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog("/dev/full")
    for _ in range(3):
        audit.write(b"{}")
    with caplog.at_level(logging.ERROR):
        audit.close()
    assert audit.dropped == 3
    assert caplog.messages == ["the audit log cannot be written"]
    assert vars(caplog.records[0])["why"] == "No space left on device"


def test_a_write_that_takes_only_a_part_is_continued_and_a_torn_line_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "audit", os.write
    audit = AuditLog(str(path))
    takes: list[int | None] = [2, None, 2, 0, None]  # bytes taken by each call; None: all, 0: the disk is full

    def partial(fd: int, data: bytes) -> int:
        size = takes.pop(0)
        if size == 0:
            raise OSError(28, "No space left on device")
        return write(fd, data[:size])

    for line in (b"whole", b"torn", b"after"):
        audit.write(line)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", partial)
        audit.close()
    assert path.read_bytes() == b"whole\nto\nafter\n"
    assert audit.dropped == 1


def test_opened_again_it_goes_on_in_a_new_file_and_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = AuditLog(str(path))
    audit.write(b"before")
    path.rename(tmp_path / "audit.1")
    audit.write(b"still before")
    audit.reopen()
    audit.write(b"after")
    audit.close()
    assert (tmp_path / "audit.1").read_bytes() == b"before\nstill before\n"
    assert path.read_bytes() == b"after\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert audit.dropped == 0


def test_what_cannot_be_opened_again_leaves_the_old_file_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditlog, "QUEUE_LINES", 2)
    path = tmp_path / "audit"
    audit = AuditLog(str(path))
    path.rename(tmp_path / "audit.1")
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        audit.reopen()
    path.rmdir()
    for line in (b"one", b"two"):
        audit.write(line)
    with pytest.raises(OSError, match="does not take what waits"):
        audit.reopen()
    audit.start()
    audit.close()
    assert (tmp_path / "audit.1").read_bytes() == b"one\ntwo\n"

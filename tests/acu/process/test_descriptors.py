"""acu.process.descriptors: as many connections as the limit of open files lets in."""

from __future__ import annotations

import logging
import resource

import pytest

from acu.errors import StartRefused
from acu.process import descriptors
from acu.process.descriptors import SPARE, make_room


class Limits:
    """What getrlimit and setrlimit see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda which: self.now)
        monkeypatch.setattr(resource, "setrlimit", self.set)

    def set(self, which: int, limits: tuple[int, int]) -> None:
        """As the kernel does."""
        assert which == resource.RLIMIT_NOFILE
        self.now = limits


def test_the_soft_limit_is_raised_to_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(monkeypatch, 1024, 4096 + SPARE)
    assert make_room(4096) == 4096
    assert limits.now == (4096 + SPARE, 4096 + SPARE)
    assert caplog.records == []


def test_what_does_not_fit_is_clamped_with_a_warning_that_names_both_numbers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Limits(monkeypatch, 1024, 4096)
    with caplog.at_level(logging.WARNING):
        assert make_room(4096) == 4096 - SPARE
    said = vars(caplog.records[0])
    assert (said["max_connections"], said["admitted"], said["open_files_limit"]) == (4096, 4096 - SPARE, 4096)


def test_a_limit_with_room_for_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, 64, 236)
    with pytest.raises(StartRefused, match=r"may have 236 open files.*and 240 are needed"):
        make_room(4096)
    assert make_room(5) == 5


def test_no_limit_at_all_fits_any_number() -> None:
    assert descriptors.fitting(1_000_000, resource.RLIM_INFINITY) == 1_000_000

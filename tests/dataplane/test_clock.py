"""Times in the units that are stored."""

from __future__ import annotations

from datetime import UTC, datetime

from dataplane import clock


def test_now_is_counted_in_whole_milliseconds_of_utc() -> None:
    before = datetime.now(UTC).timestamp() * 1000
    now = clock.now_ms()
    after = datetime.now(UTC).timestamp() * 1000
    assert int(before) <= now <= after + 1


def test_hours_keep_their_parts() -> None:
    noon_and_a_half = datetime(1970, 1, 2, 12, 30, tzinfo=UTC)
    assert clock.hour(int(noon_and_a_half.timestamp() * 1000)) == 36.5
